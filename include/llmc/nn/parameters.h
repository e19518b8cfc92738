#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "llmc/core/arena.h"
#include "llmc/core/device.h"
#include "llmc/core/tensor.h"

namespace llmc {

/// How a parameter starts.
struct Initialiser {
  enum class Kind { kZeros, kOnes, kNormal };
  Kind kind = Kind::kZeros;
  float stddev = 0.0f;    ///< kNormal only; the mean is 0
  std::int64_t rows = 0;  ///< kNormal only: rows drawn, the others are zero; 0: all

  static Initialiser zeros() { return {}; }
  static Initialiser ones() { return {Kind::kOnes}; }
  static Initialiser normal(float stddev, std::int64_t rows = 0) {
    return {Kind::kNormal, stddev, rows};
  }
};

/// What the optimizer does with a parameter.
enum class OptimizerGroup { kDecay, kNoDecay };

/// One row of the table.
struct Parameter {
  std::string name;  ///< for example "blocks.0.attn.qkv.weight"
  Shape shape;
  Initialiser init;
  OptimizerGroup group;
  std::int64_t layer;   ///< block index, −1 outside the blocks
  std::size_t bucket;   ///< index of its bucket
  std::int64_t offset;  ///< first element inside the bucket, a multiple of 64
};

/// Parameters that are stored, communicated and updated together, one after the other.
struct Bucket {
  std::string name;          ///< for example "blocks.0"
  std::int64_t layer;        ///< block index, −1 outside the blocks
  std::int64_t size;         ///< elements, padding included: a multiple of kNormBlock × ranks
  std::int64_t first_index;  ///< number of its first element in the whole model; does not depend on
                             ///< the number of ranks
};

/// The table of a model's parameters, and their storage. Initialisation, optimizer, sharding,
/// checkpoint, export and gradient check all walk this one table. Used in three steps: layers
/// declare into buckets, `plan` adds the storage to an Arena, and `bind` takes the views once the
/// Arena is allocated. Padding is zero in values and gradients and must stay so.
class ParameterSet {
 public:
  using Id = std::size_t;  ///< index into the table

  /// dtype: of the values, f32 or bf16. gradients: there are some, always f32. ranks: each bucket's
  /// size is a multiple of kNormBlock × ranks, so that slices are equal and whole norm blocks.
  explicit ParameterSet(DType dtype, bool gradients = true, int ranks = 1);

  /// Starts a bucket, into which the following declarations go.
  std::size_t begin_bucket(std::string name, std::int64_t layer = -1);
  /// Adds a parameter to the newest bucket. Throws a config error if the name is taken or there is
  /// no bucket, a memory error after `plan`.
  Id declare(std::string name, Shape shape, Initialiser init, OptimizerGroup group);
  /// Closes the table and declares one segment per bucket, of values and of gradients.
  void plan(Arena& arena);
  /// Takes the views; the arena must be the planned one, allocated.
  void bind(const Arena& arena);

  DType dtype() const { return dtype_; }
  bool has_gradients() const { return gradients_; }
  int ranks() const { return ranks_; }

  /// All parameters, in table order.
  const std::vector<Parameter>& table() const { return table_; }
  /// Row of a name; throws an input error for an unknown one.
  Id find(std::string_view name) const;
  /// Elements of all parameters, without padding between them.
  std::int64_t numel() const;

  /// Views of one parameter in its shape: valid after `bind`. Gradients are empty without
  /// `gradients`.
  Tensor value(Id id) const { return values_[id]; }
  Tensor gradient(Id id) const { return grads_[id]; }
  Tensor value(std::string_view name) const { return values_[find(name)]; }
  Tensor gradient(std::string_view name) const { return grads_[find(name)]; }

  /// In storage order. Views are flat, (size), padding included.
  const std::vector<Bucket>& buckets() const { return buckets_; }
  Tensor bucket_values(std::size_t bucket) const { return bucket_values_[bucket]; }
  Tensor bucket_gradients(std::size_t bucket) const { return bucket_grads_[bucket]; }

 private:
  DType dtype_;
  bool gradients_;
  int ranks_;
  bool planned_ = false;
  std::vector<Parameter> table_;
  std::vector<Bucket> buckets_;
  std::vector<Arena::Id> value_segments_, grad_segments_;
  std::vector<Tensor> values_, grads_, bucket_values_, bucket_grads_;
};

/// Writes every parameter's starting values from one PyTorch-compatible mt19937 stream, in table
/// order; bf16 values are rounded to nearest. The parameters must be bound.
void initialise(Stream& stream, const ParameterSet& parameters, std::uint32_t seed);

/// Checksum64 of every parameter's values, in table order. The parameters must be bound.
std::uint64_t checksum_of(Stream& stream, const ParameterSet& parameters);

}  // namespace llmc
