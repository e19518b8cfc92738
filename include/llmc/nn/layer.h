#pragma once

#include <cstdint>

#include "llmc/core/device.h"
#include "llmc/nn/activations.h"
#include "llmc/nn/parameters.h"

namespace llmc {

// How layers work. A layer's constructor declares its parameters and activations into a LayerPlan
// and keeps only their numbers; forward and backward find the tensors through a LayerContext. So a
// model is put together in four steps:
//   1. construct the layers, after ParameterSet::begin_bucket for each group of them;
//   2. parameters.plan(arena); activations.plan(arena); arena.allocate(device);
//   3. parameters.bind(arena); activations.bind(arena); initialise(stream, parameters, seed);
//   4. call forward in order and backward in reverse order.
// Layers do not keep their inputs: backward takes them again from the caller. backward writes the
// gradients of the layer's parameters (adding when the context says so) and of its input.

/// What layers are declared into.
struct LayerPlan {
  ParameterSet& parameters;
  ActivationSet& activations;
  Stream& stream;        ///< the stream they will run on, asked for sizes of scratch
  std::int64_t batch;    ///< largest B
  std::int64_t tokens;   ///< largest T
  bool training = true;  ///< a backward pass will follow
  Recompute recompute = Recompute::kNone;

  std::int64_t rows() const { return batch * tokens; }
  DType dtype() const { return parameters.dtype(); }
  /// Whether an activation is kept that is recomputed from `level` on.
  bool keeps(Recompute level) const { return training && recompute < level; }
};

/// What layers are called with.
struct LayerContext {
  Stream& stream;
  const ParameterSet& parameters;
  const ActivationSet& activations;
  bool accumulate = false;  ///< gradients of parameters are added to what is there, else overwrite
};

}  // namespace llmc
