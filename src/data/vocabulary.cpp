#include "data/vocabulary.h"

#include <algorithm>

#include "data/byte_characters.h"
#include "llmc/core/error.h"

namespace llmc {

void VocabularyReader::add(const std::string& printed, const nlohmann::json& id, bool special) {
  const auto bytes = special ? printed : from_printable(printed);
  if (!bytes || bytes->empty()) {
    fail(ErrorKind::kInput, "tokenizer", where_,
         ": expected tokens written in GPT-2's byte characters, got '", printed, "'");
  }
  const bool usable = id.is_number_unsigned() && id.get<std::uint64_t>() < tokens_.size() &&
                      !taken_[id.get<std::size_t>()];
  if (!usable) {
    fail(ErrorKind::kInput, "tokenizer", where_, ": expected the ids 0 to ",
         static_cast<std::int64_t>(tokens_.size()) - 1, ", each once, got ", id.dump(),
         " for the token '", printed, "'");
  }
  const auto place = id.get<std::size_t>();
  taken_[place] = true;
  tokens_[place] = *bytes;
  if (special) special_.push_back(static_cast<std::int32_t>(place));
}

BpeModel VocabularyReader::finish() {
  BpeModel model;
  for (const std::string& token : tokens_) model.tokens.push_back(token);
  std::sort(special_.begin(), special_.end());
  model.special = special_;
  std::array<std::int32_t, 256> id_of_byte;
  if (const std::string wrong = find_bytes(model, id_of_byte); !wrong.empty()) {
    fail(ErrorKind::kInput, "tokenizer", where_,
         ": expected one token for every byte, got a vocabulary where ", wrong);
  }
  return model;
}

MergeReader::MergeReader(BpeModel& model) : model_(model) {
  for (std::int32_t id = 0; id < model.tokens.size(); ++id) {
    if (!std::binary_search(model.special.begin(), model.special.end(), id)) {
      index_.add(model.tokens, id);
    }
  }
}

std::int32_t MergeReader::required_id(const std::string& token, const std::string& where) const {
  const std::int32_t id = index_.find(model_.tokens, token);
  if (id == TokenIndex::kNone) {
    fail(ErrorKind::kInput, "tokenizer", where, ": expected the token '", to_printable(token),
         "' in the vocabulary, got none");
  }
  return id;
}

void MergeReader::add(std::string_view left, std::string_view right, const std::string& where) {
  const auto left_bytes = from_printable(left);
  const auto right_bytes = from_printable(right);
  if (!left_bytes || !right_bytes || left_bytes->empty() || right_bytes->empty()) {
    fail(ErrorKind::kInput, "tokenizer", where,
         ": expected two tokens with one space between them, got '", left.substr(0, 80), "' and '",
         right.substr(0, 80), "'");
  }
  const bool added =
      model_.merges.add({required_id(*left_bytes, where), required_id(*right_bytes, where),
                         required_id(*left_bytes + *right_bytes, where)});
  if (!added) {
    fail(ErrorKind::kInput, "tokenizer", where, ": expected each pair once, got '",
         left.substr(0, 80), " ", right.substr(0, 80), "' again");
  }
}

std::string vocabulary_to_json(const BpeModel& model) {
  std::string text = "{";
  for (std::int32_t id = 0; id < model.tokens.size(); ++id) {
    const bool special = std::binary_search(model.special.begin(), model.special.end(), id);
    const std::string_view token = model.tokens[id];
    const std::string printed = special ? std::string(token) : to_printable(token);
    text += id == 0 ? "" : ", ";
    text += nlohmann::json(printed).dump();
    text += ": ";
    text += std::to_string(id);
  }
  return text + "}";
}

}  // namespace llmc
