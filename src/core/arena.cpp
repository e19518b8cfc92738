#include "llmc/core/arena.h"

#include <algorithm>
#include <cstdio>
#include <iomanip>
#include <sstream>
#include <string_view>
#include <utility>

#include "llmc/core/error.h"

namespace llmc {
namespace {

constexpr std::size_t kSegmentAlignment = 64;

constexpr std::string_view kKindNames[] = {"parameters", "gradients", "optimizer", "activations",
                                           "scratch"};

std::size_t padded(std::size_t bytes) {
  return (bytes + kSegmentAlignment - 1) / kSegmentAlignment * kSegmentAlignment;
}

std::string_view name_of(MemoryKind kind) {
  return kKindNames[static_cast<std::size_t>(kind)];
}

}  // namespace

std::string format_bytes(std::size_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 1024.0 && unit + 1 < std::size(kUnits)) {
    value /= 1024.0;
    ++unit;
  }
  char text[32];
  std::snprintf(text, sizeof text, unit == 0 ? "%.0f %s" : (value < 10 ? "%.2f %s" : "%.1f %s"),
                value, kUnits[unit]);
  return text;
}

Arena::Id Arena::declare(MemoryKind kind, std::string name, DType dtype, Shape shape) {
  std::size_t& end = ends_[static_cast<std::size_t>(kind)];
  const Id id = add({kind, std::move(name), dtype, shape, end, 0, false});
  end += padded(segments_[id].bytes);
  return id;
}

Arena::Id Arena::overlay(MemoryKind kind, std::string name, DType dtype, Shape shape) {
  return add({kind, std::move(name), dtype, shape, 0, 0, true});
}

Arena::Id Arena::add(Segment segment) {
  if (allocated_) {
    fail(ErrorKind::kMemory, "arena", "expected segments before allocation, got ", segment.name,
         " after it");
  }
  segment.bytes = static_cast<std::size_t>(segment.shape.numel()) * size_of(segment.dtype);
  std::size_t& size = sizes_[static_cast<std::size_t>(segment.kind)];
  size = std::max(size, segment.offset + padded(segment.bytes));
  segments_.push_back(std::move(segment));
  return segments_.size() - 1;
}

void Arena::allocate(const Device& device) {
  if (allocated_) fail(ErrorKind::kMemory, "arena", "expected one allocation, got a second");
  const std::size_t free = device.free_memory();
  if (bytes() > free) {
    std::string_view help = "use a smaller model";
    if (bytes() - bytes(MemoryKind::kActivations) - bytes(MemoryKind::kScratch) < free) {
      help = "use a smaller micro_batch or seq_len, or a higher recompute level";
    } else if (bytes() - bytes(MemoryKind::kOptimizer) < free) {
      help = "shard the optimizer over more processes, or use a smaller model";
    }
    fail(ErrorKind::kMemory, "arena", "expected ", format_bytes(bytes()), " of free memory on ",
         device.name(), ", got ", format_bytes(free), ", ", format_bytes(bytes() - free),
         " too little; ", help);
  }
  for (std::size_t kind = 0; kind < kKinds; ++kind) pieces_[kind] = Buffer(device, sizes_[kind]);
  allocated_ = true;
}

Tensor Arena::tensor(Id id) const {
  if (id >= segments_.size()) {
    fail(ErrorKind::kMemory, "arena", "expected a segment below ", segments_.size(), ", got ", id);
  }
  const Segment& s = segments_[id];
  if (!allocated_) {
    fail(ErrorKind::kMemory, "arena", "expected allocated memory, got a plan only, for ", s.name);
  }
  auto* piece = static_cast<std::byte*>(pieces_[static_cast<std::size_t>(s.kind)].data());
  return {piece + s.offset, s.dtype, s.shape};
}

std::size_t Arena::bytes(MemoryKind kind) const {
  return sizes_[static_cast<std::size_t>(kind)];
}

std::size_t Arena::bytes() const {
  std::size_t sum = 0;
  for (const std::size_t size : sizes_) sum += size;
  return sum;
}

std::string Arena::report() const {
  std::ostringstream out;
  const auto row = [&out](std::string_view name, std::size_t bytes) {
    out << std::left << std::setw(34) << name << std::right << std::setw(12) << format_bytes(bytes)
        << '\n';
  };
  for (std::size_t kind = 0; kind < kKinds; ++kind) {
    if (sizes_[kind] == 0) continue;
    row(name_of(static_cast<MemoryKind>(kind)), sizes_[kind]);
    std::vector<std::pair<std::string, std::size_t>> groups;
    for (const Segment& s : segments_) {
      if (static_cast<std::size_t>(s.kind) != kind) continue;
      std::string group = s.name.substr(0, s.name.find('.'));
      if (s.overlay) group += " (over the others)";
      auto known = std::find_if(groups.begin(), groups.end(),
                                [&](const auto& g) { return g.first == group; });
      if (known == groups.end()) known = groups.insert(known, {group, 0});
      known->second += s.bytes;
    }
    for (const auto& [group, bytes] : groups) row("  " + group, bytes);
  }
  row("total", bytes());
  return out.str();
}

}  // namespace llmc
