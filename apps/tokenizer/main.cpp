// Trains a tokenizer on text, or encodes and decodes with one.

#include <unistd.h>

#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <iostream>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cli/app.h"
#include "cli/options.h"
#include "llmc/comm/process_group.h"
#include "llmc/core/error.h"
#include "llmc/core/file.h"
#include "llmc/data/prepare.h"
#include "llmc/data/tokenizer.h"
#include "llmc/data/tokenizer_trainer.h"

namespace {

constexpr double kLargest = 1 << 30;

llmc::cli::Work plan_training(int argc, char** argv) {
  llmc::PrepareOptions inputs;
  llmc::TokenizerTrainerOptions options;
  std::string format = "auto";
  std::int64_t threads = 0;
  std::string out_dir;
  llmc::cli::OptionParser parser("tokenizer train",
                                 "Learns a byte-level BPE vocabulary and saves it as vocab.json, "
                                 "merges.txt and tokenizer.json.");
  parser.add_list("input", inputs.inputs,
                  "Text: files, glob patterns, folders with all they hold, or - for the standard "
                  "input; gzip is inflated.");
  parser.add("format", format,
             "What inputs hold: text, jsonl (JSON Lines), or auto, by the files' names.");
  parser.add("field", inputs.field, "Of JSON Lines: the name of the text.");
  parser.add("vocab-size", options.vocab_size,
             "Ids in all: 256 bytes, merges, <|endoftext|> and special tokens.", {257, kLargest});
  parser.add("min-frequency", options.min_frequency, "How often a pair must occur to be merged.",
             {1, 9e15});
  parser.add_list("special-tokens", options.special_tokens,
                  "Further special tokens, which no text encodes to.");
  parser.add("threads", threads,
             "Threads that read; the result does not depend on it. 0: OMP_NUM_THREADS if set, else "
             "the processors this process may use.",
             {0, 1024});
  parser.add("out-dir", out_dir, "Folder for the files.");
  parser.require("input");
  parser.require("out-dir");
  if (!parser.parse(argc, argv)) return {};
  llmc::expect_one_process("tokenizer");
  options.threads = static_cast<int>(threads);
  const auto trainer = std::make_shared<llmc::TokenizerTrainer>(options);
  inputs.format = llmc::parse_input_format(format);
  inputs.out_dir = out_dir;
  llmc::check_inputs(inputs);
  return [=] {
    const auto begin = std::chrono::steady_clock::now();
    const bool on_terminal = isatty(STDERR_FILENO) != 0;
    trainer->add_inputs(inputs, [&](std::int64_t bytes) {
      if (on_terminal) std::fprintf(stderr, "\r%.1f MB", static_cast<double>(bytes) / 1e6);
    });
    if (on_terminal) std::fputs("\r\033[K", stderr);
    const auto tokenizer = trainer->train();
    llmc::make_folders(out_dir);
    const llmc::FolderLock only_writer(out_dir);
    tokenizer->save(out_dir);
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - begin;
    std::printf("%s: %lld tokens from %.1f MB of text in %lld distinct pieces, %.1f s\n",
                out_dir.c_str(), static_cast<long long>(tokenizer->vocab_size()),
                static_cast<double>(trainer->bytes()) / 1e6,
                static_cast<long long>(trainer->pieces()), time.count());
    if (tokenizer->vocab_size() < options.vocab_size) {
      std::printf("fewer than the %lld asked for: no other pair occurs %lld times\n",
                  static_cast<long long>(options.vocab_size),
                  static_cast<long long>(options.min_frequency));
    }
    return llmc::cli::kDone;
  };
}

int encode_input(const llmc::Tokenizer& tokenizer) {
  const std::string text = llmc::cli::read_standard_input();
  std::string line;
  for (const std::int32_t id : tokenizer.encode(text)) {
    if (!line.empty()) line += ' ';
    line += std::to_string(id);
  }
  std::cout << line << '\n';
  return llmc::cli::kDone;
}

int decode_input(const llmc::Tokenizer& tokenizer) {
  llmc::StreamDecoder decoder(tokenizer);
  for (std::string word; std::cin >> word;) {
    std::int32_t id = 0;
    const auto parsed = std::from_chars(word.data(), word.data() + word.size(), id);
    if (parsed.ec != std::errc() || parsed.ptr != word.data() + word.size()) {
      llmc::fail(llmc::ErrorKind::kInput, "tokenizer", "expected token ids, got '", word, "'");
    }
    std::cout << decoder.push(id);
    if (std::cin.rdbuf()->in_avail() <= 0) std::cout.flush();
  }
  llmc::cli::check_standard_input();
  std::cout << decoder.finish();
  return llmc::cli::kDone;
}

llmc::cli::Work plan_filter(int argc, char** argv, bool encode) {
  std::string name;
  llmc::cli::OptionParser parser(
      encode ? "tokenizer encode" : "tokenizer decode",
      encode ? "Reads text from the standard input and prints its token ids."
             : "Reads token ids from the standard input and prints their text.");
  parser.add("tokenizer", name, "byte, or a tokenizer's folder or file.");
  parser.require("tokenizer");
  if (!parser.parse(argc, argv)) return {};
  llmc::expect_one_process("tokenizer");
  const std::shared_ptr<llmc::Tokenizer> tokenizer = llmc::load_tokenizer(name);
  return [=] { return encode ? encode_input(*tokenizer) : decode_input(*tokenizer); };
}

llmc::cli::Work plan(int argc, char** argv) {
  const std::string_view action = argc > 1 ? argv[1] : "--help";
  if (action == "train") return plan_training(argc - 1, argv + 1);
  if (action == "encode") return plan_filter(argc - 1, argv + 1, true);
  if (action == "decode") return plan_filter(argc - 1, argv + 1, false);
  if (action == "--help" || action == "-h") {
    std::puts(
        "Usage: tokenizer train|encode|decode [OPTIONS]\n"
        "  train    learns a byte-level BPE vocabulary from text\n"
        "  encode   turns the standard input into token ids\n"
        "  decode   turns token ids into text\n"
        "Each takes --help.");
    return {};
  }
  llmc::fail(llmc::ErrorKind::kConfig, "options", "expected train, encode or decode, got '", action,
             "'; see tokenizer --help");
}

}  // namespace

int main(int argc, char** argv) {
  std::ios::sync_with_stdio(false);
  return llmc::cli::run_app("tokenizer", argv, [&] { return plan(argc, argv); });
}
