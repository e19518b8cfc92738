#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "llmc/data/dataset_info.h"
#include "llmc/data/tokenizer.h"

namespace llmc {

/// Where one document ends and the next begins. Each document is preceded by end-of-text.
enum class DocumentSplit {
  kBlankLine,  ///< after each "\n\n", which stays with the document before it (llm.c's rule)
  kLine,       ///< each line that is not empty, without its newline
  kFile,       ///< each file
  kNone,       ///< all files are one text, and no end-of-text is written
};

/// "blank-line", "line", "file", "none"; anything else is a config error that lists these.
DocumentSplit parse_document_split(std::string_view name);

struct PrepareOptions {
  std::vector<std::filesystem::path> inputs;  ///< text files, each read whole
  DocumentSplit split = DocumentSplit::kFile;

  std::string corpus;      ///< "tales": draw text in place of reading inputs; each is a document
  std::int64_t bytes = 0;  ///< with corpus: at least this much text
  std::uint64_t seed = 0;  ///< with corpus: which text

  std::int64_t val_tokens = 0;    ///< the first tokens go to NAME_val.bin; 0: there is no such file
  std::int64_t shard_tokens = 0;  ///< at most so many in a training file; 0: all in one
  std::filesystem::path out_dir;
  std::string name;
};

/// A config error that names the option if the options cannot be used.
void check_prepare_options(const PrepareOptions& options);

/// An input error that names the file if an input cannot be read or is given twice, or if the data
/// set would replace an input or a NAME.json that is no sidecar.
void check_prepare_files(const PrepareOptions& options);

/// Turns text into NAME_val.bin and NAME_train.bin in out_dir (NAME_train_000001.bin and so on with
/// shard_tokens), saves the tokenizer into NAME_tokenizer unless it is "byte", and writes the
/// sidecar NAME.json last. Until all is written, files stand in the hidden folder .NAME.partial, so
/// that an interrupted run leaves nothing that looks complete; files of an earlier run under the
/// same name are replaced. `on_progress` is called now and then with the tokens and the bytes of
/// text so far.
DatasetInfo prepare_dataset(
    const PrepareOptions& options, const Tokenizer& tokenizer,
    const std::function<void(std::int64_t tokens, std::int64_t bytes)>& on_progress = {});

}  // namespace llmc
