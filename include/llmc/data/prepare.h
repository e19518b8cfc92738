#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "llmc/data/dataset_info.h"
#include "llmc/data/tokenizer.h"

namespace llmc {

/// Where one document of a text ends and the next begins. Each document is preceded by
/// end-of-text; one that is empty is left out.
enum class DocumentSplit {
  kBlankLine,  ///< after each "\n\n", which stays with the document before it (llm.c's rule)
  kLine,       ///< each line, without its newline
  kFile,       ///< each file
  kDelimiter,  ///< at each `delimiter`, which belongs to no document
  kNone,       ///< all files are one text, and no end-of-text is written
};

/// "blank-line", "line", "file", "delimiter", "none"; anything else is a config error that lists
/// these.
DocumentSplit parse_document_split(std::string_view name);

/// What the inputs hold.
enum class InputFormat {
  kByName,     ///< JSON Lines where the name ends in .jsonl or .jsonl.gz, else text
  kText,       ///< documents as DocumentSplit says
  kJsonLines,  ///< one JSON object a line, which holds a document under `field`
};

/// "auto", "text", "jsonl"; anything else is a config error that lists these.
InputFormat parse_input_format(std::string_view name);

struct PrepareOptions {
  /// Files, patterns (`*`, `?`, `[...]`), folders, or "-" for the standard input, once at most.
  /// Of a folder all files are read, those in its subfolders too, sorted by path; names that begin
  /// with a dot are left out. Whatever is compressed with gzip is inflated.
  std::vector<std::string> inputs;
  InputFormat format = InputFormat::kByName;
  std::string field = "text";
  DocumentSplit split = DocumentSplit::kFile;  ///< of text; JSON Lines are split already
  std::string delimiter;                       ///< with kDelimiter

  std::string corpus;      ///< "tales": draw text in place of reading inputs; each is a document
  std::int64_t bytes = 0;  ///< with corpus: at least this much text
  std::uint64_t seed = 0;  ///< which text of the corpus, or which documents val_fraction takes

  // At most one of the four is given; without any there is no validation file.
  std::int64_t val_tokens = 0;     ///< the first tokens go to NAME_val.bin
  std::int64_t val_documents = 0;  ///< the first documents go to NAME_val.bin
  double val_fraction = 0;  ///< this part of the documents, drawn by seed, goes to NAME_val.bin
  bool val_shard = false;   ///< the first shard is NAME_val_000000.bin

  std::int64_t shard_tokens = 0;  ///< at most so many in a training file; 0: all in one
  int threads = 0;  ///< 0: OMP_NUM_THREADS if set, else the processors this process may run on
  std::filesystem::path out_dir;
  std::string name;
};

struct PrepareProgress {
  std::int64_t tokens = 0;  ///< end-of-text tokens included
  std::int64_t bytes = 0;   ///< of text, inflated and unescaped
  /// Part of the input that has been read, 0 to 1; nothing where its size is not known.
  std::optional<double> done;
};

/// A config error that names the option if the options cannot be used.
void check_prepare_options(const PrepareOptions& options);

/// An input error that names the file if an input is missing, cannot be read, is given twice, or
/// lies in a folder that holds out_dir.
void check_inputs(const PrepareOptions& options);

/// The same, and if the data set would replace an input or a NAME.json that is no sidecar.
void check_prepare_files(const PrepareOptions& options);

/// Turns text into NAME_val.bin and NAME_train.bin in out_dir (NAME_train_000001.bin and so on with
/// shard_tokens), saves the tokenizer into NAME_tokenizer unless it is "byte", and writes the
/// sidecar NAME.json last. Until all is written, files stand in the hidden folder .NAME.partial, so
/// that an interrupted run leaves nothing that looks complete; files of an earlier run under the
/// same name are replaced.
///
/// The files do not depend on the number of threads. Memory stays below 16 MiB and 8 MiB a thread,
/// whatever the sizes of files and documents; only a line of JSON is held whole (up to 256 MiB). A
/// longer text is encoded in parts, cut where that changes no token; should 1 MiB of it hold no
/// such place, it is cut there between two characters.
///
/// `on_progress` is called now and then, by one thread at a time, and returns false to stop: then
/// what was written is removed and nothing is returned.
std::optional<DatasetInfo> prepare_dataset(
    const PrepareOptions& options, const Tokenizer& tokenizer,
    const std::function<bool(const PrepareProgress&)>& on_progress = {});

}  // namespace llmc
