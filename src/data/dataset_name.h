#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace llmc {

/// The names of a data set's files: NAME_val.bin; NAME_train.bin, or NAME_train_000001.bin and so
/// on; the sidecar NAME.json; and the folder NAME_tokenizer.
std::string val_file_name(std::string_view name);
std::string train_file_name(std::string_view name);
std::string train_shard_name(std::string_view name, std::int64_t number);
std::string sidecar_name(std::string_view name);
std::string tokenizer_folder_name(std::string_view name);

/// NAME, if the file is named like one of a data set's token files.
std::optional<std::string> dataset_name_of(std::string_view file_name);

}  // namespace llmc
