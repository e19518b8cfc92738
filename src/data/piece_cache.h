#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

namespace llmc {

/// Remembers what pieces of text were encoded to, as texts repeat their words. Of pieces that share
/// a place the last one is kept.
class PieceCache {
 public:
  /// The ids of a piece; empty if it is not remembered. `hash` is that of the piece.
  std::span<const std::int32_t> find(std::string_view piece, std::uint64_t hash) const {
    const Entry& entry = entries_[place_of(hash)];
    const bool here =
        entry.bytes == piece.size() && std::memcmp(entry.piece, piece.data(), piece.size()) == 0;
    return {entry.ids, here ? entry.count : 0u};
  }
  /// Long pieces, which hardly repeat, are not kept.
  void add(std::string_view piece, std::uint64_t hash, std::span<const std::int32_t> ids) {
    Entry& entry = entries_[place_of(hash)];
    if (piece.size() > sizeof entry.piece || ids.size() > std::size(entry.ids)) return;
    entry.bytes = static_cast<std::uint8_t>(piece.size());
    entry.count = static_cast<std::uint8_t>(ids.size());
    std::memcpy(entry.piece, piece.data(), piece.size());
    std::memcpy(entry.ids, ids.data(), ids.size_bytes());
  }

 private:
  struct Entry {
    std::uint8_t bytes = 0;
    std::uint8_t count = 0;
    char piece[62] = {};
    std::int32_t ids[16] = {};
  };
  static constexpr std::size_t kEntries = std::size_t{1} << 14;
  static std::size_t place_of(std::uint64_t hash) { return (hash >> 32) % kEntries; }

  std::vector<Entry> entries_ = std::vector<Entry>(kEntries);
};

}  // namespace llmc
