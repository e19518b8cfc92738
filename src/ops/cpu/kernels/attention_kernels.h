#pragma once

#include <cstddef>
#include <cstdint>

#include "ops/cpu/kernels/kernel_table.h"

namespace llmc::cpu {

inline constexpr std::int64_t kQueryBlock = 64;
inline constexpr std::int64_t kKeyBlock = 64;
inline constexpr std::int64_t kMaxHeadSize = 1024;

/// HS rounded up to a multiple of every vector's width: rows of the fp32 copies.
inline constexpr std::int64_t padded_head_size(std::int64_t HS) {
  return (HS + 15) / 16 * 16;
}

/// Floats of workspace for one call of forward or backward.
inline constexpr std::int64_t attention_workspace_floats(std::int64_t HS) {
  return 5 * kQueryBlock * padded_head_size(HS) + 2 * kQueryBlock * kKeyBlock + 4 * kQueryBlock;
}

/// One block of queries of one head. Rows of q and out are q_stride and out_stride apart, rows of k
/// and v kv_stride. Query i stands at position first + i and sees the keys up to there.
template <class T>
struct AttentionForwardArgs {
  T* out;      ///< (queries, HS)
  float* lse;  ///< (queries) or null
  const T* q;  ///< (queries, HS)
  const T* k;  ///< (first + queries, HS)
  const T* v;
  std::int64_t out_stride;
  std::int64_t q_stride;
  std::int64_t kv_stride;
  std::int64_t queries;  ///< at most kQueryBlock
  std::int64_t first;
  std::int64_t HS;
  float scale;
  float* workspace;
};

/// One key head of one sequence with the `group` query heads that read it. Rows of q, k, v and
/// their gradients are qkv_stride apart, rows of out and dout out_stride; query heads are HS apart
/// in both.
template <class T>
struct AttentionBackwardArgs {
  T* dq;  ///< (tokens, group, HS)
  T* dk;  ///< (tokens, HS)
  T* dv;
  const T* q;
  const T* k;
  const T* v;
  const T* out;  ///< (tokens, group, HS)
  const T* dout;
  const float* lse;  ///< (group, tokens)
  std::int64_t qkv_stride;
  std::int64_t out_stride;
  std::int64_t tokens;
  std::int64_t group;
  std::int64_t HS;
  float scale;
  float* sequence;  ///< 4 · tokens · padded_head_size(HS) floats
  float* workspace;
};

/// Causal attention on elements of type T (float or bf16), computed in fp32.
template <class T>
struct AttentionKernels {
  void (*forward)(const AttentionForwardArgs<T>& args);
  void (*backward)(const AttentionBackwardArgs<T>& args);
};

LLMC_DECLARE_KERNELS(AttentionKernels, attention_kernels);

}  // namespace llmc::cpu
