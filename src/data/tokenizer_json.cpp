// Hugging Face's tokenizer.json, as far as it describes byte-level BPE.
#include <algorithm>
#include <array>
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
using nlohmann::json;

constexpr std::array kEnds{kEndOfText, std::string_view("<|end_of_text|>"),
                           std::string_view("</s>")};
constexpr std::string_view kLlama3Begin = "<|begin_of_text|>";

template <class... Parts>
[[noreturn]] void refuse(const fs::path& path, const Parts&... parts) {
  fail(ErrorKind::kInput, "tokenizer", path.string(), ": ", parts...);
}

/// A member, or null where there is none.
const json& member(const json& object, const char* key) {
  static const json null;
  const auto found = object.is_object() ? object.find(key) : object.end();
  return found == object.end() ? null : *found;
}

std::string shorten(const json& value) {
  std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
  return text.size() <= 120 ? text : text.substr(0, 120) + "...";
}

/// Whether a member is absent, null, or the value at which it changes nothing.
bool is_off(const json& object, const char* key, const json& off) {
  const json& value = member(object, key);
  return value.is_null() || value == off;
}

void check_byte_level(const fs::path& path, const json& step, bool with_pattern) {
  if (member(step, "type") != "ByteLevel") {
    refuse(path, "expected the pre-tokenizer ByteLevel, got ", shorten(step));
  }
  if (member(step, "add_prefix_space") != false) {
    refuse(path, "expected a pre-tokenizer with add_prefix_space false, got ", shorten(step));
  }
  if ((member(step, "use_regex") != false) != with_pattern) {
    refuse(path, "expected a pre-tokenizer that splits by one pattern, got ", shorten(step));
  }
}

SplitPattern read_pattern(const fs::path& path, const json& pre_tokenizer) {
  if (member(pre_tokenizer, "type") != "Sequence") {
    check_byte_level(path, pre_tokenizer, true);
    return SplitPattern::kGpt2;
  }
  const json& steps = member(pre_tokenizer, "pretokenizers");
  if (!steps.is_array() || steps.size() != 2 || member(steps[0], "type") != "Split" ||
      member(steps[0], "behavior") != "Isolated" || !is_off(steps[0], "invert", false)) {
    refuse(path, "expected the pre-tokenizer ByteLevel, or Split and ByteLevel, got ",
           shorten(pre_tokenizer));
  }
  check_byte_level(path, steps[1], false);
  const json& expression = member(member(steps[0], "pattern"), "Regex");
  for (const SplitPattern pattern : {SplitPattern::kGpt2, SplitPattern::kLlama3}) {
    if (expression == regular_expression(pattern)) return pattern;
  }
  refuse(path, "expected the splitting pattern of GPT-2 or of Llama 3, got ",
         shorten(member(steps[0], "pattern")));
}

void check_model(const fs::path& path, const json& root) {
  if (!root.is_object()) {
    refuse(path, "expected a JSON object, got ",
           root.is_discarded() ? concat("no valid JSON of at most ", kMaxJsonLevels, " levels")
                               : root.type_name());
  }
  const json& model = member(root, "model");
  if (!is_off(model, "type", "BPE")) {
    refuse(path, "expected a model of type BPE, got ", shorten(member(model, "type")));
  }
  if (!member(model, "vocab").is_object() || !member(model, "merges").is_array()) {
    refuse(path, "expected a model with an object 'vocab' and an array 'merges', got none");
  }
  if (!member(root, "normalizer").is_null()) {
    refuse(path, "expected no normalizer, got ", shorten(root["normalizer"]));
  }
  const std::pair<const char*, json> settings[] = {{"dropout", 0.0},
                                                   {"continuing_subword_prefix", ""},
                                                   {"end_of_word_suffix", ""},
                                                   {"byte_fallback", false}};
  for (const auto& [key, off] : settings) {
    if (!is_off(model, key, off)) {
      refuse(path, "expected a model without ", key, ", got ", shorten(model[key]));
    }
  }
}

BpeModel read_vocabulary(const fs::path& path, const json& root) {
  const json& vocab = root["model"]["vocab"];
  const json& added = member(root, "added_tokens");
  std::vector<std::string> names;
  std::size_t count = vocab.size();
  for (const json& token : added.is_array() ? added : json::array()) {
    const json& name = member(token, "content");
    if (!name.is_string() || member(token, "special") != true) {
      refuse(path, "expected added tokens with a content that are special, got ", shorten(token));
    }
    names.push_back(name.get<std::string>());
    const json& listed = member(vocab, names.back().c_str());
    if (listed.is_null()) ++count;
    if (!listed.is_null() && listed != member(token, "id")) {
      refuse(path, "expected the id ", shorten(listed), " of the vocabulary for an added token, ",
             "got ", shorten(token));
    }
  }
  VocabularyReader reader(path.string(), count);
  for (std::size_t i = 0; i < names.size(); ++i) reader.add(names[i], member(added[i], "id"), true);
  std::sort(names.begin(), names.end());
  for (const auto& [printed, id] : vocab.items()) {
    if (!std::binary_search(names.begin(), names.end(), printed)) reader.add(printed, id, false);
  }
  return reader.finish();
}

std::int32_t find_special(const BpeModel& model, std::string_view name, std::int32_t otherwise) {
  for (const std::int32_t id : model.special) {
    if (model.tokens[id] == name) return id;
  }
  return otherwise;
}

void find_ends(const fs::path& path, BpeModel& model) {
  model.end_of_text = -1;
  for (const std::string_view name : kEnds) {
    if (model.end_of_text < 0) model.end_of_text = find_special(model, name, -1);
  }
  if (model.end_of_text < 0) {
    refuse(path, "expected an added token ", kEnds[0], ", ", kEnds[1], " or ", kEnds[2],
           " that ends texts, got none");
  }
  model.begin_of_text = find_special(model, kLlama3Begin, model.end_of_text);
}

void read_merges(const fs::path& path, const json& merges, BpeModel& model) {
  MergeReader reader(model);
  for (std::size_t i = 0; i < merges.size(); ++i) {
    const json& merge = merges[i];
    const std::string where = concat(path.string(), ", merge ", i + 1);
    if (merge.is_string()) {
      const auto pair = merge.get<std::string>();
      const std::size_t space = std::min(pair.find(' '), pair.size());
      reader.add(pair.substr(0, space), pair.substr(std::min(space + 1, pair.size())), where);
    } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() &&
               merge[1].is_string()) {
      reader.add(merge[0].get<std::string>(), merge[1].get<std::string>(), where);
    } else {
      fail(ErrorKind::kInput, "tokenizer", where, ": expected two tokens, got ", shorten(merge));
    }
  }
}

}  // namespace

std::unique_ptr<Tokenizer> load_tokenizer_json(const fs::path& path) {
  const json root = parse_json(read_text(path));
  check_model(path, root);
  const SplitPattern pattern = read_pattern(path, member(root, "pre_tokenizer"));
  BpeModel model = read_vocabulary(path, root);
  model.pattern = pattern;
  model.whole_pieces = !is_off(root["model"], "ignore_merges", false);
  find_ends(path, model);
  read_merges(path, root["model"]["merges"], model);
  return std::make_unique<BpeTokenizer>(std::move(model), BpeTokenizer::Files::kJson);
}

void save_tokenizer_json(const fs::path& path, const BpeModel& model) {
  constexpr std::string_view kByteLevel =
      R"({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": )";
  std::string text = "{\n\"version\": \"1.0\", \"truncation\": null, \"padding\": null,\n";
  text += "\"added_tokens\": [";
  for (const std::int32_t id : model.special) {
    text += concat(id == model.special.front() ? "\n" : ",\n", "{\"id\": ", id,
                   ", \"content\": ", json(std::string(model.tokens[id])).dump(),
                   ", \"single_word\": false, ",
                   R"("lstrip": false, "rstrip": false, "normalized": false, "special": true})");
  }
  text += "],\n\"normalizer\": null,\n\"pre_tokenizer\": ";
  if (model.pattern == SplitPattern::kGpt2) {
    text += concat(kByteLevel, "true}");
  } else {
    text +=
        concat(R"({"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern": {"Regex": )",
               json(std::string(regular_expression(model.pattern))).dump(),
               R"(}, "behavior": "Isolated", "invert": false}, )", kByteLevel, "false}]}");
  }
  text += concat(",\n\"post_processor\": null,\n\"decoder\": ", kByteLevel, "true},\n\"model\": {",
                 R"("type": "BPE", "dropout": null, "unk_token": null, )",
                 R"("continuing_subword_prefix": null, "end_of_word_suffix": null, )",
                 R"("fuse_unk": false, "byte_fallback": false, "ignore_merges": )",
                 model.whole_pieces ? "true" : "false", ",\n\"vocab\": ");
  text += vocabulary_to_json(model);
  text += ",\n\"merges\": [";
  const char* separator = "\n";
  for (const MergeTable::Merge& merge : model.merges.merges()) {
    text += separator;
    text +=
        json(to_printable(model.tokens[merge.left]) + ' ' + to_printable(model.tokens[merge.right]))
            .dump();
    separator = ",\n";
  }
  write_text(path, text + "]}\n}\n");
}

}  // namespace llmc
