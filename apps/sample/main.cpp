// Draws text from a trained model.

#include <chrono>
#include <cstdint>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "cli/app.h"
#include "cli/options.h"
#include "llmc/core/error.h"
#include "llmc/infer/sampler.h"
#include "llmc/train/run_folder.h"

namespace {

struct Options {
  std::string checkpoint;
  std::string prompt;
  std::string tokenizer;
  std::int64_t max_new_tokens = 256;
  double temperature = 1;
  std::int64_t top_k = 0;
  double top_p = 1;
  std::int64_t num_samples = 1;
  std::int64_t seed = 42;
  std::int64_t threads = 0;
};

llmc::SampleOptions sample_options(const Options& options, const llmc::Tokenizer& tokenizer) {
  llmc::SampleOptions out;
  out.temperature = static_cast<float>(options.temperature);
  out.top_k = options.top_k;
  out.top_p = static_cast<float>(options.top_p);
  out.seed = static_cast<std::uint64_t>(options.seed);
  out.vocab_size = tokenizer.vocab_size();
  out.end_of_text = tokenizer.end_of_text();
  return out;
}

int sample(const Options& options, llmc::Transformer& model, const llmc::Tokenizer& tokenizer) {
  // Documents of the training data begin after end-of-text, so a prompt does too.
  std::vector<std::int32_t> prompt = {tokenizer.end_of_text()};
  tokenizer.encode(prompt, options.prompt);
  llmc::Sampler sampler(model, sample_options(options, tokenizer));
  std::int64_t tokens = 0;
  const auto began = std::chrono::steady_clock::now();
  for (std::int64_t i = 0; i < options.num_samples; ++i) {
    if (i > 0) std::cout << "\n---\n";
    std::cout << options.prompt << std::flush;
    llmc::StreamDecoder decoder(tokenizer);
    const auto print = [&](std::int32_t id) {
      ++tokens;
      if (id != tokenizer.end_of_text()) std::cout << decoder.push(id) << std::flush;
      return static_cast<bool>(std::cout);
    };
    sampler.generate(prompt, options.max_new_tokens, print, i);
    std::cout << decoder.finish();
  }
  std::cout << std::endl;
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  std::cerr << tokens << " tokens in " << seconds << " s, " << static_cast<double>(tokens) / seconds
            << " tok/s\n";
  return llmc::cli::kDone;
}

llmc::cli::Work prepare(int argc, char** argv) {
  auto options = std::make_shared<Options>();
  llmc::cli::OptionParser parser(
      "sample",
      "Draws text from a trained model, up to its end-of-text token or --max-new-tokens.");
  parser.add(
      "checkpoint", options->checkpoint,
      "Run folder (its newest checkpoint), checkpoint, Hugging Face folder or llm.c model file.");
  parser.add("prompt", options->prompt, "Text to continue.");
  parser.add("max-new-tokens", options->max_new_tokens, "Longest continuation.", {1, 1e9});
  parser.add("temperature", options->temperature, "Logits are divided by it. 0: likeliest token.",
             {0, 1000});
  parser.add("top-k", options->top_k, "Draw among the k likeliest tokens. 0: all.", {0, 1e9});
  parser.add("top-p", options->top_p, "Draw among the fewest tokens of this probability.",
             {0, 1, true, false});
  parser.add("num-samples", options->num_samples, "Continuations to draw.", {1, 1e9});
  parser.add("seed", options->seed, "Seed of the draws.", {0, 9e15});
  parser.add("tokenizer", options->tokenizer,
             "For models without one: byte, or a tokenizer's folder or file.");
  parser.add("threads", options->threads, "Compute threads. 0: as for train.", {0, 1024});
  parser.require("checkpoint");
  if (!parser.parse(argc, argv)) return {};

  llmc::ModelLoader loader(options->checkpoint);
  const std::shared_ptr<llmc::Tokenizer> tokenizer =
      llmc::load_model_tokenizer(loader, options->tokenizer);
  if (!tokenizer) {
    llmc::fail(llmc::ErrorKind::kConfig, "options", "--tokenizer: expected one, as ",
               loader.source().string(), " comes without",
               loader.checkpoint() ? "; a run keeps its own in RUN/tokenizer" : "");
  }
  llmc::validate(sample_options(*options, *tokenizer));
  const auto device = llmc::Device::open({.threads = static_cast<int>(options->threads)});
  llmc::TransformerOptions model_options;
  model_options.dtype = loader.dtype();
  model_options.training = false;
  auto model = std::make_shared<llmc::Transformer>(device, loader.config(), model_options);
  model->allocate();
  loader.read_weights(model->stream(), model->parameters());
  return [=] { return sample(*options, *model, *tokenizer); };
}

}  // namespace

int main(int argc, char** argv) {
  return llmc::cli::run_app("sample", argv, [&] { return prepare(argc, argv); });
}
