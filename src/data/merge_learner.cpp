#include "data/merge_learner.h"

#include <algorithm>
#include <limits>

#include "llmc/core/error.h"

namespace llmc {
namespace {

constexpr std::int32_t kBetween = std::numeric_limits<std::int32_t>::min();
constexpr std::int32_t kInside = kBetween + 1;
constexpr std::uint32_t kNoPair = std::numeric_limits<std::uint32_t>::max();
constexpr std::size_t kMostPlaces = std::numeric_limits<std::uint32_t>::max();

std::uint64_t key_of(std::int32_t left, std::int32_t right) {
  return (std::uint64_t{static_cast<std::uint32_t>(left)} << 32) |
         static_cast<std::uint32_t>(right);
}

std::size_t first_slot(std::uint64_t key, std::size_t slots) {
  const std::uint64_t hash = key * 0x9E3779B97F4A7C15u;
  return (hash ^ (hash >> 32)) & (slots - 1);
}

}  // namespace

MergeLearner::MergeLearner(const PieceCounts& pieces, TokenList tokens,
                           const std::vector<std::string>& never)
    : tokens_(std::move(tokens)), slots_(std::size_t{1} << 12, kNoPair) {
  for (std::int32_t id = 0; id < tokens_.size(); ++id) known_.add(tokens_, id);
  for (const std::string& text : never) {
    never_.push_back(text);
    never_index_.add(never_, never_.size() - 1);
  }
  lay_out(pieces);
  push_candidates(0);
}

void MergeLearner::lay_out(const PieceCounts& pieces) {
  std::array<std::int32_t, 256> id_of_byte{};
  for (std::int32_t id = 0; id < tokens_.size(); ++id) {
    id_of_byte[static_cast<unsigned char>(tokens_[id][0])] = id;
  }
  std::size_t places = 1;
  for (std::int32_t i = 0; i < pieces.size(); ++i) places += pieces.piece(i).size() + 1;
  if (places > kMostPlaces) {
    fail(ErrorKind::kMemory, "tokenizer", "expected distinct pieces of less than 4 GB, got ",
         places, " bytes; train on a part of the text");
  }
  places_.reserve(places);
  piece_of_place_.reserve(places);
  places_.push_back(kBetween);
  piece_of_place_.push_back(0);
  for (std::int32_t i = 0; i < pieces.size(); ++i) {
    piece_counts_.push_back(pieces.count(i));
    for (const char c : pieces.piece(i)) {
      places_.push_back(id_of_byte[static_cast<unsigned char>(c)]);
    }
    places_.push_back(kBetween);
    piece_of_place_.resize(places_.size(), static_cast<std::uint32_t>(i));
  }
  for (std::size_t at = 1; at + 1 < places_.size(); ++at) {
    if (places_[at] == kBetween || places_[at + 1] == kBetween) continue;
    note(places_[at], places_[at + 1], at, piece_counts_[piece_of_place_[at]]);
  }
}

void MergeLearner::grow() {
  slots_.assign(2 * slots_.size(), kNoPair);
  for (std::uint32_t i = 0; i < pairs_.size(); ++i) {
    std::size_t at = first_slot(pairs_[i].key, slots_.size());
    while (slots_[at] != kNoPair) at = (at + 1) & (slots_.size() - 1);
    slots_[at] = i;
  }
}

/// The index of a pair, which is added if there is none.
std::uint32_t MergeLearner::pair_of(std::int32_t left, std::int32_t right) {
  if (2 * (pairs_.size() + 1) > slots_.size()) grow();
  const std::uint64_t key = key_of(left, right);
  std::size_t at = first_slot(key, slots_.size());
  for (; slots_[at] != kNoPair; at = (at + 1) & (slots_.size() - 1)) {
    if (pairs_[slots_[at]].key == key) return slots_[at];
  }
  slots_[at] = static_cast<std::uint32_t>(pairs_.size());
  pairs_.push_back({key, 0, {}});
  return slots_[at];
}

void MergeLearner::note(std::int32_t left, std::int32_t right, std::size_t place,
                        std::int64_t count) {
  Pair& pair = pairs_[pair_of(left, right)];
  pair.count += count;
  pair.places.push_back(static_cast<std::uint32_t>(place));
}

void MergeLearner::push_candidates(std::size_t first) {
  for (std::size_t i = first; i < pairs_.size(); ++i) {
    heap_.push_back({pairs_[i].count, pairs_[i].key, static_cast<std::uint32_t>(i)});
    std::push_heap(heap_.begin(), heap_.end());
  }
}

// A pair becomes more frequent only in the merge that makes one of its symbols. So a candidate's
// count is never too low, and one that is too high goes back with the right one.
bool MergeLearner::learn(std::int64_t min_frequency) {
  while (!heap_.empty() && heap_.front().count >= min_frequency) {
    std::pop_heap(heap_.begin(), heap_.end());
    Candidate best = heap_.back();
    heap_.pop_back();
    const Pair& pair = pairs_[best.pair];
    if (pair.count != best.count) {
      best.count = pair.count;
      heap_.push_back(best);
      std::push_heap(heap_.begin(), heap_.end());
      continue;
    }
    const auto left = static_cast<std::int32_t>(best.key >> 32);
    const auto right = static_cast<std::int32_t>(best.key & 0xFFFFFFFF);
    std::string token(tokens_[left]);
    token += tokens_[right];
    if (known_.find(tokens_, token) != TokenIndex::kNone ||
        never_index_.find(never_, token) != TokenIndex::kNone) {
      continue;
    }
    const std::int32_t merged = tokens_.size();
    tokens_.push_back(token);
    known_.add(tokens_, merged);
    merges_.add({left, right, merged});
    const std::size_t first_new = pairs_.size();
    merge(best.pair, merged);
    push_candidates(first_new);
    return true;
  }
  return false;
}

/// Replaces a pair by a symbol, from left to right, wherever it still is.
void MergeLearner::merge(std::uint32_t pair, std::int32_t merged) {
  const auto left = static_cast<std::int32_t>(pairs_[pair].key >> 32);
  const auto right = static_cast<std::int32_t>(pairs_[pair].key & 0xFFFFFFFF);
  const std::size_t left_bytes = bytes_of(left);
  const std::size_t merged_bytes = bytes_of(merged);
  const std::vector<std::uint32_t> places = std::move(pairs_[pair].places);
  for (const std::size_t at : places) {
    if (places_[at] != left || places_[at + left_bytes] != right) continue;
    const std::int64_t count = piece_counts_[piece_of_place_[at]];
    places_[at] = merged;
    places_[at + left_bytes] = kInside;
    places_[at + merged_bytes - 1] = -static_cast<std::int32_t>(merged_bytes);
    if (places_[at - 1] != kBetween) {
      const std::int32_t last = places_[at - 1];  // an id of one byte, or minus a number of bytes
      const std::size_t before = last >= 0 ? at - 1 : at - static_cast<std::size_t>(-last);
      pairs_[pair_of(places_[before], left)].count -= count;
      note(places_[before], merged, before, count);
    }
    const std::int32_t after = places_[at + merged_bytes];
    if (after != kBetween) {
      pairs_[pair_of(right, after)].count -= count;
      note(merged, after, at, count);
    }
  }
  pairs_[pair].count = 0;
}

}  // namespace llmc
