#include "data/merge_table.h"

#include <algorithm>
#include <limits>

namespace llmc {
namespace {

constexpr std::size_t kNone = std::numeric_limits<std::size_t>::max();
constexpr std::int32_t kGone = -1;

std::uint64_t key_of(std::int32_t left, std::int32_t right) {
  return (std::uint64_t{static_cast<std::uint32_t>(left)} << 32) |
         static_cast<std::uint32_t>(right);
}

}  // namespace

bool MergeTable::add(const Merge& merge) {
  const bool added = rank_of_pair_.emplace(key_of(merge.left, merge.right), merges_.size()).second;
  if (added) merges_.push_back(merge);
  return added;
}

/// Notes that the symbols at `at` and after it can be merged, if they can.
void MergeTable::push_pair(std::vector<Scratch::Candidate>& to, const Scratch& scratch,
                           std::size_t at) const {
  const Scratch::Node& node = scratch.nodes_[at];
  if (node.next == kNone) return;
  const auto found = rank_of_pair_.find(key_of(node.symbol, scratch.nodes_[node.next].symbol));
  if (found != rank_of_pair_.end()) to.push_back({found->second, at});
}

void MergeTable::apply(std::vector<std::int32_t>& symbols, Scratch& scratch) const {
  auto& nodes = scratch.nodes_;
  auto& heap = scratch.heap_;
  auto& fresh = scratch.fresh_;
  const auto later = [](const Scratch::Candidate& a, const Scratch::Candidate& b) {
    return a.rank != b.rank ? a.rank > b.rank : a.at > b.at;
  };
  const std::size_t count = symbols.size();
  nodes.resize(count);
  for (std::size_t i = 0; i < count; ++i) {
    nodes[i] = {symbols[i], i == 0 ? kNone : i - 1, i + 1 == count ? kNone : i + 1};
  }
  heap.clear();
  for (std::size_t i = 0; i < count; ++i) push_pair(heap, scratch, i);
  std::make_heap(heap.begin(), heap.end(), later);

  while (!heap.empty()) {
    const std::size_t rank = heap.front().rank;
    const Merge& merge = merges_[rank];
    fresh.clear();
    while (!heap.empty() && heap.front().rank == rank) {
      const std::size_t at = heap.front().at;
      std::pop_heap(heap.begin(), heap.end(), later);
      heap.pop_back();
      Scratch::Node& left = nodes[at];
      const bool still_there =
          left.symbol == merge.left && left.next != kNone && nodes[left.next].symbol == merge.right;
      if (!still_there) continue;
      Scratch::Node& right = nodes[left.next];
      left.symbol = merge.merged;
      left.next = right.next;
      if (right.next != kNone) nodes[right.next].previous = at;
      right.symbol = kGone;
      if (left.previous != kNone) push_pair(fresh, scratch, left.previous);
      push_pair(fresh, scratch, at);
    }
    for (const Scratch::Candidate& candidate : fresh) {
      heap.push_back(candidate);
      std::push_heap(heap.begin(), heap.end(), later);
    }
  }
  symbols.clear();
  for (std::size_t i = 0; i < count; i = nodes[i].next) {
    symbols.push_back(nodes[i].symbol);
    if (nodes[i].next == kNone) break;
  }
}

}  // namespace llmc
