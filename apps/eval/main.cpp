// Measures a trained model: its loss on token files or text, its accuracy at multiple choice.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/app.h"
#include "cli/model.h"
#include "cli/options.h"
#include "cli/ranks.h"
#include "eval/report.h"
#include "llmc/comm/agreement.h"
#include "llmc/comm/communicator.h"
#include "llmc/comm/process_group.h"
#include "llmc/core/error.h"
#include "llmc/core/file.h"
#include "llmc/data/dataset_info.h"
#include "llmc/data/token_file.h"
#include "llmc/infer/evaluator.h"
#include "llmc/train/run_folder.h"

namespace {

using Files = std::vector<std::filesystem::path>;

struct Options {
  llmc::cli::ModelSource model;
  std::string data, text, choices, predictions;
  std::int64_t micro_batch = 4;
  std::int64_t seq_len = 0;
  bool json = false;
  Files data_files, text_files;
  std::vector<llmc::ChoiceExample> examples;
};

// What the average token stands for, by decoding all of them.
double decoded_bytes_per_token(const Files& files, const llmc::Tokenizer& tokenizer) {
  double bytes = 0, tokens = 0;
  for (const auto& path : files) {
    llmc::TokenFile file(path, tokenizer.vocab_size());
    std::vector<std::int32_t> window;
    for (std::int64_t begin = 0; begin < file.size(); begin += std::ssize(window)) {
      window.resize(static_cast<std::size_t>(std::min<std::int64_t>(file.size() - begin, 65536)));
      file.read(window, begin);
      for (const std::int32_t id : window) {
        if (id == tokenizer.begin_of_text()) continue;
        bytes += static_cast<double>(tokenizer.token_bytes(id).size());
      }
      tokens += static_cast<double>(window.size());
    }
  }
  return bytes / tokens;
}

llmc::cli::TextReport measure_data(const Options& options, llmc::Transformer& model) {
  llmc::cli::TextReport report;
  report.evaluation = llmc::Evaluator(model).run(options.data_files, options.seq_len);
  report.entropy_bits_per_byte = llmc::floor_bits_per_byte(options.data_files);
  std::optional<double> bytes = llmc::bytes_per_token(options.data_files);
  const auto& tokenizer = options.model.tokenizer();
  if (!bytes && tokenizer) bytes = decoded_bytes_per_token(options.data_files, *tokenizer);
  if (bytes && *bytes > 0) report.bits_per_byte = report.evaluation.bits_per_byte(*bytes);
  return report;
}

// Each file is a document, which begins after end-of-text.
llmc::cli::TextReport measure_text(const Options& options, llmc::Transformer& model) {
  const llmc::Tokenizer& tokenizer = *options.model.tokenizer();
  llmc::cli::TextReport report;
  double bytes = 0;
  for (const auto& path : options.text_files) {
    const std::string text = llmc::read_text(path);
    std::vector<std::int32_t> tokens = {tokenizer.begin_of_text()};
    tokenizer.encode(tokens, text);
    const auto part = llmc::Evaluator(model).run(tokens, options.seq_len);
    report.evaluation.loss_sum += part.loss_sum;
    report.evaluation.counted_tokens += part.counted_tokens;
    bytes += static_cast<double>(text.size());
  }
  const auto tokens = static_cast<double>(report.evaluation.counted_tokens);
  report.bits_per_byte = report.evaluation.bits_per_byte(bytes / tokens);
  return report;
}

llmc::cli::ChoiceReport ask(const Options& options, llmc::Transformer& model,
                            llmc::Communicator& ranks) {
  const auto began = std::chrono::steady_clock::now();
  const auto predictions = llmc::Evaluator(model).choose(options.examples, &ranks);
  llmc::cli::ChoiceReport report;
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  report.accuracy = llmc::accuracy_of(options.examples, predictions);
  if (!options.predictions.empty() && ranks.rank() == 0) {
    llmc::write_text(options.predictions,
                     llmc::cli::prediction_lines(options.examples, predictions));
  }
  return report;
}

// What the answers depend on.
void agree(const Options& options, llmc::Transformer& model, llmc::Communicator& ranks) {
  const auto weights = llmc::checksum_of(model.stream(), model.parameters());
  const auto questions = llmc::checksum_of(options.examples);
  llmc::expect_agreement(
      ranks, model.stream(),
      std::vector<llmc::Belief>{
          {"checkpoint", llmc::concat("weights of checksum ", weights)},
          {"seq-len", llmc::concat(options.seq_len)},
          {"choices", llmc::concat(options.examples.size(), ", checksum ", questions)}});
}

// Processes share the questions; losses each measures alone. Rank 0 reports.
int evaluate(const Options& options, llmc::Transformer& model, llmc::Communicator& ranks) {
  llmc::cli::Report report;
  if (!options.data_files.empty()) report.data = measure_data(options, model);
  if (!options.text_files.empty()) report.text = measure_text(options, model);
  if (!options.examples.empty()) report.choices = ask(options, model, ranks);
  if (ranks.rank() > 0) return llmc::cli::kDone;
  std::cout << (options.json ? llmc::cli::json_text(report) : llmc::cli::table_text(report));
  return llmc::cli::kDone;
}

void open_files(Options& options) {
  const auto& tokenizer = options.model.tokenizer();
  const llmc::ModelConfig& config = options.model.loader().config();
  if (!options.data.empty()) {
    options.data_files = llmc::glob_files(options.data);
    const std::string hash =
        tokenizer ? tokenizer->hash() : llmc::tokenizer_hash(options.model.loader());
    if (!hash.empty()) llmc::check_tokenizer(options.data_files, hash);
    for (const auto& file : options.data_files) llmc::TokenFile readable(file);
  }
  if (!options.text.empty()) {
    options.model.need_tokenizer("--text");
    options.text_files = llmc::glob_files(options.text);
    const bool all_empty =
        std::all_of(options.text_files.begin(), options.text_files.end(),
                    [](const auto& file) { return std::filesystem::file_size(file) == 0; });
    if (all_empty) {
      llmc::fail(llmc::ErrorKind::kInput, "eval", options.text, ": expected text, got none");
    }
  }
  if (!options.choices.empty()) {
    options.examples = llmc::read_choices(options.choices, tokenizer.get());
    llmc::check_choices(options.examples, config.vocab_size,
                        options.seq_len == 0 ? config.block_size : options.seq_len);
  }
}

llmc::cli::Work prepare(int argc, char** argv) {
  auto options = std::make_shared<Options>();
  llmc::cli::OptionParser parser(
      "eval",
      "Measures a trained model: loss, perplexity and bits per byte on token files (--data) or on\n"
      "text (--text), accuracy at multiple choice (--choices). At least one of them is needed.");
  options->model.add_options(parser);
  parser.add("data", options->data, "Token files, as a glob pattern.");
  parser.add("text", options->text,
             "Text files, as a glob pattern; turned into tokens by the model's tokenizer.");
  parser.add("choices", options->choices,
             "Questions: JSON Lines {\"ctx\": TEXT, \"endings\": [TEXTS], \"label\": NUMBER}, or "
             "llm.c's binary file, such as hellaswag_val.bin. acc takes the ending of the largest "
             "log-probability, acc_norm that per character, acc_token that per token (llm.c's).");
  parser.add("predictions", options->predictions,
             "With --choices: file to write the ending taken for each example to, as JSON Lines.");
  parser.add("micro-batch", options->micro_batch,
             "Sequences at a time; results do not depend on it.", {1, 1e6});
  parser.add("seq-len", options->seq_len, "Tokens of a sequence. 0: as many as the model takes.",
             {0, 1e7});
  parser.add_flag("json", options->json, "Print one JSON object.");
  if (!parser.parse(argc, argv)) return {};
  if (options->data.empty() && options->text.empty() && options->choices.empty()) {
    llmc::fail(llmc::ErrorKind::kConfig, "options",
               "expected --data, --text or --choices, got none; see eval --help");
  }
  if (!options->predictions.empty() && options->choices.empty()) {
    llmc::fail(llmc::ErrorKind::kConfig, "options",
               "--predictions: expected --choices as well, got none");
  }
  options->model.open();
  open_files(*options);
  const auto processes = llmc::cli::join("eval", {});
  llmc::cli::log_as_one("eval", *processes);
  return llmc::cli::or_give_up(*processes, [&]() -> llmc::cli::Work {
    const auto place = llmc::cli::place_of(*processes);
    const auto model = options->model.load(options->micro_batch, options->seq_len, place);
    const std::shared_ptr<llmc::Communicator> ranks =
        llmc::Communicator::open(model->stream().device(), processes);
    agree(*options, *model, *ranks);
    return [=] {
      return llmc::cli::or_give_up(*processes, [&] { return evaluate(*options, *model, *ranks); });
    };
  });
}

}  // namespace

int main(int argc, char** argv) {
  return llmc::cli::run_app("eval", argv, [&] { return prepare(argc, argv); });
}
