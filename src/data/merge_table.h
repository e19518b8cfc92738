#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace llmc {

/// Byte-pair merges: which pairs of neighbouring symbols become which symbol, and which of them
/// first. Symbols are not negative.
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
      std::uint64_t value;  // of the pair that it begins
      std::size_t previous;
      std::size_t next;
    };
    struct Candidate {
      std::uint64_t value;
      std::size_t at;
    };
    std::vector<std::uint64_t> values_;
    std::vector<Node> nodes_;
    std::vector<Candidate> heap_;
  };

  /// Adds a merge whose rank is the number of those before it; false if the pair is there already.
  bool add(const Merge& merge);
  /// The same with a rank of the caller's choice, which several merges may share if they yield the
  /// same symbol.
  bool add(const Merge& merge, std::uint32_t rank);
  /// In the order in which they were added.
  const std::vector<Merge>& merges() const { return merges_; }

  /// Merges symbols in place until no pair is left that could be. Of all pairs present the one of
  /// lowest rank, of these the leftmost, is merged next. Takes O(n log n) for n symbols.
  void apply(std::vector<std::int32_t>& symbols, Scratch& scratch) const;

 private:
  std::uint64_t value_of(std::int32_t left, std::int32_t right) const;
  std::size_t slot_of(std::uint64_t pair) const;
  void grow();
  void apply_to_few(std::vector<std::int32_t>& symbols, Scratch& scratch) const;
  void apply_to_many(std::vector<std::int32_t>& symbols, Scratch& scratch) const;

  std::vector<Merge> merges_;
  // A hash table with open addressing. Most pairs that are looked up are not in it, which the pairs
  // alone tell.
  std::vector<std::uint64_t> pairs_;
  std::vector<std::uint64_t> values_;
  std::vector<std::uint64_t> low_;  // values of pairs of symbols below 256, bytes for the most part
};

}  // namespace llmc
