#include "data/dataset_name.h"

#include <algorithm>

#include "llmc/core/error.h"

namespace llmc {
namespace {

constexpr std::string_view kDigits = "0123456789";
constexpr std::size_t kShardDigits = 6;

bool remove_end(std::string_view& text, std::string_view end) {
  if (!text.ends_with(end)) return false;
  text.remove_suffix(end.size());
  return true;
}

}  // namespace

std::string token_file_name(std::string_view name, std::string_view part) {
  return concat(name, "_", part, ".bin");
}
std::string partial_folder_name(std::string_view name) {
  return concat(".", name, ".partial");
}
std::string sidecar_name(std::string_view name) {
  return concat(name, ".json");
}
std::string tokenizer_folder_name(std::string_view name) {
  return concat(name, "_tokenizer");
}

std::string token_shard_name(std::string_view name, std::string_view part, std::int64_t number) {
  const std::string digits = std::to_string(number);
  const std::string zeros(kShardDigits - std::min(kShardDigits, digits.size()), '0');
  return concat(name, "_", part, "_", zeros, digits, ".bin");
}

std::optional<std::string> dataset_name_of(std::string_view file_name) {
  if (!remove_end(file_name, ".bin")) return std::nullopt;
  if (!remove_end(file_name, "_val") && !remove_end(file_name, "_train")) {
    const std::size_t end = file_name.find_last_not_of(kDigits);
    if (end == file_name.npos || end + 1 == file_name.size()) return std::nullopt;
    file_name = file_name.substr(0, end + 1);
    if (!remove_end(file_name, "_train_") && !remove_end(file_name, "_val_")) return std::nullopt;
  }
  if (file_name.empty()) return std::nullopt;
  return std::string(file_name);
}

}  // namespace llmc
