#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "data/merge_table.h"
#include "data/piece_counts.h"
#include "data/token_list.h"

namespace llmc {

/// Learns merges from counted pieces, always of the most frequent pair (TokenizerTrainer says which
/// of equals). Keeps for every pair how often it occurs and where, and changes only what a merge
/// changes, so that all merges together take little more than one look at every place.
class MergeLearner {
 public:
  /// `tokens`: the single bytes; `never`: texts that must not become tokens.
  MergeLearner(const PieceCounts& pieces, TokenList tokens, const std::vector<std::string>& never);

  /// Adds a token; false if no pair occurs at least `min_frequency` times.
  bool learn(std::int64_t min_frequency);

  /// The bytes and what was learned, and the merges that lead there.
  const TokenList& tokens() const { return tokens_; }
  const MergeTable& merges() const { return merges_; }

 private:
  struct Pair {
    std::uint64_t key;  // left id, right id
    std::int64_t count;
    std::vector<std::uint32_t> places;  // where it was when it was noted; ascending
  };
  struct Candidate {
    std::int64_t count;
    std::uint64_t key;
    std::uint32_t pair;
    bool operator<(const Candidate& other) const {
      return count != other.count ? count < other.count : key > other.key;
    }
  };

  void lay_out(const PieceCounts& pieces);
  void push_candidates(std::size_t first);
  std::uint32_t pair_of(std::int32_t left, std::int32_t right);
  void grow();
  std::size_t bytes_of(std::int32_t id) const { return tokens_[id].size(); }
  void note(std::int32_t left, std::int32_t right, std::size_t place, std::int64_t count);
  void merge(std::uint32_t pair, std::int32_t merged);

  TokenList tokens_;
  TokenIndex known_;  // tokens
  TokenList never_;
  TokenIndex never_index_;
  MergeTable merges_;

  // All pieces one after the other, a place for every byte and one between pieces. At the first
  // byte of a symbol is its id; at the last, if it has several, minus their number.
  std::vector<std::int32_t> places_;
  std::vector<std::uint32_t> piece_of_place_;
  std::vector<std::int64_t> piece_counts_;

  std::vector<Pair> pairs_;
  std::vector<std::uint32_t> slots_;  // a hash table of indices into pairs_
  std::vector<Candidate> heap_;
};

}  // namespace llmc
