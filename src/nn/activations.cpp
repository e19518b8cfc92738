#include "llmc/nn/activations.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "llmc/core/error.h"

namespace llmc {
namespace {

constexpr std::string_view kRecomputeNames[] = {"none", "gelu", "gelu+norm", "block"};

}  // namespace

Recompute recompute_from_name(std::string_view name) {
  for (std::size_t i = 0; i < std::size(kRecomputeNames); ++i) {
    if (name == kRecomputeNames[i]) return static_cast<Recompute>(i);
  }
  fail(ErrorKind::kConfig, "model", "recompute: expected none, gelu, gelu+norm or block, got \"",
       name, "\"");
}

std::string_view name_of(Recompute recompute) {
  return kRecomputeNames[static_cast<std::size_t>(recompute)];
}

ActivationSet::Id ActivationSet::keep(std::string name, DType dtype, Shape shape) {
  return add(std::move(name), dtype, shape, Place::kKept);
}

ActivationSet::Id ActivationSet::share(std::string_view name, DType dtype, Shape shape) {
  return add_or_join(name, dtype, shape, Place::kShared);
}

ActivationSet::Id ActivationSet::overlay(std::string_view name, DType dtype, Shape shape) {
  return add_or_join(name, dtype, shape, Place::kOverlay);
}

ActivationSet::Id ActivationSet::add(std::string name, DType dtype, Shape shape, Place place) {
  if (planned_) {
    fail(ErrorKind::kMemory, "activations", "expected activations before the plan, got ", name,
         " after it");
  }
  entries_.push_back({std::move(name), dtype, shape, place, 0, {}});
  return entries_.size() - 1;
}

ActivationSet::Id ActivationSet::add_or_join(std::string_view name, DType dtype, Shape shape,
                                             Place place) {
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    Entry& entry = entries_[i];
    if (entry.place != place || entry.name != name) continue;
    if (entry.dtype != dtype) {
      fail(ErrorKind::kConfig, "activations", name, ": expected ", llmc::name_of(entry.dtype),
           " as its other users, got ", llmc::name_of(dtype));
    }
    if (shape.numel() > entry.shape.numel()) entry.shape = shape;
    return i;
  }
  return add(std::string(name), dtype, shape, place);
}

ActivationSet::Id ActivationSet::keep_or_share(bool keep_it, std::string_view name,
                                               std::string_view owner, DType dtype, Shape shape) {
  return keep_it ? keep(concat(name, '.', owner), dtype, shape) : share(name, dtype, shape);
}

void ActivationSet::plan(Arena& arena) {
  if (planned_) fail(ErrorKind::kMemory, "activations", "expected one plan, got a second");
  planned_ = true;
  for (Entry& entry : entries_) {
    const auto [name, dtype, shape] = std::tie(entry.name, entry.dtype, entry.shape);
    switch (entry.place) {
      case Place::kKept:
        entry.segment = arena.declare(MemoryKind::kActivations, name, dtype, shape);
        break;
      case Place::kShared:
        entry.segment = arena.declare(MemoryKind::kScratch, name, dtype, shape);
        break;
      case Place::kOverlay:
        entry.segment = arena.overlay(MemoryKind::kScratch, name, dtype, shape);
        break;
    }
  }
}

void ActivationSet::bind(const Arena& arena) {
  for (Entry& entry : entries_) entry.tensor = arena.tensor(entry.segment);
}

Tensor ActivationSet::get(Id id, Shape shape) const {
  if (id == kNone) return {};
  const Entry& entry = entries_[id];
  if (shape.numel() > entry.tensor.numel()) {
    fail(ErrorKind::kInput, "activations", entry.name, ": expected at most ", entry.shape, ", got ",
         shape);
  }
  return entry.tensor.flat(0, shape.numel()).view(shape);
}

Tensor ActivationSet::get(Id id) const {
  return id == kNone ? Tensor() : entries_[id].tensor;
}

}  // namespace llmc
