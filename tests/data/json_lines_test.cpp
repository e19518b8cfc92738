#include "data/json_lines.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace llmc {
namespace {

/// The text, or the error with ! before it.
std::string extract(const std::string& line, const std::string& field = "text") {
  std::string out, error;
  return extract_json_text(out, error, line, field) ? out : "!" + error;
}

TEST(JsonLinesTest, FindsTheField) {
  EXPECT_EQ(extract(R"({"text":"abc"})"), "abc");
  EXPECT_EQ(extract(R"( { "id" : 3 , "text" : "abc" , "n" : null } )"
                    "\r"),
            "abc");
  EXPECT_EQ(extract(R"({"text":""})"), "");
  EXPECT_EQ(extract(R"({"a":{"text":1,"b":[{"text":2},[],{}]},"text":"abc","c":-1.5e+3})"), "abc");
  EXPECT_EQ(extract(R"({"text":"first","text":"second"})"), "second");
  EXPECT_EQ(extract(R"({"story":"s","text":"t"})", "story"), "s");
  EXPECT_EQ(extract(R"({"te\u0078t":"abc"})"), "abc");
  EXPECT_EQ(extract(R"({"\"":"quote"})", "\""), "quote");
}

TEST(JsonLinesTest, Unescapes) {
  EXPECT_EQ(extract(R"({"text":"\"\\\/\b\f\n\r\t"})"), "\"\\/\b\f\n\r\t");
  EXPECT_EQ(extract(R"({"text":"\u0041\u00e9\u20AC\ud83d\uDE00"})"), "Aé€😀");
  EXPECT_EQ(extract(R"({"text":"a\u0000b"})"), std::string("a\0b", 3));
  EXPECT_EQ(extract("{\"text\":\"\xff\xc3 é\"}"), "\xff\xc3 é");
  const std::string half = "\xEF\xBF\xBD";
  EXPECT_EQ(extract(R"({"text":"\ud83d"})"), half);
  EXPECT_EQ(extract(R"({"text":"\ud83dx\ude00"})"), half + "x" + half);
  EXPECT_EQ(extract(R"({"text":"\ud83d\ud83d\ude00"})"), half + "😀");
  EXPECT_EQ(extract(R"({"text":"\ud83d\n"})"), half + "\n");
}

TEST(JsonLinesTest, SaysWhatIsWrong) {
  EXPECT_EQ(extract("{}"), "!expected a text under 'text', got nothing");
  EXPECT_EQ(extract(R"({"a":{"text":"inner"}})"), "!expected a text under 'text', got nothing");
  EXPECT_EQ(extract(R"({"text":null})"), "!expected a text under 'text', got null");
  EXPECT_EQ(extract(R"({"text":3})"), "!expected a text under 'text', got a number");
  EXPECT_EQ(extract(R"({"text":["a"]})"), "!expected a text under 'text', got a list");
  EXPECT_EQ(extract(R"({"text":{"a":"b"}})"), "!expected a text under 'text', got an object");
  EXPECT_EQ(extract(R"({"text":false})"), "!expected a text under 'text', got true or false");
  EXPECT_EQ(extract(R"({"text":"a","text":1})"), "!expected a text under 'text', got a number");
  EXPECT_EQ(extract("[1]"), "!expected a JSON object at byte 1, got '['");
  EXPECT_EQ(extract(R"({"text":"ab)"),
            "!expected the end of the text in quotes, got the end of the line");
  EXPECT_EQ(extract(R"({"text":"a"} x)"), "!expected the end of the line at byte 14, got 'x'");
  EXPECT_EQ(extract("{\"text\":\"a\tb\"}"),
            "!expected an escaped control character at byte 11, got '\t'");
}

TEST(JsonLinesTest, DoesNotRecurse) {
  const std::string deep(100'000, '[');
  EXPECT_EQ(extract("{\"a\":" + deep), "!expected no deeper nesting at byte 1005, got '['");
}

/// Accepts and refuses what the library does, over all ways to cut and to change one character.
TEST(JsonLinesTest, AgreesWithTheJsonLibrary) {
  const std::vector<std::string> lines = {
      R"({"text":"a\u00e9\n\"e","b":[1,-2.5e3,0,{"c":null}],"d":{},"e":[],"f":true})",
      R"({ "b" : [ false , [ ] , { } ] , "text" : "x" })",
      R"({"text":"x","n":[0.1E-2,10,-0,1e5]})",
  };
  const auto expect_same = [](const std::string& line) {
    std::string wanted = "!";
    const auto json = nlohmann::json::parse(line, nullptr, false);
    if (json.is_object() && json.contains("text") && json["text"].is_string()) {
      wanted = json["text"].get<std::string>();
    }
    const std::string got = extract(line);
    EXPECT_EQ(got[0] == '!' ? "!" : got, wanted) << line;
  };
  for (const std::string& line : lines) {
    for (std::size_t i = 0; i < line.size(); ++i) {
      expect_same(line.substr(0, i));
      expect_same(line.substr(0, i) + line.substr(i + 1));
      for (const char c : std::string("{}[]\",:\\ u0-+.eEx\n\x01")) {
        std::string changed = line;
        changed[i] = c;
        expect_same(changed);
        expect_same(line.substr(0, i) + c + line.substr(i));
      }
    }
  }
}

}  // namespace
}  // namespace llmc
