// GPT-2's vocabulary and merges files.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/json_text.h"
#include "data/bpe_tokenizer.h"
#include "data/byte_characters.h"
#include "data/vocabulary.h"
#include "llmc/core/error.h"
#include "llmc/core/file.h"

namespace llmc {
namespace {

namespace fs = std::filesystem;

BpeModel read_vocabulary(const fs::path& path) {
  const auto json = parse_json(read_text(path));
  if (!json.is_object()) {
    fail(ErrorKind::kInput, "tokenizer", path.string(),
         ": expected a JSON object that maps tokens to ids, got ",
         json.is_discarded() ? concat("no valid JSON of at most ", kMaxJsonLevels, " levels")
                             : json.type_name());
  }
  VocabularyReader reader(path.string(), json.size());
  for (const auto& [printed, id] : json.items()) reader.add(printed, id, printed == kEndOfText);
  BpeModel model = reader.finish();
  if (model.special.empty()) {
    fail(ErrorKind::kInput, "tokenizer", path.string(), ": expected the token '", kEndOfText,
         "' in the vocabulary, got none");
  }
  model.begin_of_text = model.end_of_text = model.special[0];
  return model;
}

void read_merges(const fs::path& path, BpeModel& model) {
  const std::string text = read_text(path);
  MergeReader reader(model);
  std::int64_t line_number = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    std::string_view line = std::string_view(text).substr(at, end - at);
    at = end + 1;
    ++line_number;
    if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
    if (line.empty() || (line_number == 1 && line.starts_with("#version"))) continue;
    const std::size_t space = std::min(line.find(' '), line.size());
    reader.add(line.substr(0, space), line.substr(std::min(space + 1, line.size())),
               concat(path.string(), ", line ", line_number));
  }
}

/// Tokens that are neither bytes nor what a merge yields are further special tokens: no text
/// becomes one.
void mark_special_tokens(BpeModel& model) {
  std::vector<bool> reached(static_cast<std::size_t>(model.tokens.size()));
  for (const MergeTable::Merge& merge : model.merges.merges()) {
    reached[static_cast<std::size_t>(merge.merged)] = true;
  }
  model.special.clear();
  for (std::int32_t id = 0; id < model.tokens.size(); ++id) {
    const bool text = reached[static_cast<std::size_t>(id)] || model.tokens[id].size() == 1;
    if (!text || id == model.end_of_text) model.special.push_back(id);
  }
}

}  // namespace

std::unique_ptr<Tokenizer> load_gpt2_tokenizer(const fs::path& vocab_json,
                                               const fs::path& merges_txt) {
  BpeModel model = read_vocabulary(vocab_json);
  read_merges(merges_txt, model);
  mark_special_tokens(model);
  return std::make_unique<BpeTokenizer>(std::move(model), BpeTokenizer::Files::kJson);
}

void save_gpt2_files(const fs::path& folder, const BpeModel& model) {
  std::string lines = "#version: 0.2\n";
  for (const MergeTable::Merge& merge : model.merges.merges()) {
    lines += to_printable(model.tokens[merge.left]) + ' ' +
             to_printable(model.tokens[merge.right]) + '\n';
  }
  write_text(folder / "merges.txt", lines);
  write_text(folder / "vocab.json", vocabulary_to_json(model) + "\n");
}

}  // namespace llmc
