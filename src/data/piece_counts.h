#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "data/token_list.h"

namespace llmc {

/// How often each of a text's pieces occurs.
class PieceCounts {
 public:
  void add(std::string_view piece, std::int64_t count = 1) {
    const std::uint64_t hash = hash_bytes(piece);
    std::int32_t at = index_.find(pieces_, piece, hash);
    if (at == TokenIndex::kNone) {
      at = pieces_.size();
      pieces_.push_back(piece);
      counts_.push_back(0);
      index_.add(pieces_, at);
    }
    counts_[static_cast<std::size_t>(at)] += count;
  }
  void add(const PieceCounts& other) {
    for (std::int32_t i = 0; i < other.size(); ++i) add(other.pieces_[i], other.count(i));
  }

  std::int32_t size() const { return pieces_.size(); }
  std::string_view piece(std::int32_t i) const { return pieces_[i]; }
  std::int64_t count(std::int32_t i) const { return counts_[static_cast<std::size_t>(i)]; }

 private:
  TokenList pieces_;
  TokenIndex index_;
  std::vector<std::int64_t> counts_;
};

}  // namespace llmc
