#include "llmc/data/dataset_info.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <system_error>

#include "core/json_text.h"
#include "data/dataset_name.h"
#include "llmc/core/error.h"
#include "llmc/core/file.h"
#include "llmc/data/token_file.h"
#include "llmc/data/tokenizer.h"

namespace llmc {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr const char* kFormat = "llmc dataset";
constexpr int kVersion = 1;

/// A value of the sidecar; anything but a T is an input error that names the key.
template <class T>
T value_of(const Json& object, const char* key, const fs::path& path) {
  try {
    return object.at(key).get<T>();
  } catch (const Json::exception&) {
    fail(ErrorKind::kInput, "dataset_info", path.string(), ": expected ",
         std::is_same_v<T, std::string> ? "a text" : "a value", " under '", key, "', got ",
         object.is_object() && object.contains(key) ? object.at(key).dump() : "none");
  }
}

std::int64_t count_of(const Json& object, const char* key, const fs::path& path) {
  const auto found = object.is_object() ? object.find(key) : object.end();
  if (found == object.end() || !found->is_number_integer() || found->get<std::int64_t>() < 0) {
    fail(ErrorKind::kInput, "dataset_info", path.string(), ": expected a count under '", key,
         "', got ", found == object.end() ? "none" : found->dump());
  }
  return found->get<std::int64_t>();
}

TokenFileInfo file_info(const Json& object, const fs::path& path) {
  TokenFileInfo info;
  info.file = value_of<std::string>(object, "file", path);
  info.tokens = count_of(object, "tokens", path);
  info.bytes = count_of(object, "bytes", path);
  if (object.contains("documents")) info.documents = count_of(object, "documents", path);
  if (object.contains("floor_bits_per_byte")) {
    info.floor_bits_per_byte = value_of<double>(object, "floor_bits_per_byte", path);
  }
  return info;
}

const TokenFileInfo* entry_of(const DatasetInfo& info, const fs::path& token_file) {
  const std::string name = token_file.filename().string();
  const auto found = std::find_if(info.files.begin(), info.files.end(),
                                  [&](const TokenFileInfo& file) { return file.file == name; });
  return found == info.files.end() ? nullptr : &*found;
}

/// What the sidecars say of each file; nothing unless they list all of them.
std::optional<std::vector<TokenFileInfo>> entries_of(const std::vector<fs::path>& token_files) {
  std::vector<TokenFileInfo> entries;
  for (const fs::path& path : token_files) {
    const auto info = find_dataset_info(path);
    if (!info) return std::nullopt;
    entries.push_back(*entry_of(*info, path));
  }
  return entries;
}

}  // namespace

void write_dataset_info(const fs::path& path, const DatasetInfo& info) {
  nlohmann::ordered_json json{{"format", kFormat},
                              {"version", kVersion},
                              {"tokenizer", info.tokenizer},
                              {"tokenizer_hash", info.tokenizer_hash},
                              {"vocab_size", info.vocab_size},
                              {"end_of_text", info.end_of_text}};
  json["source"] = info.source;
  json["files"] = Json::array();
  for (const TokenFileInfo& file : info.files) {
    nlohmann::ordered_json entry{{"file", file.file},
                                 {"tokens", file.tokens},
                                 {"bytes", file.bytes},
                                 {"documents", file.documents}};
    if (file.floor_bits_per_byte) entry["floor_bits_per_byte"] = *file.floor_bits_per_byte;
    json["files"].push_back(std::move(entry));
  }
  write_text(path, json.dump(2, ' ', false, Json::error_handler_t::replace) + '\n');
}

DatasetInfo read_dataset_info(const fs::path& path) {
  const Json json = parse_json(read_text(path));
  if (!json.is_object() || value_of<std::string>(json, "format", path) != kFormat) {
    fail(ErrorKind::kInput, "dataset_info", path.string(),
         ": expected a JSON object with \"format\": \"", kFormat, "\", got something else");
  }
  if (const std::int64_t version = count_of(json, "version", path); version != kVersion) {
    fail(ErrorKind::kInput, "dataset_info", path.string(), ": expected version ", kVersion,
         ", got ", version);
  }
  DatasetInfo info;
  info.tokenizer = value_of<std::string>(json, "tokenizer", path);
  info.tokenizer_hash = value_of<std::string>(json, "tokenizer_hash", path);
  info.vocab_size = count_of(json, "vocab_size", path);
  info.end_of_text = count_of(json, "end_of_text", path);
  if (json.contains("source")) {
    info.source = value_of<std::vector<std::string>>(json, "source", path);
  }
  if (!json.contains("files") || !json["files"].is_array()) {
    fail(ErrorKind::kInput, "dataset_info", path.string(), ": expected a list under 'files'");
  }
  for (const Json& file : json["files"]) info.files.push_back(file_info(file, path));
  return info;
}

std::optional<DatasetInfo> find_dataset_info(const fs::path& token_file) {
  const auto name = dataset_name_of(token_file.filename().string());
  if (!name) return std::nullopt;
  const fs::path sidecar = token_file.parent_path() / sidecar_name(*name);
  std::error_code ignored;
  if (!fs::is_regular_file(sidecar, ignored)) {
    // The files are put in place one by one, and the sidecar last.
    if (fs::is_directory(token_file.parent_path() / partial_folder_name(*name), ignored)) {
      fail(ErrorKind::kInput, "dataset_info", token_file.string(),
           ": expected a complete data set, got files of a prepare run that was interrupted; run "
           "prepare again");
    }
    return std::nullopt;
  }
  DatasetInfo info = read_dataset_info(sidecar);
  const TokenFileInfo* entry = entry_of(info, token_file);
  if (entry == nullptr) return std::nullopt;
  if (const std::int64_t tokens = TokenFile(token_file).size(); tokens != entry->tokens) {
    fail(ErrorKind::kInput, "dataset_info", token_file.string(), ": expected ", entry->tokens,
         " tokens as ", sidecar.string(), " says, got ", tokens, "; run prepare again");
  }
  return info;
}

std::string dataset_tokenizer(const fs::path& token_file) {
  const auto info = find_dataset_info(token_file);
  if (!info) return {};
  const std::string byte = make_byte_tokenizer()->name();
  if (info->tokenizer == byte) return byte;
  const auto name = dataset_name_of(token_file.filename().string());
  const fs::path folder = token_file.parent_path() / tokenizer_folder_name(*name);
  std::error_code ignored;
  return fs::is_directory(folder, ignored) ? folder.string() : std::string();
}

void check_tokenizer(const std::vector<fs::path>& token_files, std::string_view tokenizer_hash) {
  for (const fs::path& path : token_files) {
    const auto info = find_dataset_info(path);
    if (info && info->tokenizer_hash != tokenizer_hash) {
      fail(ErrorKind::kInput, "dataset_info", path.string(), ": expected tokens of the tokenizer ",
           tokenizer_hash, ", got those of another one, ", info->tokenizer, " (",
           info->tokenizer_hash, "); prepare the text again with the model's tokenizer");
    }
  }
}

std::optional<double> bytes_per_token(const std::vector<fs::path>& token_files) {
  const auto entries = entries_of(token_files);
  if (!entries) return std::nullopt;
  std::int64_t bytes = 0, tokens = 0;
  for (const TokenFileInfo& entry : *entries) {
    bytes += entry.bytes;
    tokens += entry.tokens;
  }
  if (bytes == 0) return std::nullopt;
  return static_cast<double>(bytes) / static_cast<double>(tokens);
}

std::optional<double> floor_bits_per_byte(const std::vector<fs::path>& token_files) {
  const auto entries = entries_of(token_files);
  if (!entries) return std::nullopt;
  double bits = 0, bytes = 0;
  for (const TokenFileInfo& entry : *entries) {
    if (!entry.floor_bits_per_byte) return std::nullopt;
    bits += *entry.floor_bits_per_byte * static_cast<double>(entry.bytes);
    bytes += static_cast<double>(entry.bytes);
  }
  if (bytes == 0) return std::nullopt;
  return bits / bytes;
}

}  // namespace llmc
