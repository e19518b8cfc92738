#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "data/bpe_tokenizer.h"

namespace llmc {

/// Reads what vocab.json with merges.txt and tokenizer.json have in common: a vocabulary of printed
/// tokens with ids in any order, then merges of printed tokens.
class VocabularyReader {
 public:
  /// `where`: the file, for errors. The ids must turn out to be 0 to `count` - 1.
  VocabularyReader(std::string where, std::size_t count)
      : where_(std::move(where)), tokens_(count), taken_(count) {}

  /// A token and its id, as JSON has it. A special token is its name, others are byte characters.
  void add(const std::string& printed, const nlohmann::json& id, bool special);
  /// After the last of `count` tokens: the model without merges, its special tokens being those
  /// that were added as such.
  BpeModel finish();

 private:
  std::string where_;
  std::vector<std::string> tokens_;
  std::vector<bool> taken_;
  std::vector<std::int32_t> special_;
};

class MergeReader {
 public:
  /// Adds merges to a model, which must outlive the reader.
  explicit MergeReader(BpeModel& model);
  /// The next merge. `where`: the file and the place in it.
  void add(std::string_view left, std::string_view right, const std::string& where);

 private:
  std::int32_t required_id(const std::string& token, const std::string& where) const;

  BpeModel& model_;
  TokenIndex index_;
};

/// The vocabulary as a JSON object from printed token to id.
std::string vocabulary_to_json(const BpeModel& model);

}  // namespace llmc
