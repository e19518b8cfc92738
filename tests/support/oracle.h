#pragma once

// Every op once more, as its formula reads, in fp64. With kPlainBf16, each tensor that a plain
// composition of bf16 operations would store is rounded to bf16: the yardstick for bf16 errors.

#include <cstdint>
#include <vector>

#include "llmc/ops/adamw.h"
#include "support/test_tensor.h"

namespace llmc::testing {

enum class Arithmetic { kExact, kPlainBf16 };

/// x as a tensor of that arithmetic would hold it.
double stored(Arithmetic arithmetic, double x);

double gelu(double x);
double gelu_gradient(double x);

struct LayerNormForward {
  Values out;   // (N, C)
  Values mean;  // (N)
  Values rstd;  // (N)
};
LayerNormForward layernorm_forward(Arithmetic arithmetic, const Values& in, const Values& weight,
                                   const Values& bias, double eps);

struct LayerNormBackward {
  Values din;      // (N, C)
  Values dweight;  // (C)
  Values dbias;    // (C)
};
LayerNormBackward layernorm_backward(Arithmetic arithmetic, const Values& dout, const Values& in,
                                     const Values& weight, double eps);

struct AttentionSizes {
  std::int64_t B, T, NH, NKV, HS;
  std::int64_t heads() const { return NH + 2 * NKV; }
};
struct AttentionForward {
  Values out;  // (B, T, NH, HS)
  Values lse;  // (B, NH, T)
};
AttentionForward attention_forward(Arithmetic arithmetic, const AttentionSizes& sizes,
                                   const Values& qkv, double scale);
/// dqkv, (B, T, NH + 2 NKV, HS).
Values attention_backward(Arithmetic arithmetic, const AttentionSizes& sizes, const Values& dout,
                          const Values& qkv, double scale);

struct CrossEntropy {
  Values losses;   // (R)
  Values dlogits;  // (R, Vp)
};
CrossEntropy cross_entropy(Arithmetic arithmetic, const Values& logits, const Values& targets,
                           std::int64_t V, double dloss);

/// One AdamW update of every element, in place; t counts from 1.
struct AdamWState {
  Values theta, m, v;
};
void adamw(AdamWState& state, const Values& grad, double lr, double grad_scale,
           const AdamWOptions& options, std::int64_t t);

}  // namespace llmc::testing
