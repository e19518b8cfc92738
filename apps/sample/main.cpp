// Draws text from a trained model.

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <iostream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "cli/app.h"
#include "cli/model.h"
#include "cli/options.h"
#include "llmc/comm/process_group.h"
#include "llmc/core/error.h"
#include "llmc/core/file.h"
#include "llmc/infer/sampler.h"
#include "sample/printer.h"

namespace {

using llmc::ErrorKind;
using Texts = std::vector<std::string>;

struct Options {
  llmc::cli::ModelSource model;
  Texts prompts, stops;
  std::string prompt_file;
  bool interactive = false;
  std::int64_t max_new_tokens = 256;
  double temperature = 1;
  bool greedy = false;
  std::int64_t top_k = 0;
  double top_p = 1;
  double min_p = 0;
  double repetition_penalty = 1;
  std::int64_t num_samples = 1;
  std::int64_t batch = 0;
  std::int64_t seed = 42;
};

llmc::SampleOptions sample_options(const Options& options, const llmc::Tokenizer& tokenizer) {
  llmc::SampleOptions out;
  out.temperature = options.greedy ? 0.0f : static_cast<float>(options.temperature);
  out.top_k = options.top_k;
  out.top_p = static_cast<float>(options.top_p);
  out.min_p = static_cast<float>(options.min_p);
  out.repetition_penalty = static_cast<float>(options.repetition_penalty);
  out.seed = static_cast<std::uint64_t>(options.seed);
  out.vocab_size = tokenizer.vocab_size();
  out.end_of_text = tokenizer.begin_of_text();
  return out;
}

// Documents of the training data follow this token, so a prompt does too, and its text ends with
// it.
llmc::Sampler::Tokens tokens_of(const Options& options, const std::string& prompt) {
  const llmc::Tokenizer& tokenizer = *options.model.tokenizer();
  llmc::Sampler::Tokens tokens = {tokenizer.begin_of_text()};
  tokenizer.encode(tokens, prompt);
  const std::int64_t longest = options.model.loader().config().block_size;
  if (std::ssize(tokens) > longest) {
    llmc::fail(ErrorKind::kInput, "sample", "prompt: expected at most the ", longest,
               " tokens of the model's context, end-of-text in front included, got ",
               tokens.size());
  }
  return tokens;
}

struct Continued {
  std::int64_t tokens = 0;
  double seconds = 0;
};

// Continues every prompt num_samples times, as many at once as the sampler has rows.
Continued continue_prompts(const Options& options, const Texts& prompts, llmc::Sampler& sampler,
                           std::int64_t rows) {
  std::vector<llmc::Sampler::Tokens> tokens;
  Texts texts;
  for (const std::string& prompt : prompts) {
    for (std::int64_t i = 0; i < options.num_samples; ++i) {
      tokens.push_back(i == 0 ? tokens_of(options, prompt) : tokens.back());
      texts.push_back(prompt);
    }
  }
  llmc::cli::Printer printer(std::cout, *options.model.tokenizer(), options.stops, texts);
  Continued result;
  const auto began = std::chrono::steady_clock::now();
  for (std::size_t first = 0; first < tokens.size(); first += static_cast<std::size_t>(rows)) {
    const std::size_t count = std::min(static_cast<std::size_t>(rows), tokens.size() - first);
    sampler.generate_batch(
        std::span(tokens).subspan(first, count), options.max_new_tokens,
        [&](std::size_t row, std::int32_t id) {
          ++result.tokens;
          return printer.push(first + row, id);
        },
        static_cast<std::int64_t>(first));
    printer.finish(first + count);
  }
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  std::cout << std::endl;
  return result;
}

void print_speed(const Continued& continued) {
  std::fprintf(stderr, "%lld tokens in %.2f s, %.1f tok/s\n",
               static_cast<long long>(continued.tokens), continued.seconds,
               static_cast<double>(continued.tokens) / continued.seconds);
}

// Every line of the input is a prompt of its own; one that cannot be continued costs a message.
int talk(const Options& options, llmc::Sampler& sampler, std::int64_t rows) {
  const bool on_terminal = isatty(STDIN_FILENO) != 0;
  std::string line;
  for (;;) {
    if (on_terminal) std::cerr << "> " << std::flush;
    if (!std::getline(std::cin, line) || !std::cout) {
      llmc::cli::check_standard_input();
      return llmc::cli::kDone;
    }
    try {
      print_speed(continue_prompts(options, {line}, sampler, rows));
    } catch (const llmc::Error& error) {
      if (error.kind() != ErrorKind::kInput) throw;
      std::cerr << "sample: " << error.what() << '\n';
    }
  }
}

void add_options(llmc::cli::OptionParser& parser, Options& options) {
  options.model.add_options(parser);
  parser.add_list("prompt", options.prompts,
                  "Texts to continue. Without any prompt: end-of-text alone, where documents "
                  "begin, which stands in front of every prompt too.");
  parser.add("prompt-file", options.prompt_file,
             "File whose text is to be continued; - is the standard input.");
  parser.add_flag("interactive", options.interactive,
                  "Continue one line of the standard input after the other.");
  parser.add("max-new-tokens", options.max_new_tokens,
             "Longest continuation. Beyond the model's context, the newest half of it is kept "
             "whenever it is full.",
             {1, 1e9});
  parser.add_list("stop", options.stops,
                  "Texts at which a continuation ends, besides end-of-text.");
  parser.add_flag("greedy", options.greedy, "Always take the likeliest token: --temperature 0.");
  parser.add("temperature", options.temperature, "Logits are divided by it. 0: likeliest token.",
             {0, 1000});
  parser.add("top-k", options.top_k, "Draw among the k likeliest tokens. 0: all.", {0, 1e9});
  parser.add("top-p", options.top_p, "Draw among the fewest tokens of this probability.",
             {0, 1, true, false});
  parser.add("min-p", options.min_p,
             "Draw among tokens at least this likely, relative to the likeliest.", {0, 1});
  parser.add("repetition-penalty", options.repetition_penalty,
             "Makes tokens that the text holds less likely: their positive logits are divided by "
             "it, negative ones multiplied.",
             {0, 1000, true, false});
  parser.add("num-samples", options.num_samples, "Continuations of each prompt.", {1, 1e6});
  parser.add("batch", options.batch, "Continuations that are drawn together. 0: all, at most 16.",
             {0, 4096});
  parser.add("seed", options.seed, "Seed of the draws.", {0, 9e15});
}

void check_options(const Options& options) {
  const int sources = (options.prompts.empty() ? 0 : 1) + (options.prompt_file.empty() ? 0 : 1) +
                      (options.interactive ? 1 : 0);
  if (sources > 1) {
    llmc::fail(ErrorKind::kConfig, "options",
               "expected one of --prompt, --prompt-file and --interactive, got ", sources);
  }
  if (options.greedy && options.temperature != 1) {
    llmc::fail(ErrorKind::kConfig, "options", "expected --greedy or --temperature, got both");
  }
}

void read_prompt(Options& options) {
  if (options.prompt_file == "-") {
    options.prompts.push_back(llmc::cli::read_standard_input());
  } else if (!options.prompt_file.empty()) {
    options.prompts.push_back(llmc::read_text(options.prompt_file));
  }
  if (options.prompts.empty()) options.prompts.emplace_back();
  for (const std::string& prompt : options.prompts) tokens_of(options, prompt);
}

llmc::cli::Work prepare(int argc, char** argv) {
  auto options = std::make_shared<Options>();
  llmc::cli::OptionParser parser(
      "sample",
      "Draws text from a trained model, up to its end-of-text token, a --stop text or\n"
      "--max-new-tokens. The same seed gives the same text.");
  add_options(parser, *options);
  if (!parser.parse(argc, argv)) return {};
  llmc::expect_one_process("sample");
  check_options(*options);
  options->model.open();
  const llmc::Tokenizer& tokenizer = options->model.need_tokenizer("text");
  const llmc::SampleOptions sampling = sample_options(*options, tokenizer);
  llmc::validate(sampling);
  llmc::TextStream(tokenizer, options->stops);
  if (!options->interactive) read_prompt(*options);

  constexpr std::int64_t kMostAtOnce = 16;
  const std::int64_t all =
      std::max<std::int64_t>(1, std::ssize(options->prompts)) * options->num_samples;
  const std::int64_t rows = std::min(all, options->batch == 0 ? kMostAtOnce : options->batch);
  const std::int64_t block_size = options->model.loader().config().block_size;
  const auto model = options->model.load((rows + block_size - 1) / block_size, 0);
  const auto sampler = std::make_shared<llmc::Sampler>(*model, sampling, rows);
  // The sampler works with the model, which must live as long.
  return [options, model, sampler, rows] {
    if (options->interactive) return talk(*options, *sampler, rows);
    print_speed(continue_prompts(*options, options->prompts, *sampler, rows));
    return static_cast<int>(llmc::cli::kDone);
  };
}

}  // namespace

int main(int argc, char** argv) {
  return llmc::cli::run_app("sample", argv, [&] { return prepare(argc, argv); });
}
