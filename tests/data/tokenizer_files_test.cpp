// tokenizer.json and rank files. tests/golden/tokenizers holds what Hugging Face's library and
// tiktoken make of them (python_ref/write_tokenizer_golden.py).
#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>
#include <string>

#include "data/bpe_tokenizer.h"
#include "llmc/core/file.h"
#include "llmc/data/tokenizer.h"
#include "support/temp_folder.h"
#include "support/test_data.h"

namespace llmc {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::expect_error;
using testing::TempFolder;
using testing::test_data_folder;
using Ids = std::vector<std::int32_t>;

const fs::path kGolden = fs::path(LLMC_GOLDEN_DIR) / "tokenizers";

struct Case {
  std::string text;
  Ids ids;
};

std::vector<Case> read_cases(const fs::path& path, const char* ids_key) {
  std::vector<Case> cases;
  std::istringstream lines(read_text(path));
  for (std::string line; std::getline(lines, line);) {
    const json node = json::parse(line);
    cases.push_back({node["text"].get<std::string>(), node[ids_key].get<Ids>()});
  }
  return cases;
}

void expect_cases(const Tokenizer& tokenizer, const std::vector<Case>& cases) {
  for (const Case& one : cases) {
    ASSERT_EQ(tokenizer.encode(one.text), one.ids) << one.text;
    ASSERT_EQ(tokenizer.decode(one.ids), one.text);
  }
}

std::unique_ptr<Tokenizer> small_llama3_ranks() {
  BpeModel model = read_tiktoken_file(kGolden / "small_llama3.tiktoken");
  add_merges_by_rank(model);
  model.pattern = SplitPattern::kLlama3;
  model.whole_pieces = true;
  return std::make_unique<BpeTokenizer>(std::move(model), BpeTokenizer::Files::kRanks);
}

TEST(TokenizerJsonTest, EncodesAsTheLibraryThatWroteIt) {
  const auto gpt2 = load_tokenizer(kGolden / "small_gpt2.json");
  EXPECT_EQ(gpt2->name(), "bpe");
  EXPECT_EQ(gpt2->vocab_size(), 701);
  EXPECT_EQ(gpt2->end_of_text(), 700);
  EXPECT_EQ(gpt2->begin_of_text(), 700);
  const auto gpt2_cases = read_cases(kGolden / "cases.jsonl", "gpt2");
  EXPECT_EQ(gpt2_cases.size(), 98u);
  expect_cases(*gpt2, gpt2_cases);
  const auto llama3 = load_tokenizer(kGolden / "small_llama3.json");
  EXPECT_EQ(llama3->vocab_size(), 702);
  EXPECT_EQ(llama3->begin_of_text(), 700);
  EXPECT_EQ(llama3->end_of_text(), 701);
  EXPECT_EQ(llama3->token_bytes(701), "<|end_of_text|>");
  expect_cases(*llama3, read_cases(kGolden / "cases.jsonl", "llama3"));
}

TEST(TokenizerJsonTest, SavedTokenizersLoadAgain) {
  const TempFolder folder;
  for (const std::string name : {"gpt2", "llama3"}) {
    const auto tokenizer = load_tokenizer(kGolden / ("small_" + name + ".json"));
    tokenizer->save(folder / "saved");
    EXPECT_EQ(fs::exists(folder / "saved/vocab.json"), name == "gpt2");
    const auto again = load_tokenizer(folder / "saved");
    EXPECT_EQ(again->hash(), tokenizer->hash());
    EXPECT_EQ(again->begin_of_text(), tokenizer->begin_of_text());
    expect_cases(*again, read_cases(kGolden / "cases.jsonl", name.c_str()));
  }
  load_tokenizer(kGolden / "small_gpt2.json")->save(folder / "saved");
  const auto pair = load_tokenizer(folder / "saved/vocab.json");
  expect_cases(*pair, read_cases(kGolden / "cases.jsonl", "gpt2"));
}

TEST(TokenizerJsonTest, RefusesOtherKindsByName) {
  const TempFolder folder;
  const fs::path path = folder / "tokenizer.json";
  const auto expect_refused = [&](const std::string& part, const std::function<void(json&)>& edit) {
    json root = json::parse(read_text(kGolden / "small_llama3.json"));
    edit(root);
    write_text(path, root.dump());
    expect_error(ErrorKind::kInput, part, [&] { load_tokenizer(path); });
    expect_error(ErrorKind::kInput, path.string(), [&] { load_tokenizer(folder.path()); });
  };
  expect_refused("type BPE, got \"Unigram\"", [](json& j) { j["model"]["type"] = "Unigram"; });
  expect_refused("no normalizer, got {\"type\":\"NFC\"}", [](json& j) {
    j["normalizer"] = {{"type", "NFC"}};
  });
  expect_refused("ByteLevel, got {\"type\":\"Metaspace\"}", [](json& j) {
    j["pre_tokenizer"] = {{"type", "Metaspace"}};
  });
  expect_refused("ByteLevel, got null", [](json& j) { j.erase("pre_tokenizer"); });
  expect_refused("add_prefix_space false", [](json& j) {
    j["pre_tokenizer"]["pretokenizers"][1]["add_prefix_space"] = true;
  });
  expect_refused("one pattern",
                 [](json& j) { j["pre_tokenizer"]["pretokenizers"][1].erase("use_regex"); });
  expect_refused("of GPT-2 or of Llama 3, got {\"Regex\":\"x+\"}", [](json& j) {
    j["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "x+";
  });
  expect_refused("or Split and ByteLevel",
                 [](json& j) { j["pre_tokenizer"]["pretokenizers"][0]["behavior"] = "Removed"; });
  expect_refused("byte_fallback", [](json& j) { j["model"]["byte_fallback"] = true; });
  expect_refused("dropout", [](json& j) { j["model"]["dropout"] = 0.1; });
  expect_refused("end_of_word_suffix", [](json& j) { j["model"]["end_of_word_suffix"] = "</w>"; });
  expect_refused("'vocab' and", [](json& j) { j["model"].erase("merges"); });
  expect_refused("are special, got", [](json& j) { j["added_tokens"][0]["special"] = false; });
  expect_refused("that ends texts, got none", [](json& j) { j["added_tokens"].erase(1); });
}

TEST(TokenizerJsonTest, RefusesDamagedFiles) {
  const TempFolder folder;
  const fs::path path = folder / "tokenizer.json";
  const std::string good = read_text(kGolden / "small_gpt2.json");
  const auto expect_refused = [&](const std::string& text, const std::string& part) {
    write_text(path, text);
    expect_error(ErrorKind::kInput, part, [&] { load_tokenizer(path); });
    expect_error(ErrorKind::kInput, path.string(), [&] { load_tokenizer(path); });
  };
  expect_refused("", "got no valid JSON");
  expect_refused(good.substr(0, good.size() - 1), "got no valid JSON");
  expect_refused("[]", "got array");
  const std::string deep = std::string(200'000, '[') + std::string(200'000, ']');
  expect_refused("{\"normalizer\": " + deep + "}", "JSON of at most 64 levels");
  expect_refused("{}", "'vocab' and an array 'merges'");
  const auto edited = [&](const std::function<void(json&)>& edit) {
    json root = json::parse(good);
    edit(root);
    return root.dump();
  };
  expect_refused(edited([](json& j) { j["model"]["vocab"]["A"] = 33; }), "each once, got 33");
  expect_refused(edited([](json& j) { j["model"]["vocab"]["A"] = 5000; }), "ids 0 to 700");
  expect_refused(edited([](json& j) { j["model"]["vocab"].erase("A"); }), "ids 0 to 699");
  expect_refused(edited([](json& j) { j["model"]["vocab"]["\u6c34"] = 701; }), "byte characters");
  expect_refused(edited([](json& j) { j["model"]["merges"][2] = 7; }), "merge 3: expected two");
  expect_refused(edited([](json& j) { j["model"]["merges"][2] = "ab"; }), "merge 3: expected two");
  expect_refused(edited([](json& j) {
                   j["model"]["merges"][2] = {"z", "\u00ffq"};
                 }),
                 "merge 3: expected the token");
  expect_refused(edited([](json& j) { j["model"]["merges"][2] = j["model"]["merges"][1]; }),
                 "merge 3: expected each pair once");
  expect_refused(edited([](json& j) { j["added_tokens"][0]["id"] = "x"; }), "got \"x\"");
  expect_refused(edited([](json& j) { j["added_tokens"][0].erase("id"); }), "got null");
  expect_refused(edited([](json& j) { j["added_tokens"][0]["content"] = "A"; }),
                 "id 32 of the vocabulary");
}

TEST(TiktokenFileTest, EncodesAsTiktoken) {
  const auto tokenizer = small_llama3_ranks();
  const auto cases = read_cases(kGolden / "cases.jsonl", "llama3");
  expect_cases(*tokenizer, cases);
  std::mt19937 random(1);
  for (int trial = 0; trial < 300; ++trial) {
    std::string text(random() % 200, '\0');
    for (char& c : text) c = static_cast<char>(random());
    ASSERT_EQ(tokenizer->decode(tokenizer->encode(text)), text);
  }
}

TEST(TiktokenFileTest, RefusesDamagedFiles) {
  const TempFolder folder;
  const fs::path path = folder / "some.tiktoken";
  const std::string good = read_text(kGolden / "small_llama3.tiktoken");
  const auto expect_refused = [&](const std::string& text, const std::string& part) {
    write_text(path, text);
    expect_error(ErrorKind::kInput, part, [&] { load_tokenizer(path); });
    expect_error(ErrorKind::kInput, path.string(), [&] { load_tokenizer(path); });
  };
  const auto edited = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    const std::size_t at = text.find(from);
    EXPECT_NE(at, text.npos) << from;
    return text.replace(at, from.size(), to);
  };
  expect_refused(good, "50256 ranks (GPT-2) or 128000 (Llama 3), got 700");
  expect_refused("", "no id is the single byte 0");
  expect_refused(edited("IQ== 0\n", ""), "got no 0; is the file truncated?");
  expect_refused(edited("IQ== 0\n", "IQ==0\n"), "line 1: expected a token in base64");
  expect_refused(edited("IQ== 0\n", "I?== 0\n"), "line 1: expected a token in base64");
  expect_refused(edited("IQ== 0\n", "IQ=A 0\n"), "line 1: expected a token in base64");
  expect_refused(edited("IQ== 0\n", "IQ= 0\n"), "line 1: expected a token in base64");
  expect_refused(edited("IQ== 0\n", "IQ== 0x\n"), "line 1: expected a token in base64");
  expect_refused(edited("IQ== 0\n", " 0\n"), "line 1: expected a token in base64");
  expect_refused(edited("Ig== 1\n", "Ig== 0\n"), "line 2: expected each rank once, got 0 again");
  expect_refused(edited("Ig== 1\n", "Ig== 12345678901\n"), "line 2: expected a rank below");
  expect_refused(edited("Ig== 1\n", "Ig== 99999999999999999999\n"), "line 2: expected a token");
  expect_refused(edited("Ig== 1\n", "Ig== -1\n"), "line 2: expected a rank below");
  expect_refused(edited("Ig== 1\n", "IQ== 1\n"), "that of rank 0 again at 1");
  expect_refused(edited("Ig== 1\n", "IiE= 1\n"), "no id is the single byte 34");
}

TEST(TiktokenFileTest, LoadsGpt2AndLlama3ByTheNumberOfRanks) {
  LLMC_REQUIRE_TEST_DATA();
  const TempFolder folder;
  const auto llama3 = load_tokenizer(test_data_folder() / "llama3.tiktoken");
  EXPECT_EQ(llama3->name(), "llama3");
  EXPECT_EQ(llama3->vocab_size(), 128256);
  EXPECT_EQ(llama3->begin_of_text(), 128000);
  EXPECT_EQ(llama3->end_of_text(), 128001);
  EXPECT_EQ(llama3->token_bytes(128000), "<|begin_of_text|>");
  EXPECT_EQ(llama3->token_bytes(128005), "<|reserved_special_token_3|>");
  EXPECT_EQ(llama3->token_bytes(128009), "<|eot_id|>");
  EXPECT_EQ(llama3->token_bytes(128255), "<|reserved_special_token_250|>");
  const auto cases = read_cases(test_data_folder() / "llama3_tokenizer_cases.jsonl", "ids");
  EXPECT_EQ(cases.size(), 200u);
  expect_cases(*llama3, cases);
  llama3->save(folder / "saved");
  EXPECT_EQ(read_text(folder / "saved/tokenizer.tiktoken"),
            read_text(test_data_folder() / "llama3.tiktoken"));
  fs::rename(folder / "saved/tokenizer.tiktoken", folder / "saved/tokenizer.model");
  EXPECT_EQ(load_tokenizer(folder / "saved")->hash(), llama3->hash());

  // GPT-2's ranks are its ids without end-of-text.
  const auto gpt2 = load_tokenizer(test_data_folder());
  BpeModel ranks;
  for (std::int32_t id = 0; id < gpt2->vocab_size(); ++id) {
    ranks.tokens.push_back(gpt2->token_bytes(id));
  }
  ranks.special = {gpt2->end_of_text()};
  save_tiktoken_file(folder / "gpt2.tiktoken", ranks);
  const auto again = load_tokenizer(folder / "gpt2.tiktoken");
  EXPECT_EQ(again->hash(), gpt2->hash());
  EXPECT_EQ(again->name(), "gpt2");
  expect_cases(*again, read_cases(test_data_folder() / "gpt2_tokenizer_cases.jsonl", "ids"));
}

}  // namespace
}  // namespace llmc
