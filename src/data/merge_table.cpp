#include "data/merge_table.h"

#include <algorithm>
#include <limits>

namespace llmc {
namespace {

constexpr std::size_t kNone = std::numeric_limits<std::size_t>::max();
constexpr std::int32_t kGone = -1;
constexpr std::size_t kFew = 64;
constexpr std::int32_t kLow = 256;
constexpr std::size_t kFirstSlots = 64;

// A value holds the rank above the symbol that a pair becomes, so that values compare as ranks.
constexpr std::uint64_t kNoMerge = std::numeric_limits<std::uint64_t>::max();
constexpr std::uint64_t kNoPair = std::numeric_limits<std::uint64_t>::max();

std::int32_t merged_of(std::uint64_t value) {
  return static_cast<std::int32_t>(static_cast<std::uint32_t>(value));
}

std::uint64_t key_of(std::int32_t left, std::int32_t right) {
  return (std::uint64_t{static_cast<std::uint32_t>(left)} << 32) |
         static_cast<std::uint32_t>(right);
}

std::size_t first_slot(std::uint64_t pair, std::size_t slots) {
  const std::uint64_t hash = pair * 0x9E3779B97F4A7C15u;
  return (hash ^ (hash >> 32)) & (slots - 1);
}

}  // namespace

/// Where a pair is, or where it would be.
inline std::size_t MergeTable::slot_of(std::uint64_t pair) const {
  std::size_t at = first_slot(pair, pairs_.size());
  while (pairs_[at] != pair && pairs_[at] != kNoPair) at = (at + 1) & (pairs_.size() - 1);
  return at;
}

void MergeTable::grow() {
  low_.resize(kLow * kLow, kNoMerge);
  const std::size_t slots = std::max(kFirstSlots, 2 * pairs_.size());
  std::vector<std::uint64_t> pairs(slots, kNoPair);
  std::vector<std::uint64_t> values(slots, kNoMerge);
  pairs.swap(pairs_);
  values.swap(values_);
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    if (pairs[i] == kNoPair) continue;
    const std::size_t at = slot_of(pairs[i]);
    pairs_[at] = pairs[i];
    values_[at] = values[i];
  }
}

bool MergeTable::add(const Merge& merge) {
  return add(merge, static_cast<std::uint32_t>(merges_.size()));
}

bool MergeTable::add(const Merge& merge, std::uint32_t rank) {
  if (2 * (merges_.size() + 1) > pairs_.size()) grow();
  const std::uint64_t pair = key_of(merge.left, merge.right);
  const std::size_t at = slot_of(pair);
  if (pairs_[at] == pair) return false;
  pairs_[at] = pair;
  values_[at] = std::uint64_t{rank} << 32 | static_cast<std::uint32_t>(merge.merged);
  if ((merge.left | merge.right) < kLow) {
    low_[static_cast<std::size_t>(merge.left * kLow + merge.right)] = values_[at];
  }
  merges_.push_back(merge);
  return true;
}

inline std::uint64_t MergeTable::value_of(std::int32_t left, std::int32_t right) const {
  if ((left | right) < kLow) return low_[static_cast<std::size_t>(left * kLow + right)];
  const std::size_t at = slot_of(key_of(left, right));
  return pairs_[at] == kNoPair ? kNoMerge : values_[at];
}

void MergeTable::apply(std::vector<std::int32_t>& symbols, Scratch& scratch) const {
  if (merges_.empty() || symbols.size() < 2) return;
  if (symbols.size() <= kFew) {
    apply_to_few(symbols, scratch);
  } else {
    apply_to_many(symbols, scratch);
  }
}

// Looks at every pair before each merge, which for few symbols is the fastest way.
void MergeTable::apply_to_few(std::vector<std::int32_t>& symbols, Scratch& scratch) const {
  scratch.values_.resize(symbols.size() - 1);
  std::uint64_t* const values = scratch.values_.data();
  std::int32_t* const at = symbols.data();
  std::size_t pairs = symbols.size() - 1;
  for (std::size_t i = 0; i < pairs; ++i) values[i] = value_of(at[i], at[i + 1]);
  while (pairs > 0) {
    std::uint64_t lowest = values[0];
    std::size_t where = 0;
    for (std::size_t i = 1; i < pairs; ++i) {
      if (values[i] < lowest) {
        lowest = values[i];
        where = i;
      }
    }
    if (lowest == kNoMerge) break;
    at[where] = merged_of(lowest);
    std::copy(at + where + 2, at + pairs + 1, at + where + 1);
    std::copy(values + where + 1, values + pairs, values + where);
    --pairs;
    if (where > 0) values[where - 1] = value_of(at[where - 1], at[where]);
    if (where < pairs) values[where] = value_of(at[where], at[where + 1]);
  }
  symbols.resize(pairs + 1);
}

// Keeps the pairs in a heap. Those that a merge has changed stay in it until they are met.
void MergeTable::apply_to_many(std::vector<std::int32_t>& symbols, Scratch& scratch) const {
  auto& nodes = scratch.nodes_;
  auto& heap = scratch.heap_;
  const auto later = [](const Scratch::Candidate& a, const Scratch::Candidate& b) {
    return a.value != b.value ? a.value > b.value : a.at > b.at;
  };
  const std::size_t count = symbols.size();
  nodes.resize(count);
  heap.clear();
  for (std::size_t i = 0; i < count; ++i) {
    const bool last = i + 1 == count;
    const std::uint64_t value = last ? kNoMerge : value_of(symbols[i], symbols[i + 1]);
    nodes[i] = {symbols[i], value, i == 0 ? kNone : i - 1, last ? kNone : i + 1};
    if (value != kNoMerge) heap.push_back({value, i});
  }
  std::make_heap(heap.begin(), heap.end(), later);
  const auto renew = [&](std::size_t at) {
    Scratch::Node& node = nodes[at];
    node.value = node.next == kNone ? kNoMerge : value_of(node.symbol, nodes[node.next].symbol);
    if (node.value == kNoMerge) return;
    heap.push_back({node.value, at});
    std::push_heap(heap.begin(), heap.end(), later);
  };

  while (!heap.empty()) {
    const Scratch::Candidate candidate = heap.front();
    std::pop_heap(heap.begin(), heap.end(), later);
    heap.pop_back();
    Scratch::Node& left = nodes[candidate.at];
    if (left.symbol == kGone || left.value != candidate.value) continue;
    Scratch::Node& right = nodes[left.next];
    left.symbol = merged_of(candidate.value);
    left.next = right.next;
    if (right.next != kNone) nodes[right.next].previous = candidate.at;
    right.symbol = kGone;
    if (left.previous != kNone) renew(left.previous);
    renew(candidate.at);
  }
  symbols.clear();
  for (std::size_t i = 0; i != kNone; i = nodes[i].next) symbols.push_back(nodes[i].symbol);
}

}  // namespace llmc
