#include "data/merge_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <string>

namespace llmc {
namespace {

using Symbols = std::vector<std::int32_t>;

/// The definition: merge the leftmost of the pairs of lowest rank, repeat.
Symbols merge_naively(const MergeTable& table, Symbols symbols) {
  for (;;) {
    std::size_t where = symbols.size();
    const MergeTable::Merge* lowest = nullptr;
    for (const MergeTable::Merge& merge : table.merges()) {
      for (std::size_t i = 0; i + 1 < symbols.size() && lowest == nullptr; ++i) {
        if (symbols[i] != merge.left || symbols[i + 1] != merge.right) continue;
        lowest = &merge;
        where = i;
      }
      if (lowest != nullptr) break;
    }
    if (lowest == nullptr) return symbols;
    symbols[where] = lowest->merged;
    symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(where) + 1);
  }
}

TEST(MergeTableTest, EqualsTheDefinitionOnRandomTables) {
  std::mt19937 random(1);
  for (int trial = 0; trial < 300; ++trial) {
    // Merges over three letters. Some come before those that make their parts, and some strings
    // are the result of several.
    std::vector<std::string> strings{"a", "b", "c"};
    std::map<std::string, std::int32_t> ids{{"a", 0}, {"b", 1}, {"c", 2}};
    std::vector<MergeTable::Merge> merges;
    for (int i = 0; i < 25; ++i) {
      const std::int32_t left = static_cast<std::int32_t>(random() % strings.size());
      const std::int32_t right = static_cast<std::int32_t>(random() % strings.size());
      const std::string merged =
          strings[static_cast<std::size_t>(left)] + strings[static_cast<std::size_t>(right)];
      const auto [at, added] = ids.emplace(merged, static_cast<std::int32_t>(strings.size()));
      if (added) strings.push_back(merged);
      merges.push_back({left, right, at->second});
    }
    if (trial % 2 == 0) std::shuffle(merges.begin(), merges.end(), random);
    MergeTable table;
    for (const MergeTable::Merge& merge : merges) table.add(merge);

    MergeTable::Scratch scratch;
    for (int i = 0; i < 20; ++i) {
      // Few and many symbols are merged in different ways.
      Symbols symbols(random() % (i % 4 == 0 ? 200 : 40));
      for (std::int32_t& symbol : symbols) symbol = static_cast<std::int32_t>(random() % 3);
      const Symbols expected = merge_naively(table, symbols);
      table.apply(symbols, scratch);
      ASSERT_EQ(symbols, expected) << "trial " << trial;
    }
  }
}

TEST(MergeTableTest, OverlappingPairsMergeFromTheLeft) {
  MergeTable table;
  EXPECT_TRUE(table.add({0, 0, 1}));
  EXPECT_TRUE(table.add({1, 1, 2}));
  EXPECT_FALSE(table.add({0, 0, 3}));
  MergeTable::Scratch scratch;
  Symbols symbols(7, 0);
  table.apply(symbols, scratch);
  EXPECT_EQ(symbols, (Symbols{2, 1, 0}));
  Symbols many(131, 0);
  table.apply(many, scratch);
  EXPECT_EQ(many.size(), 34u);
  EXPECT_EQ(many[0], 2);
  EXPECT_EQ(many[32], 1);
  EXPECT_EQ(many[33], 0);
  symbols.clear();
  table.apply(symbols, scratch);
  EXPECT_TRUE(symbols.empty());
}

}  // namespace
}  // namespace llmc
