#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace llmc {

/// The names of a data set's files: NAME_val.bin or NAME_val_000000.bin; NAME_train.bin, or
/// NAME_train_000001.bin and so on; the sidecar NAME.json; the folder NAME_tokenizer; and while it
/// is being written, the folder .NAME.partial. `part` is "val" or "train".
std::string token_file_name(std::string_view name, std::string_view part);
std::string token_shard_name(std::string_view name, std::string_view part, std::int64_t number);
std::string partial_folder_name(std::string_view name);
std::string sidecar_name(std::string_view name);
std::string tokenizer_folder_name(std::string_view name);

/// NAME, if the file is named like one of a data set's token files.
std::optional<std::string> dataset_name_of(std::string_view file_name);

}  // namespace llmc
