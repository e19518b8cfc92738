#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace llmc {

/// A hash of bytes that costs little for short ones.
inline std::uint64_t hash_bytes(std::string_view bytes) {
  const auto load = [&](std::size_t at, std::size_t count) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data() + at, count);
    return word;
  };
  const auto mix = [](std::uint64_t hash, std::uint64_t word) {
    hash = (hash ^ word) * 0x9E3779B97F4A7C15u;
    return hash ^ (hash >> 32);
  };
  const std::size_t size = bytes.size();
  std::uint64_t hash = size * 0xD6E8FEB86659FD93u;
  if (size >= 8) {
    for (std::size_t at = 0; at + 8 < size; at += 8) hash = mix(hash, load(at, 8));
    hash = mix(hash, load(size - 8, 8));
  } else if (size >= 4) {
    hash = mix(hash, load(0, 4) << 32 | load(size - 4, 4));
  } else if (size > 0) {
    const auto byte = [&](std::size_t at) -> std::uint64_t {
      return static_cast<unsigned char>(bytes[at]);
    };
    hash = mix(hash, byte(0) << 16 | byte(size / 2) << 8 | byte(size - 1));
  }
  return mix(hash, hash >> 29);
}

/// The bytes of each id, one after the other in memory.
class TokenList {
 public:
  std::int32_t size() const { return static_cast<std::int32_t>(ends_.size()); }
  std::string_view operator[](std::int32_t id) const {
    const std::size_t begin = id == 0 ? 0 : ends_[static_cast<std::size_t>(id) - 1];
    return {bytes_.data() + begin, ends_[static_cast<std::size_t>(id)] - begin};
  }
  void push_back(std::string_view token) {
    bytes_ += token;
    ends_.push_back(bytes_.size());
  }

 private:
  std::string bytes_;
  std::vector<std::size_t> ends_;
};

/// Finds the ids of some of a list's tokens by their bytes.
class TokenIndex {
 public:
  static constexpr std::int32_t kNone = -1;

  explicit TokenIndex(std::size_t tokens = 0) {
    while (slots_.size() < 2 * tokens) slots_.resize(2 * slots_.size());
  }

  /// False if an equal token is there already, which stays.
  bool add(const TokenList& tokens, std::int32_t id) {
    const std::uint64_t hash = hash_bytes(tokens[id]);
    std::size_t at = 0;
    if (find(tokens, tokens[id], hash, at) != kNone) return false;
    slots_[at] = {static_cast<std::uint32_t>(hash >> 32), id};
    if (2 * ++count_ > slots_.size()) grow(tokens);
    return true;
  }
  /// `hash` is that of the bytes.
  std::int32_t find(const TokenList& tokens, std::string_view bytes, std::uint64_t hash) const {
    std::size_t at = 0;
    return find(tokens, bytes, hash, at);
  }
  std::int32_t find(const TokenList& tokens, std::string_view bytes) const {
    return find(tokens, bytes, hash_bytes(bytes));
  }

 private:
  struct Slot {
    std::uint32_t mark = 0;  // the hash's upper half
    std::int32_t id = kNone;
  };

  std::int32_t find(const TokenList& tokens, std::string_view bytes, std::uint64_t hash,
                    std::size_t& at) const {
    const auto mark = static_cast<std::uint32_t>(hash >> 32);
    for (at = hash & (slots_.size() - 1);; at = (at + 1) & (slots_.size() - 1)) {
      const Slot& slot = slots_[at];
      if (slot.id == kNone || (slot.mark == mark && tokens[slot.id] == bytes)) return slot.id;
    }
  }
  void grow(const TokenList& tokens) {
    std::vector<Slot> old(2 * slots_.size());
    old.swap(slots_);
    count_ = 0;
    for (const Slot& slot : old) {
      if (slot.id != kNone) add(tokens, slot.id);
    }
  }

  std::vector<Slot> slots_ = std::vector<Slot>(16);
  std::size_t count_ = 0;
};

}  // namespace llmc
