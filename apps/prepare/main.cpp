// Turns text into token files for training and validation.

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <vector>

#include "cli/app.h"
#include "cli/console.h"
#include "cli/options.h"
#include "cli/signals.h"
#include "llmc/comm/process_group.h"
#include "llmc/core/error.h"
#include "llmc/core/file.h"
#include "llmc/data/choices.h"
#include "llmc/data/prepare.h"
#include "llmc/data/token_file.h"

namespace {

constexpr double kLargest = 9e15;
constexpr double kMostThreads = 1024;
constexpr std::int64_t kDefaultCorpusBytes = 4'000'000;

struct Options {
  std::vector<std::string> inputs;
  std::string format = "auto";
  std::string field = "text";
  std::string tokenizer = "byte";
  std::string split;
  std::string delimiter;
  std::string choices;
  std::string corpus;
  std::int64_t bytes = 0;
  std::int64_t seed = 0;
  std::int64_t val_tokens = 0;
  std::int64_t val_documents = 0;
  double val_fraction = 0;
  bool val_shard = false;
  std::int64_t shard_tokens = 0;
  std::int64_t threads = 0;
  std::string out_dir;
  std::string name;

  bool operator==(const Options&) const = default;
};

bool parse(Options& options, int argc, char** argv) {
  llmc::cli::OptionParser parser("prepare",
                                 "Turns text into token files for training and validation.");
  parser.add_list("input", options.inputs,
                  "Files, glob patterns, folders with all their subfolders, or - for the standard "
                  "input. Gzip is inflated.");
  parser.add("format", options.format,
             "What they hold: text, jsonl (JSON Lines), or auto to go by the name (.jsonl).");
  parser.add("field", options.field, "The field of JSON Lines that holds a document.");
  parser.add("tokenizer", options.tokenizer, "byte, or a tokenizer's folder or file.");
  parser.add("split", options.split,
             "Where a document of a text ends, each being preceded by end-of-text: file (the "
             "default), blank-line, line, delimiter, or none for no end-of-text at all.");
  parser.add("delimiter", options.delimiter,
             "The text between two documents; --split delimiter goes without saying.");
  parser.add("choices", options.choices,
             "Instead: multiple choice examples, JSON Lines {ctx, endings, label}, for which "
             "NAME.bin in llm.c's format is written.");
  parser.add("corpus", options.corpus, "Write text from a built-in grammar instead: tales.");
  parser.add("bytes", options.bytes, "With --corpus: bytes of text at least. 0: 4 million.",
             {0, kLargest});
  parser.add("seed", options.seed,
             "With --corpus: which text. With --val-fraction: which documents.", {0, kLargest});
  parser.add("val-tokens", options.val_tokens,
             "The first tokens, kept for validation. 0: there is no validation file.",
             {0, kLargest});
  parser.add("val-documents", options.val_documents,
             "Instead: keep the first documents for validation.", {0, kLargest});
  parser.add("val-fraction", options.val_fraction,
             "Instead: the part of the documents, drawn by --seed, that is kept for validation.",
             {0, 1});
  parser.add_flag("val-shard", options.val_shard, "Instead: keep the first shard for validation.");
  parser.add("shard-tokens", options.shard_tokens,
             "Most tokens of a training file. 0: all in one file.",
             {0, static_cast<double>(llmc::kMaxTokensPerFile)});
  parser.add("threads", options.threads,
             "Threads that encode. 0: OMP_NUM_THREADS if set, else all processors.",
             {0, kMostThreads});
  parser.add("out-dir", options.out_dir, "Folder for the files. Default: data/NAME.");
  parser.add("name", options.name,
             "How the files' names begin. Default: the corpus, or the first input's name.");
  return parser.parse(argc, argv);
}

/// "tales", or "wiki" of the input texts/wiki.jsonl.gz.
std::string default_name(const Options& options) {
  if (options.inputs.empty()) return options.corpus;
  if (options.inputs.front() == "-") return "stdin";
  std::filesystem::path path = options.inputs.front();
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored))
    path = llmc::glob_files(options.inputs.front()).front();
  if (!path.has_filename()) path = path.parent_path();
  if (std::filesystem::is_directory(path, ignored)) {
    return std::filesystem::weakly_canonical(path).filename().string();
  }
  if (path.extension() == ".gz") path = path.stem();
  return path.stem().string();
}

llmc::PrepareOptions to_prepare_options(const Options& options) {
  llmc::PrepareOptions prepare;
  prepare.inputs = options.inputs;
  prepare.format = llmc::parse_input_format(options.format);
  prepare.field = options.field;
  const std::string split = options.delimiter.empty() ? "file" : "delimiter";
  prepare.split = llmc::parse_document_split(options.split.empty() ? split : options.split);
  prepare.delimiter = options.delimiter;
  prepare.corpus = options.corpus;
  const bool use_default = options.bytes == 0 && !options.corpus.empty();
  prepare.bytes = use_default ? kDefaultCorpusBytes : options.bytes;
  prepare.seed = static_cast<std::uint64_t>(options.seed);
  prepare.val_tokens = options.val_tokens;
  prepare.val_documents = options.val_documents;
  prepare.val_fraction = options.val_fraction;
  prepare.val_shard = options.val_shard;
  prepare.shard_tokens = options.shard_tokens;
  prepare.threads = static_cast<int>(options.threads);
  prepare.name = options.name.empty() ? default_name(options) : options.name;
  prepare.out_dir = options.out_dir;
  if (prepare.out_dir.empty()) prepare.out_dir = std::filesystem::path("data") / prepare.name;
  llmc::check_prepare_options(prepare);
  llmc::check_prepare_files(prepare);
  return prepare;
}

/// Shows how far the work has come: redrawn in place on a terminal, else a line now and then.
class ProgressLine {
 public:
  ~ProgressLine() { erase(); }

  void show(const llmc::PrepareProgress& progress) {
    const auto now = Clock::now();
    if (now - shown_ < (on_terminal_ ? kRedraw : kNextLine)) return;
    shown_ = now;
    const double seconds = std::chrono::duration<double>(now - began_).count();
    std::fprintf(stderr, "%s%.1fM tokens from %.1f MB of text | %.1f MB/s",
                 on_terminal_ ? "\r\033[K" : "", static_cast<double>(progress.tokens) / 1e6,
                 static_cast<double>(progress.bytes) / 1e6,
                 static_cast<double>(progress.bytes) / 1e6 / seconds);
    if (progress.done && *progress.done > 0) {
      std::fprintf(stderr, " | %.1f%% | %s left", 100 * *progress.done,
                   llmc::cli::duration(seconds * (1 / *progress.done - 1)).c_str());
    }
    if (!on_terminal_) std::fputc('\n', stderr);
    drawn_ = on_terminal_;
  }
  void erase() {
    if (drawn_) std::fputs("\r\033[K", stderr);
    drawn_ = false;
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::milliseconds kRedraw{200};
  static constexpr std::chrono::milliseconds kNextLine{30'000};

  const bool on_terminal_ = isatty(STDERR_FILENO) != 0;
  const Clock::time_point began_ = Clock::now();
  Clock::time_point shown_ = began_;
  bool drawn_ = false;  // the cursor stands behind it
};

void print(const llmc::DatasetInfo& info, const std::filesystem::path& folder) {
  std::printf("tokenizer %s, %lld ids\n", info.tokenizer.c_str(),
              static_cast<long long>(info.vocab_size));
  for (const llmc::TokenFileInfo& file : info.files) {
    std::printf("%s: %lld tokens, %lld documents, %lld bytes of text",
                (folder / file.file).string().c_str(), static_cast<long long>(file.tokens),
                static_cast<long long>(file.documents), static_cast<long long>(file.bytes));
    if (file.floor_bits_per_byte) {
      std::printf(", entropy %.4f bits per byte", *file.floor_bits_per_byte);
    }
    std::printf("\n");
  }
  std::fflush(stdout);
}

/// Writes a set of multiple choice examples, to which few other options apply.
llmc::cli::Work plan_choices(const Options& options) {
  Options applicable;
  applicable.choices = options.choices;
  applicable.tokenizer = options.tokenizer;
  applicable.out_dir = options.out_dir;
  applicable.name = options.name;
  if (options != applicable) {
    llmc::fail(llmc::ErrorKind::kConfig, "options",
               "--choices: expected only --tokenizer, --out-dir and --name with it, got others");
  }
  const std::filesystem::path input = options.choices;
  const std::string name = options.name.empty() ? input.stem().string() : options.name;
  const auto folder = options.out_dir.empty() ? std::filesystem::path("data") / name
                                              : std::filesystem::path(options.out_dir);
  const std::shared_ptr<llmc::Tokenizer> tokenizer = llmc::load_tokenizer(options.tokenizer);
  return [=] {
    llmc::make_folders(folder);
    const std::filesystem::path file = folder / (name + ".bin");
    const std::int64_t examples = llmc::write_choices(file, input, *tokenizer);
    std::printf("%s: %lld examples\n", file.string().c_str(), static_cast<long long>(examples));
    return static_cast<int>(llmc::cli::kDone);
  };
}

llmc::cli::Work plan(int argc, char** argv) {
  Options options;
  if (!parse(options, argc, argv)) return {};
  llmc::expect_one_process("prepare");
  if (!options.choices.empty()) return plan_choices(options);
  const auto prepare = to_prepare_options(options);
  const std::shared_ptr<llmc::Tokenizer> tokenizer = llmc::load_tokenizer(options.tokenizer);
  return [=] {
    const std::atomic<int>& signal = llmc::cli::watch_signals();
    ProgressLine line;
    const auto info = llmc::prepare_dataset(prepare, *tokenizer, [&](const auto& progress) {
      line.show(progress);
      return signal == 0;
    });
    line.erase();
    if (!info) return llmc::cli::kSignalled + signal.load();
    print(*info, prepare.out_dir);
    return static_cast<int>(llmc::cli::kDone);
  };
}

}  // namespace

int main(int argc, char** argv) {
  return llmc::cli::run_app("prepare", argv, [&] { return plan(argc, argv); });
}
