#include "llmc/data/corpus.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "data/tale_grammar.h"
#include "llmc/data/tokenizer.h"
#include "support/temp_folder.h"

namespace llmc {
namespace {

using testing::expect_error;

/// Visits every state that can be reached once, and each only after it was left on the path to it.
void visit(const TaleState& state, std::set<std::uint64_t>& seen, std::set<std::uint64_t>& path,
           std::set<std::string>& words) {
  ASSERT_FALSE(path.contains(state.key())) << "a state leads to itself";
  if (!seen.insert(state.key()).second) return;
  path.insert(state.key());
  std::vector<TaleOption> options;
  tale_options(options, state);
  EXPECT_EQ(options.empty(), state.phase == TaleState::Phase::kEnd);
  for (std::size_t i = 0; i < options.size(); ++i) {
    EXPECT_GT(options[i].weight, 0);
    EXPECT_FALSE(options[i].text.empty());
    for (std::size_t j = 0; j < options.size(); ++j) {
      EXPECT_FALSE(i != j && options[i].text.starts_with(options[j].text))
          << "'" << options[i].text << "' begins with '" << options[j].text << "'";
    }
    std::string word;
    for (const char c : options[i].text + " ") {
      if (std::isalpha(static_cast<unsigned char>(c))) {
        word += c;
      } else if (!word.empty()) {
        words.insert(word);
        word.clear();
      }
    }
    visit(options[i].next, seen, path, words);
  }
  path.erase(state.key());
}

TEST(CorpusTest, EveryTextHasOneDerivationOnly) {
  std::set<std::uint64_t> seen, path;
  std::set<std::string> words;
  visit({}, seen, path, words);
  EXPECT_GT(seen.size(), 1000u);
  EXPECT_GT(words.size(), 60u);
  EXPECT_LT(words.size(), 130u);
}

/// Number of ways to derive text[at ..] from a state, found by trying every option.
int derivations(const std::string& text, std::size_t at, const TaleState& state) {
  std::vector<TaleOption> options;
  tale_options(options, state);
  if (options.empty()) return at == text.size() ? 1 : 0;
  int count = 0;
  for (const TaleOption& option : options) {
    if (text.compare(at, option.text.size(), option.text) == 0) {
      count += derivations(text, at + option.text.size(), option.next);
    }
  }
  return count;
}

TEST(CorpusTest, TalesParseBackToTheirBits) {
  std::set<std::string> different;
  for (std::int64_t i = 0; i < 2000; ++i) {
    const Tale tale = make_tale(11, i);
    EXPECT_EQ(derivations(tale.text, 0, {}), 1) << tale.text;
    EXPECT_DOUBLE_EQ(tale_bits(tale.text), tale.bits);
    EXPECT_LE(static_cast<std::int64_t>(tale.text.size()), longest_tale());
    EXPECT_EQ(tale.text.back(), '\n');
    different.insert(tale.text);
  }
  EXPECT_EQ(different.size(), 2000u);
  EXPECT_EQ(make_tale(11, 5).text, make_tale(11, 5).text);
  EXPECT_NE(make_tale(11, 5).text, make_tale(12, 5).text);
}

TEST(CorpusTest, MeanOfDrawnTalesIsTheExactExpectation) {
  const TaleStatistics expected = tale_statistics();
  const int count = 20'000;
  double bits = 0, bits_squared = 0, bytes = 0, bytes_squared = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const Tale tale = make_tale(3, i);
    const auto size = static_cast<double>(tale.text.size());
    bits += tale.bits;
    bits_squared += tale.bits * tale.bits;
    bytes += size;
    bytes_squared += size * size;
  }
  const auto expect_mean = [&](double sum, double sum_of_squares, double mean) {
    const double deviation = std::sqrt(sum_of_squares / count - (sum / count) * (sum / count));
    EXPECT_NEAR(sum / count, mean, 4 * deviation / std::sqrt(count));
  };
  expect_mean(bits, bits_squared, expected.bits_per_tale);
  expect_mean(bytes, bytes_squared, expected.bytes_per_tale);
  EXPECT_NEAR(bits / bytes, expected.bits_per_byte(), 0.005 * expected.bits_per_byte());
  EXPECT_GT(expected.bits_per_byte(), 0.4);
  EXPECT_LT(expected.bits_per_byte(), 0.9);
}

TEST(CorpusTest, HeroesKeepTheirPronounAndThing) {
  const std::set<std::string> women{"Ann", "Cleo", "Emma", "Gina", "Iris", "Kate"};
  for (std::int64_t i = 0; i < 200; ++i) {
    const std::string text = make_tale(4, i).text;
    const bool she = women.contains(text.substr(0, text.find(' ')));
    EXPECT_EQ(text.find(she ? " he " : " she "), text.npos) << text;
    const std::size_t end = text.find('.');
    const std::size_t begin = text.rfind(' ', end) + 1;
    const std::string thing = text.substr(begin, end - begin);
    for (std::size_t at = text.find(" by the "); at != text.npos; at = text.npos) {
      EXPECT_EQ(text.substr(at + 8, thing.size()), thing) << text;
    }
  }
}

TEST(CorpusTest, OtherTextsAreNotTales) {
  const std::string tale = make_tale(1, 0).text;
  expect_error(ErrorKind::kInput, "at byte 0", [] { tale_bits(""); });
  expect_error(ErrorKind::kInput, "at byte 0", [] { tale_bits("Once upon a time"); });
  expect_error(ErrorKind::kInput, "1 bytes after its end", [&] { tale_bits(tale + "x"); });
  expect_error(ErrorKind::kInput, "goes on otherwise",
               [&] { tale_bits(tale.substr(0, tale.size() - 1)); });
}

TEST(TaleSourceTest, RowsHoldWholeTales) {
  const auto tokenizer = make_byte_tokenizer();
  for (const std::int64_t extra : {1, 2, 300}) {
    const std::int64_t B = 3, T = longest_tale() + extra;
    TaleSource source(B, T, 7);
    Batch batch;
    for (int i = 0; i < 20; ++i) {
      source.next(batch);
      double bits = 0;
      for (std::int64_t b = 0; b < B; ++b) {
        const auto* inputs = batch.inputs.data() + b * T;
        const auto* targets = batch.targets.data() + b * T;
        EXPECT_EQ(inputs[0], tokenizer->end_of_text());
        std::string text;
        int tales = 0;
        std::int64_t t = 0;
        for (; t < T && targets[t] != kIgnoredTarget; ++t) {
          if (t + 1 < T) {
            EXPECT_EQ(inputs[t + 1], targets[t]);
          }
          if (targets[t] != tokenizer->end_of_text()) {
            text += static_cast<char>(targets[t]);
          } else {
            bits += tale_bits(text);
            text.clear();
            ++tales;
          }
        }
        EXPECT_TRUE(text.empty());
        EXPECT_GE(tales, extra > 2 ? 2 : 1);
        for (; t < T; ++t) EXPECT_EQ(targets[t], kIgnoredTarget);
      }
      EXPECT_NEAR(source.bits(), bits, 1e-9);
    }
  }
  expect_error(ErrorKind::kConfig, "got T = 10", [] { TaleSource source(1, 10, 0); });
  expect_error(ErrorKind::kConfig, "got B = 0", [] { TaleSource source(0, 1000, 0); });
}

TEST(TaleSourceTest, ResumesAndDistributes) {
  const std::int64_t T = longest_tale() + 50;
  TaleSource whole(4, T, 9);
  TaleSource ranks[] = {{2, T, 9, 0, 2}, {2, T, 9, 1, 2}};
  Batch batch, part;
  SourceState state;
  for (int i = 0; i < 5; ++i) {
    if (i == 3) state = whole.state();
    whole.next(batch);
    for (std::size_t r = 0; r < 2; ++r) {
      ranks[r].next(part);
      EXPECT_TRUE(std::equal(part.inputs.begin(), part.inputs.end(),
                             batch.inputs.begin() + static_cast<std::ptrdiff_t>(r) * 2 * T));
    }
  }
  TaleSource resumed(4, T, 9);
  resumed.restore(state);
  Batch again;
  resumed.next(again);
  resumed.next(again);
  EXPECT_EQ(again.inputs, batch.inputs);
  EXPECT_EQ(again.targets, batch.targets);
  for (SourceState bad : {SourceState{}, TaleSource(4, T, 8).state(), SourceState{{"row", -1}}}) {
    expect_error(ErrorKind::kInput, "another source", [&] { resumed.restore(bad); });
  }
}

}  // namespace
}  // namespace llmc
