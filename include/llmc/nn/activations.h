#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "llmc/core/arena.h"
#include "llmc/core/tensor.h"

namespace llmc {

/// What the backward pass computes again instead of keeping; each level includes those before it.
/// Results have the same bits at every level.
enum class Recompute {
  kNone,
  kGelu,      ///< GELU's output, from its input
  kGeluNorm,  ///< and the outputs of the norms, from the residual stream
  kBlock,     ///< all of a block, from its input
};

/// "none", "gelu", "gelu+norm", "block"; throws a config error for another name.
Recompute recompute_from_name(std::string_view name);
std::string_view name_of(Recompute recompute);

/// The table of what a model's layers write besides gradients of parameters, and its storage. Like
/// ParameterSet it is declared, planned into an Arena, then bound.
class ActivationSet {
 public:
  /// Index into the table; kNone stands for a tensor that is not there.
  using Id = std::size_t;
  static constexpr Id kNone = static_cast<Id>(-1);

  /// Memory of its own, which lasts from the forward to the backward pass.
  Id keep(std::string name, DType dtype, Shape shape);
  /// Memory shared by all who ask for the same name, of the largest size asked for. What it holds
  /// lasts until the next of them writes. Throws a config error if the dtypes differ.
  Id share(std::string_view name, DType dtype, Shape shape);
  /// Like `share`, but over the memory of all that is shared: what it holds lasts until anyone
  /// writes to shared memory, whose own contents it destroys. Passing logits are larger than the
  /// rest of a model's scratch, and exist only between its layers' passes.
  Id overlay(std::string_view name, DType dtype, Shape shape);
  /// `keep` under "name.owner" or `share` under "name".
  Id keep_or_share(bool keep, std::string_view name, std::string_view owner, DType dtype,
                   Shape shape);

  /// Closes the table and declares its segments: kept ones as activations, shared ones as scratch.
  void plan(Arena& arena);
  /// Takes the views; the arena must be the planned one, allocated.
  void bind(const Arena& arena);

  /// The first shape.numel() elements under that shape, so that a call may be smaller than what was
  /// planned; an empty tensor for kNone. Throws an input error if it is larger.
  Tensor get(Id id, Shape shape) const;
  /// All of it, in the declared shape.
  Tensor get(Id id) const;

 private:
  enum class Place { kKept, kShared, kOverlay };
  struct Entry {
    std::string name;
    DType dtype;
    Shape shape;
    Place place;
    Arena::Id segment;
    Tensor tensor;
  };
  Id add(std::string name, DType dtype, Shape shape, Place place);
  Id add_or_join(std::string_view name, DType dtype, Shape shape, Place place);

  std::vector<Entry> entries_;
  bool planned_ = false;
};

}  // namespace llmc
