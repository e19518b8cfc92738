#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

namespace llmc {

/// Byte-pair merges in order of rank: which pairs of neighbouring symbols become which symbol.
class MergeTable {
 public:
  struct Merge {
    std::int32_t left;
    std::int32_t right;
    std::int32_t merged;
  };

  /// What `apply` needs; may be reused from call to call.
  class Scratch {
    friend class MergeTable;
    struct Node {
      std::int32_t symbol;
      std::size_t previous;
      std::size_t next;
    };
    struct Candidate {
      std::size_t rank;
      std::size_t at;
    };
    std::vector<Node> nodes_;
    std::vector<Candidate> heap_;
    std::vector<Candidate> fresh_;
  };

  /// Appends the merge with the next rank; false if the pair is there already.
  bool add(const Merge& merge);
  /// By rank.
  const std::vector<Merge>& merges() const { return merges_; }

  /// Merges symbols in place until no pair is left that could be. Of all pairs present those of
  /// the lowest rank are merged first, from left to right, before the next lowest is looked for.
  /// Takes O(n log n) for n symbols.
  void apply(std::vector<std::int32_t>& symbols, Scratch& scratch) const;

 private:
  void push_pair(std::vector<Scratch::Candidate>& to, const Scratch& scratch, std::size_t at) const;

  std::vector<Merge> merges_;
  std::unordered_map<std::uint64_t, std::size_t> rank_of_pair_;
};

}  // namespace llmc
