// Measures the loss of a trained model on token files.

#include <algorithm>
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
#include "cli/options.h"
#include "llmc/core/file.h"
#include "llmc/data/dataset_info.h"
#include "llmc/data/token_file.h"
#include "llmc/infer/evaluator.h"
#include "llmc/train/run_folder.h"

namespace {

using Files = std::vector<std::filesystem::path>;

struct Options {
  std::string checkpoint;
  std::string data;
  std::string tokenizer;
  std::int64_t micro_batch = 4;
  std::int64_t seq_len = 0;
  std::int64_t threads = 0;
  bool json = false;
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
        if (id == tokenizer.end_of_text()) continue;
        bytes += static_cast<double>(tokenizer.token_bytes(id).size());
      }
      tokens += static_cast<double>(window.size());
    }
  }
  return bytes / tokens;
}

// JSON has no other numbers.
std::optional<double> finite(std::optional<double> value) {
  return value && std::isfinite(*value) ? value : std::nullopt;
}

std::string number(const char* format, double value) {
  char text[64];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

void print(const llmc::Evaluation& evaluation, std::optional<double> bytes_per_token,
           std::optional<double> floor, bool json) {
  const auto row = [&](const char* key, const char* label, const std::string& value, bool last) {
    std::cout << (json ? "\"" : "") << (json ? key : label) << (json ? "\":" : "") << value
              << (json ? (last ? "" : ",") : "\n");
  };
  const auto optional_number = [&](const std::optional<double>& value, const char* unknown) {
    return value ? number(json ? "%.9g" : "%.4f", *value) : std::string(unknown);
  };
  const auto measured = [&](double value, const char* format) {
    return json ? optional_number(finite(value), "null") : number(format, value);
  };
  std::optional<double> bits;
  if (bytes_per_token && *bytes_per_token > 0) bits = evaluation.bits_per_byte(*bytes_per_token);
  const char* unknown = json ? "null" : "n/a";
  if (json) std::cout << '{';
  row("tokens", "tokens         ", std::to_string(evaluation.counted_tokens), false);
  row("loss", "loss           ", measured(evaluation.mean_loss(), "%.6f"), false);
  row("perplexity", "perplexity     ", measured(evaluation.perplexity(), "%.4f"), false);
  row("bits_per_byte", "bits per byte  ", optional_number(finite(bits), unknown), false);
  row("entropy_bits_per_byte", "data's entropy ", optional_number(floor, unknown), true);
  if (json) std::cout << "}\n";
}

llmc::cli::Work prepare(int argc, char** argv) {
  auto options = std::make_shared<Options>();
  llmc::cli::OptionParser parser("eval", "Measures the loss of a trained model on token files.");
  parser.add(
      "checkpoint", options->checkpoint,
      "Run folder (its newest checkpoint), checkpoint, Hugging Face folder or llm.c model file.");
  parser.add("data", options->data, "Token files, as a glob pattern.");
  parser.add("tokenizer", options->tokenizer,
             "For models without one: byte, or a tokenizer's folder or file.");
  parser.add("micro-batch", options->micro_batch, "Sequences at a time.", {1, 1e6});
  parser.add("seq-len", options->seq_len, "Tokens of a sequence. 0: as many as the model takes.",
             {0, 1e7});
  parser.add("threads", options->threads, "Compute threads. 0: as for train.", {0, 1024});
  parser.add_flag("json", options->json, "Print one JSON object.");
  parser.require("checkpoint");
  parser.require("data");
  if (!parser.parse(argc, argv)) return {};

  llmc::ModelLoader loader(options->checkpoint);
  const Files files = llmc::glob_files(options->data);
  const std::shared_ptr<llmc::Tokenizer> tokenizer =
      llmc::load_model_tokenizer(loader, options->tokenizer);
  const std::string hash = tokenizer ? tokenizer->hash() : llmc::tokenizer_hash(loader);
  if (!hash.empty()) llmc::check_tokenizer(files, hash);
  for (const auto& file : files) llmc::TokenFile readable(file);
  const auto device = llmc::Device::open({.threads = static_cast<int>(options->threads)});
  llmc::TransformerOptions model_options;
  model_options.micro_batch = options->micro_batch;
  model_options.seq_len = options->seq_len;
  model_options.dtype = loader.dtype();
  model_options.training = false;
  auto model = std::make_shared<llmc::Transformer>(device, loader.config(), model_options);
  model->allocate();
  loader.read_weights(model->stream(), model->parameters());
  return [=] {
    const auto evaluation = llmc::Evaluator(*model).run(files, options->seq_len);
    std::optional<double> bytes = llmc::bytes_per_token(files);
    if (!bytes && tokenizer) bytes = decoded_bytes_per_token(files, *tokenizer);
    print(evaluation, bytes, llmc::floor_bits_per_byte(files), options->json);
    return llmc::cli::kDone;
  };
}

}  // namespace

int main(int argc, char** argv) {
  return llmc::cli::run_app("eval", argv, [&] { return prepare(argc, argv); });
}
