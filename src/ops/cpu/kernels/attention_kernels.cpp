#include "ops/cpu/kernels/attention_kernels.h"

#include "ops/cpu/kernels/block_matmul.h"
#include "ops/cpu/kernels/simd.h"

// Scores are held transposed, [key][query], so that the queries of a block lie in vector lanes:
// the softmax then needs no reduction across lanes, and no product needs a packed operand but the
// transposed block of queries.

namespace llmc::cpu::LLMC_ISA {
namespace {

constexpr float kMinusInfinity = -__builtin_inff();

/// Which pairs of a query block and a key block count: key j for query i if j ≤ i + offset.
struct CausalBlock {
  std::int64_t queries;
  std::int64_t keys;
  std::int64_t offset;

  std::int64_t padded_queries() const { return (queries + kWidth - 1) / kWidth * kWidth; }

  /// Key j counts for the queries from here on.
  std::int64_t first_query(std::int64_t j) const {
    const std::int64_t i = j - offset;
    return i < 0 ? 0 : i < queries ? i : queries;
  }
  /// Query i sees the keys before this one.
  std::int64_t end_key(std::int64_t i) const {
    const std::int64_t j = i + offset + 1;
    return j < 0 ? 0 : j < keys ? j : keys;
  }
  bool masked() const { return keys - 1 > offset; }

  /// scores[j, i] = a[j, :] · bt[:, i], terms d < HS.
  void score(float* scores, const float* a, std::int64_t lda, const float* bt,
             std::int64_t HS) const {
    multiply<false>(scores, kQueryBlock, {a, lda, 1}, bt, kQueryBlock, keys, padded_queries(),
                    [&](std::int64_t j, std::int64_t) {
                      return TileRange{first_query(j), 0, HS};
                    });
  }
  /// out[i, :] += Σ_j p[j, i] · b[j, :].
  void add_to_queries(float* out, const float* p, const float* b, std::int64_t ld) const {
    multiply<true>(out, ld, {p, 1, kQueryBlock}, b, ld, queries, ld,
                   [&](std::int64_t i, std::int64_t count) {
                     return TileRange{0, 0, end_key(i + count - 1)};
                   });
  }
  /// out[j, :] += Σ_i p[j, i] · b[i, :].
  void add_to_keys(float* out, const float* p, const float* b, std::int64_t ld) const {
    multiply<true>(out, ld, {p, kQueryBlock, 1}, b, ld, keys, ld,
                   [&](std::int64_t j, std::int64_t) {
                     return TileRange{0, first_query(j), queries};
                   });
  }
};

/// fp32 copy of `rows` rows of HS elements, the rest of the `ld` columns zero.
template <class T>
void copy_rows(float* out, std::int64_t ld, const T* in, std::int64_t stride, std::int64_t rows,
               std::int64_t HS) {
  for (std::int64_t r = 0; r < rows; ++r) {
    for_vectors(HS, [&](std::int64_t d, auto lanes) {
      store(out + r * ld + d, load(in + r * stride + d, lanes));
    });
    for (std::int64_t d = (HS + kWidth - 1) / kWidth * kWidth; d < ld; d += kWidth) {
      store(out + r * ld + d, VecF{});
    }
  }
}

/// Rows of fp32, times a factor, to rows of HS elements of type T.
template <class T>
void write_rows(T* out, std::int64_t stride, const float* in, std::int64_t ld, std::int64_t rows,
                std::int64_t HS, float factor) {
  for (std::int64_t r = 0; r < rows; ++r) {
    for_vectors(HS, [&](std::int64_t d, auto lanes) {
      store(out + r * stride + d, load(in + r * ld + d) * factor, lanes);
    });
  }
}

/// The lanes (queries i …) that key j counts for, as a mask.
VecI visible(std::int64_t i, std::int64_t j, std::int64_t offset) {
  return lane_numbers() >= static_cast<std::int32_t>(j - offset - i);
}
VecF select(VecI mask, VecF a, VecF b) {
  return reinterpret_cast<VecF>((mask & reinterpret_cast<VecI>(a)) |
                                (~mask & reinterpret_cast<VecI>(b)));
}

/// Turns the scores of kWidth queries from i into probabilities relative to their running maximum;
/// returns what earlier sums and outputs must be multiplied by.
VecF update_softmax(float* scores, const CausalBlock& block, std::int64_t i, float* max_in_out,
                    float* sum_in_out) {
  float* const column = scores + i;
  const bool masked = block.masked();
  // Keys from full_end on do not count for all lanes, from end on for none.
  const std::int64_t full_end = block.end_key(i);
  const std::int64_t end = block.end_key(i + kWidth - 1);
  const VecF old_max = load(max_in_out + i);
  VecF m0 = old_max;
  VecF m1 = old_max;
  std::int64_t j = 0;
  for (; j + 2 <= full_end; j += 2) {
    m0 = max(load(column + j * kQueryBlock), m0);
    m1 = max(load(column + (j + 1) * kQueryBlock), m1);
  }
  for (; j < end; ++j) {
    const VecF s = load(column + j * kQueryBlock);
    m0 = max(select(visible(i, j, block.offset), s, splat(kMinusInfinity)), m0);
  }
  const VecF new_max = max(m0, m1);
  // A query that has seen no key yet keeps −∞; subtracting 0 instead avoids ∞ − ∞.
  const VecF shift = select(new_max > splat(kMinusInfinity), new_max, VecF{});
  VecF total{};
  for (j = 0; j < full_end; ++j) {
    const VecF p = exp(load(column + j * kQueryBlock) - shift);
    store(column + j * kQueryBlock, p);
    total += p;
  }
  for (; j < end; ++j) {
    VecF p = exp(load(column + j * kQueryBlock) - shift);
    p = select(visible(i, j, block.offset), p, VecF{});
    store(column + j * kQueryBlock, p);
    total += p;
  }
  if (masked) {
    for (; j < block.keys; ++j) store(column + j * kQueryBlock, VecF{});
  }
  const VecF correction = exp(old_max - shift);
  store(max_in_out + i, new_max);
  store(sum_in_out + i, load(sum_in_out + i) * correction + total);
  return correction;
}

template <class T>
void forward(const AttentionForwardArgs<T>& args) {
  const std::int64_t ld = padded_head_size(args.HS);
  float* const q = args.workspace;
  float* const qt = q + kQueryBlock * ld;
  float* const k = qt + kQueryBlock * ld;
  float* const v = k + kKeyBlock * ld;
  float* const out = v + kKeyBlock * ld;
  float* const scores = out + kQueryBlock * ld;
  float* const largest = scores + kQueryBlock * kKeyBlock;
  float* const total = largest + kQueryBlock;

  CausalBlock block{args.queries, 0, 0};
  const std::int64_t lanes = block.padded_queries();
  copy_rows(q, ld, args.q, args.q_stride, args.queries, args.HS);
  std::memset(q + args.queries * ld, 0,
              static_cast<std::size_t>((lanes - args.queries) * ld) * sizeof(float));
  transpose(qt, kQueryBlock, q, ld, lanes, ld, args.scale);
  std::memset(out, 0, static_cast<std::size_t>(args.queries * ld) * sizeof(float));
  for (std::int64_t i = 0; i < lanes; i += kWidth) {
    store(largest + i, splat(kMinusInfinity));
    store(total + i, VecF{});
  }

  const std::int64_t tokens = args.first + args.queries;
  for (std::int64_t begin = 0; begin < tokens; begin += kKeyBlock) {
    block.keys = tokens - begin < kKeyBlock ? tokens - begin : kKeyBlock;
    block.offset = args.first - begin;
    copy_rows(k, ld, args.k + begin * args.kv_stride, args.kv_stride, block.keys, args.HS);
    copy_rows(v, ld, args.v + begin * args.kv_stride, args.kv_stride, block.keys, args.HS);
    block.score(scores, k, ld, qt, args.HS);
    float correction[kQueryBlock];
    for (std::int64_t i = 0; i < lanes; i += kWidth) {
      store(correction + i, update_softmax(scores, block, i, largest, total));
    }
    for (std::int64_t i = 0; begin > 0 && i < args.queries; ++i) {
      if (correction[i] == 1.0f) continue;
      for (std::int64_t d = 0; d < ld; d += kWidth) {
        store(out + i * ld + d, load(out + i * ld + d) * correction[i]);
      }
    }
    block.add_to_queries(out, scores, v, ld);
  }
  for (std::int64_t i = 0; i < args.queries; ++i) {
    write_rows(args.out + i * args.out_stride, args.out_stride, out + i * ld, ld, 1, args.HS,
               1.0f / total[i]);
    if (args.lse != nullptr) args.lse[i] = largest[i] + __builtin_logf(total[i]);
  }
}

/// p = e^(score − lse) where the key counts, else 0; then ds = p · (dp − delta).
void softmax_gradient(float* p, float* dp, const CausalBlock& block, const float* lse,
                      const float* delta) {
  const bool masked = block.masked();
  for (std::int64_t j = 0; j < block.keys; ++j) {
    const std::int64_t begin = block.first_query(j) / kWidth * kWidth;
    for (std::int64_t i = begin; i < block.padded_queries(); i += kWidth) {
      float* const at = p + j * kQueryBlock + i;
      VecF x = exp(load(at) - load(lse + i));
      if (masked) x = select(visible(i, j, block.offset), x, VecF{});
      store(at, x);
      float* const d = dp + j * kQueryBlock + i;
      store(d, x * (load(d) - load(delta + i)));
    }
    for (std::int64_t i = 0; i < begin; i += kWidth) {
      store(p + j * kQueryBlock + i, VecF{});
      store(dp + j * kQueryBlock + i, VecF{});
    }
  }
}

/// What one block of queries brings to the backward pass, in fp32.
struct QueryBlock {
  float* q;     ///< (queries, ld)
  float* dout;  ///< (queries, ld)
  float* qt;    ///< (ld, queries), times the scale
  float* doutt;
  float* dq;
  float* lse;
  float* delta;  ///< Σ_d dout · out
};

template <class T>
void load_query_block(const QueryBlock& to, const AttentionBackwardArgs<T>& args, std::int64_t head,
                      std::int64_t begin, std::int64_t queries, std::int64_t lanes) {
  const std::int64_t ld = padded_head_size(args.HS);
  const T* const q = args.q + begin * args.qkv_stride + head * args.HS;
  const T* const out = args.out + begin * args.out_stride + head * args.HS;
  const T* const dout = args.dout + begin * args.out_stride + head * args.HS;
  const auto padding = static_cast<std::size_t>((lanes - queries) * ld) * sizeof(float);
  copy_rows(to.q, ld, q, args.qkv_stride, queries, args.HS);
  copy_rows(to.dout, ld, dout, args.out_stride, queries, args.HS);
  std::memset(to.q + queries * ld, 0, padding);
  std::memset(to.dout + queries * ld, 0, padding);
  transpose(to.qt, kQueryBlock, to.q, ld, lanes, ld, args.scale);
  transpose(to.doutt, kQueryBlock, to.dout, ld, lanes, ld, 1.0f);
  std::memset(to.dq, 0, static_cast<std::size_t>(queries * ld) * sizeof(float));
  for (std::int64_t i = 0; i < lanes; ++i) {
    to.lse[i] = i < queries ? args.lse[head * args.tokens + begin + i] : 0.0f;
    to.delta[i] = i >= queries ? 0.0f : sum_over(args.HS, [&](std::int64_t d, auto which) {
      return load(to.dout + i * ld + d, which) * load(out + i * args.out_stride + d, which);
    });
  }
}

template <class T>
void backward(const AttentionBackwardArgs<T>& args) {
  const std::int64_t ld = padded_head_size(args.HS);
  const std::int64_t piece = args.tokens * ld;
  float* const k = args.sequence;
  float* const v = k + piece;
  float* const dk = v + piece;
  float* const dv = dk + piece;
  QueryBlock of{};
  of.q = args.workspace;
  of.dout = of.q + kQueryBlock * ld;
  of.qt = of.dout + kQueryBlock * ld;
  of.doutt = of.qt + kQueryBlock * ld;
  of.dq = of.doutt + kQueryBlock * ld;
  float* const p = of.dq + kQueryBlock * ld;
  float* const dp = p + kQueryBlock * kKeyBlock;
  of.lse = dp + kQueryBlock * kKeyBlock;
  of.delta = of.lse + kQueryBlock;

  copy_rows(k, ld, args.k, args.qkv_stride, args.tokens, args.HS);
  copy_rows(v, ld, args.v, args.qkv_stride, args.tokens, args.HS);
  std::memset(dk, 0, static_cast<std::size_t>(2 * piece) * sizeof(float));
  for (std::int64_t head = 0; head < args.group; ++head) {
    for (std::int64_t first = 0; first < args.tokens; first += kQueryBlock) {
      const std::int64_t left = args.tokens - first;
      CausalBlock block{left < kQueryBlock ? left : kQueryBlock, 0, 0};
      load_query_block(of, args, head, first, block.queries, block.padded_queries());
      for (std::int64_t begin = 0; begin < first + block.queries; begin += kKeyBlock) {
        const std::int64_t keys = first + block.queries - begin;
        block.keys = keys < kKeyBlock ? keys : kKeyBlock;
        block.offset = first - begin;
        block.score(p, k + begin * ld, ld, of.qt, args.HS);
        block.score(dp, v + begin * ld, ld, of.doutt, args.HS);
        softmax_gradient(p, dp, block, of.lse, of.delta);
        block.add_to_keys(dv + begin * ld, p, of.dout, ld);
        block.add_to_keys(dk + begin * ld, dp, of.q, ld);
        block.add_to_queries(of.dq, dp, k + begin * ld, ld);
      }
      write_rows(args.dq + first * args.qkv_stride + head * args.HS, args.qkv_stride, of.dq, ld,
                 block.queries, args.HS, args.scale);
    }
  }
  write_rows(args.dk, args.qkv_stride, dk, ld, args.tokens, args.HS, args.scale);
  write_rows(args.dv, args.qkv_stride, dv, ld, args.tokens, args.HS, 1.0f);
}

}  // namespace

template <class T>
const AttentionKernels<T>& attention_kernels() {
  static constexpr AttentionKernels<T> kTable = {forward<T>, backward<T>};
  return kTable;
}
template const AttentionKernels<float>& attention_kernels();
template const AttentionKernels<bf16>& attention_kernels();

}  // namespace llmc::cpu::LLMC_ISA
