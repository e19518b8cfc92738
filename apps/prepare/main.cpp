// Turns text into token files for training and validation.

#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "cli/app.h"
#include "cli/options.h"
#include "llmc/core/file.h"
#include "llmc/data/prepare.h"
#include "llmc/data/token_file.h"

namespace {

constexpr double kLargest = 9e15;
constexpr std::int64_t kDefaultCorpusBytes = 4'000'000;

struct Options {
  std::vector<std::string> inputs;
  std::string tokenizer = "byte";
  std::string split = "file";
  std::string corpus;
  std::int64_t bytes = 0;
  std::int64_t seed = 0;
  std::int64_t val_tokens = 0;
  std::int64_t shard_tokens = 0;
  std::string out_dir;
  std::string name;
};

bool parse(Options& options, int argc, char** argv) {
  llmc::cli::OptionParser parser("prepare",
                                 "Turns text into token files for training and validation.");
  parser.add_list("input", options.inputs, "Text files, by name or glob pattern.");
  parser.add("tokenizer", options.tokenizer, "byte, or a tokenizer's folder or file.");
  parser.add(
      "split", options.split,
      "Where a document ends, each being preceded by end-of-text: blank-line, line, file, or "
      "none for no end-of-text at all.");
  parser.add("corpus", options.corpus, "Write text from a built-in grammar instead: tales.");
  parser.add("bytes", options.bytes, "With --corpus: bytes of text at least. 0: 4 million.",
             {0, kLargest});
  parser.add("seed", options.seed, "With --corpus: which text.", {0, kLargest});
  parser.add("val-tokens", options.val_tokens,
             "The first tokens, kept for validation. 0: there is no validation file.",
             {0, kLargest});
  parser.add("shard-tokens", options.shard_tokens,
             "Most tokens of a training file. 0: all in one file.",
             {0, static_cast<double>(llmc::kMaxTokensPerFile)});
  parser.add("out-dir", options.out_dir, "Folder for the files. Default: data/NAME.");
  parser.add("name", options.name,
             "How the files' names begin. Default: the corpus, or the first input's name.");
  return parser.parse(argc, argv);
}

llmc::PrepareOptions to_prepare_options(const Options& options) {
  llmc::PrepareOptions prepare;
  for (const std::string& input : options.inputs) {
    for (auto& path : llmc::glob_files(input)) prepare.inputs.push_back(std::move(path));
  }
  prepare.split = llmc::parse_document_split(options.split);
  prepare.corpus = options.corpus;
  const bool use_default = options.bytes == 0 && !options.corpus.empty();
  prepare.bytes = use_default ? kDefaultCorpusBytes : options.bytes;
  prepare.seed = static_cast<std::uint64_t>(options.seed);
  prepare.val_tokens = options.val_tokens;
  prepare.shard_tokens = options.shard_tokens;
  prepare.name = options.name;
  if (prepare.name.empty()) {
    prepare.name = prepare.inputs.empty() ? prepare.corpus : prepare.inputs.front().stem().string();
  }
  prepare.out_dir = options.out_dir;
  if (prepare.out_dir.empty()) prepare.out_dir = std::filesystem::path("data") / prepare.name;
  llmc::check_prepare_options(prepare);
  llmc::check_prepare_files(prepare);
  return prepare;
}

void print(const llmc::DatasetInfo& info, const std::filesystem::path& folder) {
  std::printf("tokenizer %s, %lld ids\n", info.tokenizer.c_str(),
              static_cast<long long>(info.vocab_size));
  for (const llmc::TokenFileInfo& file : info.files) {
    std::printf("%s: %lld tokens, %lld bytes of text", (folder / file.file).string().c_str(),
                static_cast<long long>(file.tokens), static_cast<long long>(file.bytes));
    if (file.floor_bits_per_byte) {
      std::printf(", entropy %.4f bits per byte", *file.floor_bits_per_byte);
    }
    std::printf("\n");
  }
  std::fflush(stdout);
}

llmc::cli::Work plan(int argc, char** argv) {
  Options options;
  if (!parse(options, argc, argv)) return {};
  const auto prepare = to_prepare_options(options);
  const std::shared_ptr<llmc::Tokenizer> tokenizer = llmc::load_tokenizer(options.tokenizer);
  return [=] {
    const bool on_terminal = isatty(STDERR_FILENO) != 0;
    const auto info =
        llmc::prepare_dataset(prepare, *tokenizer, [&](std::int64_t tokens, std::int64_t bytes) {
          if (!on_terminal) return;
          std::fprintf(stderr, "\r%.1fM tokens from %.1f MB of text",
                       static_cast<double>(tokens) / 1e6, static_cast<double>(bytes) / 1e6);
        });
    if (on_terminal) std::fputs("\r\033[K", stderr);
    print(info, prepare.out_dir);
    return llmc::cli::kDone;
  };
}

}  // namespace

int main(int argc, char** argv) {
  return llmc::cli::run_app("prepare", argv, [&] { return plan(argc, argv); });
}
