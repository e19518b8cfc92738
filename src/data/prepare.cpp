#include "llmc/data/prepare.h"

#include <initializer_list>
#include <memory>
#include <mutex>
#include <system_error>
#include <utility>

#include "core/system_limits.h"
#include "data/dataset_name.h"
#include "data/dataset_writer.h"
#include "data/encode_block.h"
#include "data/input_files.h"
#include "data/ordered_pipeline.h"
#include "data/text_blocks.h"
#include "llmc/core/error.h"
#include "llmc/data/token_file.h"

namespace llmc {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kTextPerThread = std::int64_t{1} << 20;  // bytes on the way to the files
constexpr std::size_t kLongestDelimiter = 1024;

/// The value of an option that names one of a few.
template <class Value>
Value parse_name(std::string_view option, std::string_view text,
                 std::initializer_list<std::pair<std::string_view, Value>> names) {
  std::string expected;
  for (const auto& [name, value] : names) {
    if (text == name) return value;
    if (!expected.empty()) expected += &name == &(names.end() - 1)->first ? " or " : ", ";
    expected += name;
  }
  fail(ErrorKind::kConfig, "prepare", option, ": expected ", expected, ", got '", text, "'");
}

/// Bytes that all of the work amounts to; nothing if that is not known before the end.
std::optional<double> total_bytes(const PrepareOptions& options,
                                  const std::vector<InputFile>& inputs) {
  if (!options.corpus.empty()) return static_cast<double>(options.bytes);
  double total = 0;
  for (const InputFile& input : inputs) {
    if (input.is_standard_input()) return std::nullopt;
    total += static_cast<double>(input.bytes);
  }
  return total;
}

}  // namespace

DocumentSplit parse_document_split(std::string_view name) {
  return parse_name<DocumentSplit>("split", name,
                                   {{"blank-line", DocumentSplit::kBlankLine},
                                    {"line", DocumentSplit::kLine},
                                    {"file", DocumentSplit::kFile},
                                    {"delimiter", DocumentSplit::kDelimiter},
                                    {"none", DocumentSplit::kNone}});
}

InputFormat parse_input_format(std::string_view name) {
  return parse_name<InputFormat>("format", name,
                                 {{"auto", InputFormat::kByName},
                                  {"text", InputFormat::kText},
                                  {"jsonl", InputFormat::kJsonLines}});
}

void check_prepare_options(const PrepareOptions& options) {
  const auto require = [](bool holds, const auto&... message) {
    if (!holds) fail(ErrorKind::kConfig, "prepare", message...);
  };
  require(options.inputs.empty() != options.corpus.empty(),
          "expected either input files or a corpus, got ",
          options.inputs.empty() ? "neither" : "both");
  require(options.corpus.empty() || options.corpus == "tales",
          "corpus: expected tales, the only one there is, got '", options.corpus, "'");
  require(options.corpus.empty() || options.bytes >= 1, "bytes: expected 1 or more, got ",
          options.bytes);
  require(!options.corpus.empty() || options.bytes == 0,
          "bytes: expected this with a corpus only, got input files");
  require(!options.corpus.empty() || options.seed == 0 || options.val_fraction > 0,
          "seed: expected this with a corpus or val_fraction only, got neither");
  require(options.corpus.empty() || options.split == DocumentSplit::kFile ||
              options.split == DocumentSplit::kNone,
          "split: expected file or none with a corpus, whose tales are documents already");
  require(options.delimiter.empty() != (options.split == DocumentSplit::kDelimiter),
          "delimiter: expected a text with split = delimiter, and none with another");
  require(options.delimiter.size() <= kLongestDelimiter, "delimiter: expected at most ",
          kLongestDelimiter, " bytes, got ", options.delimiter.size());
  require(!options.field.empty(), "field: expected a name, got an empty one");
  require(options.val_tokens >= 0, "val_tokens: expected 0 or more, got ", options.val_tokens);
  require(options.val_fraction >= 0 && options.val_fraction < 1,
          "val_fraction: expected 0 or more and below 1, got ", options.val_fraction);
  require(options.val_documents >= 0, "val_documents: expected 0 or more, got ",
          options.val_documents);
  require((options.val_tokens > 0) + (options.val_documents > 0) + (options.val_fraction > 0) +
                  options.val_shard <=
              1,
          "expected one of val_tokens, val_documents, val_fraction and val_shard, got several");
  require(options.shard_tokens >= 0 && options.shard_tokens <= kMaxTokensPerFile,
          "shard_tokens: expected 0 to ", kMaxTokensPerFile, ", got ", options.shard_tokens);
  require(!options.val_shard || options.shard_tokens > 0,
          "val_shard: expected shard_tokens with it, got none");
  require((options.val_fraction == 0 && options.val_documents == 0) ||
              options.split != DocumentSplit::kNone,
          "val_fraction, val_documents: expected a text of documents, got split = none");
  require(options.threads >= 0 && options.threads <= kMaxThreads, "threads: expected 0 to ",
          kMaxThreads, ", got ", options.threads);
  require(!options.name.empty() && options.name.find('/') == std::string::npos,
          "name: expected the beginning of file names, got '", options.name, "'");
}

void check_inputs(const PrepareOptions& options) {
  list_inputs(options);
}

void check_prepare_files(const PrepareOptions& options) {
  const fs::path sidecar = options.out_dir / sidecar_name(options.name);
  std::error_code ignored;
  for (const InputFile& input : list_inputs(options)) {
    const fs::path& path = input.path;
    const bool replaced = dataset_name_of(path.filename().string()) == options.name &&
                          fs::equivalent(path.parent_path() / ".", options.out_dir, ignored);
    if (replaced || fs::equivalent(path, sidecar, ignored)) {
      fail(ErrorKind::kInput, "prepare", path.string(),
           ": expected a name that the data set does not take, got an input that it would replace; "
           "choose another name or out_dir");
    }
  }
  if (!fs::exists(sidecar, ignored)) return;
  try {
    read_dataset_info(sidecar);
  } catch (const Error&) {
    fail(ErrorKind::kInput, "prepare", sidecar.string(),
         ": expected a free name or the sidecar of a data set to replace, got another file; move "
         "it away or choose another name or out_dir");
  }
}

std::optional<DatasetInfo> prepare_dataset(
    const PrepareOptions& options, const Tokenizer& tokenizer,
    const std::function<bool(const PrepareProgress&)>& on_progress) {
  check_prepare_options(options);
  check_prepare_files(options);
  const std::vector<InputFile> inputs = list_inputs(options);
  const std::optional<double> total = total_bytes(options, inputs);
  std::mutex mutex;  // for the threads that read and write
  PrepareProgress progress;
  const auto go_on = [&] {
    const std::lock_guard lock(mutex);
    return !on_progress || on_progress(progress);
  };
  std::unique_ptr<BlockSource> source;
  if (options.corpus.empty()) {
    source = std::make_unique<FileBlocks>(inputs, options, go_on);
  } else {
    source = std::make_unique<TaleBlocks>(options.seed, options.bytes);
  }

  DatasetWriter writer(options, tokenizer);
  const auto append = [&](const EncodedBlock& block) {
    writer.append(block);
    const std::lock_guard lock(mutex);
    progress.tokens = writer.tokens();
    progress.bytes = writer.bytes();
    if (total) progress.done = *total > 0 ? static_cast<double>(block.consumed) / *total : 1.0;
  };
  const int threads = options.threads > 0 ? options.threads : default_threads();
  try {
    OrderedPipeline<TextBlock, EncodedBlock>(threads, threads * kTextPerThread)
        .run([&](TextBlock& block) { return source->next(block); },
             [](const TextBlock& block) { return static_cast<std::int64_t>(block.text.size()); },
             [&](const TextBlock& block) { return encode_block(block, options, tokenizer); },
             [&](const EncodedBlock& block) {
               append(block);
               return go_on();
             });
  } catch (const Error&) {
    if (go_on()) throw;
  }
  // Who is asked to stop may stop what feeds the standard input too: its end is then no real end,
  // and it may be in the middle of a line.
  if (!go_on()) return std::nullopt;
  return writer.publish();
}

}  // namespace llmc
