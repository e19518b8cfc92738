#include "llmc/ops/embedding.h"

#include <bit>
#include <cstddef>
#include <cub/device/device_radix_sort.cuh>
#include <limits>

#include "ops/check.h"
#include "ops/cuda/kernel.cuh"
#include "ops/embedding_check.h"

namespace llmc {
namespace cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;
/// Sorted positions whose gradients one block adds up in order.
constexpr int kPiece = 64;
/// Rows that a thread loads before it adds them.
constexpr int kBatch = 8;
/// Threads of a block along the channels, and pieces that it adds side by side.
constexpr int kSumThreads = 128;
constexpr int kSides = 8;

/// The position of a row: `first` plus its place in the sequence, or its own element of `each`.
struct Positions {
  std::int64_t first = 0;
  std::int64_t count = 0;  ///< of all positions
  const std::int32_t* each = nullptr;
};

/// A warp per row.
template <class T, int kN>
__global__ void __launch_bounds__(kThreads)
    embedding_kernel(T* __restrict__ out, const std::int32_t* __restrict__ tokens,
                     const T* __restrict__ wte, const T* __restrict__ wpe, EmbeddingSizes sizes,
                     std::int64_t vocab_size, Positions positions) {
  const std::int64_t row =
      static_cast<std::int64_t>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / kWarp;
  if (row >= sizes.B * sizes.T) return;
  const std::int64_t token = tokens[row];
  bool known = token >= 0 && token < vocab_size;
  std::int64_t place = positions.first + row % sizes.T;
  if (positions.each != nullptr && wpe != nullptr) {
    place = positions.each[row];
    if (place < 0 || place >= positions.count) {
      place = 0;
      known = false;
    }
  }
  const T* const vector = wte + (known ? token : 0) * sizes.C;
  const T* const position = wpe == nullptr ? nullptr : wpe + place * sizes.C;
#pragma unroll 4
  for (std::int64_t c = static_cast<int>(threadIdx.x) % kWarp * kN; c < sizes.C; c += kWarp * kN) {
    auto x = Vec<T, kN>::load(vector + c);
    if (wpe != nullptr) {
      const auto p = Vec<T, kN>::load(position + c);
#pragma unroll
      for (int i = 0; i < kN; ++i) x.set(i, x.get(i) + p.get(i));
    }
    if (!known) {
      for (int i = 0; i < kN; ++i) x.set(i, __int_as_float(0x7fffffff));
    }
    x.store(out + row * sizes.C + c);
  }
}

/// A position under its token: sorted, the positions of a token follow each other in order.
using Key = std::uint64_t;
constexpr int kTokenShift = 32;

__device__ std::int64_t token_of(Key key) {
  return static_cast<std::int64_t>(key >> kTokenShift);
}
__device__ std::int64_t position_of(Key key) {
  return static_cast<std::int64_t>(key & 0xffffffffu);
}

/// Tokens out of range count as token `vocab_size`, which has no gradient.
__global__ void __launch_bounds__(kThreads)
    make_keys_kernel(Key* keys, const std::int32_t* tokens, std::int64_t count,
                     std::int64_t vocab_size) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= count) return;
  const bool known = tokens[i] >= 0 && tokens[i] < vocab_size;
  const auto token = static_cast<Key>(known ? tokens[i] : vocab_size);
  keys[i] = token << kTokenShift | static_cast<Key>(i);
}

// kN floats at an address that is aligned to them, or to 16 bytes.

template <int kN>
__device__ void load(float (&to)[kN], const float* from) {
  constexpr int kStep = kN < kVec<float> ? kN : kVec<float>;
#pragma unroll
  for (int i = 0; i < kN; i += kStep) {
    const auto x = Vec<float, kStep>::load(from + i);
#pragma unroll
    for (int j = 0; j < kStep; ++j) to[i + j] = x.at[j];
  }
}

template <int kN>
__device__ void store(float* to, const float (&from)[kN]) {
  constexpr int kStep = kN < kVec<float> ? kN : kVec<float>;
#pragma unroll
  for (int i = 0; i < kN; i += kStep) {
    Vec<float, kStep> x;
#pragma unroll
    for (int j = 0; j < kStep; ++j) x.at[j] = from[i + j];
    x.store(to + i);
  }
}

/// A block per kPiece sorted positions and kSumThreads · kN channels. Sums of tokens that begin in
/// this piece go to dwte; that of a token which began in an earlier piece becomes this piece's
/// partial sum.
template <class T, int kN>
__global__ void __launch_bounds__(kSumThreads)
    sum_pieces_kernel(float* dwte, float* partials, const T* dout, const Key* sorted,
                      std::int64_t count, std::int64_t C, std::int64_t vocab_size) {
  __shared__ Key keys[kPiece];
  const std::int64_t piece = blockIdx.x;
  const std::int64_t first = piece * kPiece;
  const int n = static_cast<int>(count - first < kPiece ? count - first : kPiece);
  const auto thread = static_cast<int>(threadIdx.x);
  static_assert(kPiece <= kSumThreads);
  if (thread < n) keys[thread] = sorted[first + thread];
  __syncthreads();
  const std::int64_t c = (static_cast<std::int64_t>(blockIdx.y) * kSumThreads + thread) * kN;
  if (c >= C) return;

  std::int64_t token = token_of(keys[0]);
  bool began_before = piece > 0 && token_of(sorted[first - 1]) == token;
  float sum[kN] = {};
  const auto put_away = [&] {
    if (!began_before && token >= vocab_size) return;
    float* const to = (began_before ? partials + piece * C : dwte + token * C) + c;
    if (!began_before) {
      float before[kN];
      load(before, to);
#pragma unroll
      for (int j = 0; j < kN; ++j) sum[j] += before[j];
    }
    store(to, sum);
  };
  for (int begin = 0; begin < n; begin += kBatch) {
    Vec<T, kN> rows[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (begin + i < n) rows[i] = Vec<T, kN>::load(dout + position_of(keys[begin + i]) * C + c);
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (begin + i >= n) break;
      if (token_of(keys[begin + i]) != token) {
        put_away();
        began_before = false;
        token = token_of(keys[begin + i]);
#pragma unroll
        for (int j = 0; j < kN; ++j) sum[j] = 0.0f;
      }
#pragma unroll
      for (int j = 0; j < kN; ++j) sum[j] += rows[i].get(j);
    }
  }
  put_away();
}

/// A block per piece and kWarp · kN channels, idle but where a token of the piece before goes on
/// into this one: then it adds the token's partial sums, from this piece to the last, to dwte.
template <int kN>
__global__ void __launch_bounds__(kWarp* kSides)
    add_partials_kernel(float* dwte, const float* partials, const Key* sorted, std::int64_t count,
                        std::int64_t C, std::int64_t vocab_size) {
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) + 1;
  const auto token_at = [&](std::int64_t i) { return token_of(sorted[i]); };
  const std::int64_t token = token_at(first * kPiece);
  const bool begins_in_piece_before = token_at(first * kPiece - 1) == token &&
                                      (first == 1 || token_at((first - 1) * kPiece - 1) != token);
  if (!begins_in_piece_before || token >= vocab_size) return;
  std::int64_t end = first + 1;  // past the last piece that starts with the token
  for (std::int64_t high = (count + kPiece - 1) / kPiece; end < high;) {
    const std::int64_t middle = end + (high - end) / 2;
    if (token_at(middle * kPiece) == token) {
      end = middle + 1;
    } else {
      high = middle;
    }
  }

  __shared__ Vec<float, kN> sums[kSides][kWarp];
  const auto lane = static_cast<int>(threadIdx.x) % kWarp;
  const auto side = static_cast<int>(threadIdx.x) / kWarp;
  const std::int64_t c = (static_cast<std::int64_t>(blockIdx.y) * kWarp + lane) * kN;
  float sum[kN] = {};
  if (c < C) {
#pragma unroll 8
    for (std::int64_t piece = first + side; piece < end; piece += kSides) {
      const auto part = Vec<float, kN>::load(partials + piece * C + c);
#pragma unroll
      for (int j = 0; j < kN; ++j) sum[j] += part.at[j];
    }
  }
#pragma unroll
  for (int j = 0; j < kN; ++j) sums[side][lane].at[j] = sum[j];
  __syncthreads();
  if (side > 0 || c >= C) return;
  load(sum, dwte + token * C + c);
  for (int s = 0; s < kSides; ++s) {
#pragma unroll
    for (int j = 0; j < kN; ++j) sum[j] += sums[s][lane].at[j];
  }
  store(dwte + token * C + c, sum);
}

/// A block per position and kSumThreads · kN channels.
template <class T, int kN>
__global__ void __launch_bounds__(kSumThreads)
    sum_positions_kernel(float* dwpe, const T* dout, EmbeddingSizes sizes, bool accumulate) {
  const std::int64_t t = blockIdx.x;
  const std::int64_t c = (static_cast<std::int64_t>(blockIdx.y) * kSumThreads + threadIdx.x) * kN;
  if (c >= sizes.C) return;
  float* const to = dwpe + t * sizes.C + c;
  float sum[kN] = {};
  if (accumulate) load(sum, to);
  if (t < sizes.T) {
#pragma unroll 8
    for (std::int64_t b = 0; b < sizes.B; ++b) {
      const auto row = Vec<T, kN>::load(dout + (b * sizes.T + t) * sizes.C + c);
#pragma unroll
      for (int j = 0; j < kN; ++j) sum[j] += row.get(j);
    }
  }
  store(to, sum);
}

/// How embedding_backward divides its scratch, in bytes from a multiple of kAlignment.
struct Scratch {
  static constexpr std::size_t kAlignment = 256;
  std::size_t keys[2];
  std::size_t partials;
  std::size_t sort;
  std::size_t sort_bytes;
  std::size_t bytes;
};
Scratch scratch_for(std::int64_t count, std::int64_t C) {
  Scratch scratch{};
  std::size_t end = 0;
  const auto take = [&end](std::size_t bytes) {
    const std::size_t begin = end;
    end += (bytes + Scratch::kAlignment - 1) / Scratch::kAlignment * Scratch::kAlignment;
    return begin;
  };
  for (std::size_t& keys : scratch.keys) keys = take(static_cast<std::size_t>(count) * sizeof(Key));
  scratch.partials = take(static_cast<std::size_t>(ceil_div(count, kPiece) * C) * sizeof(float));
  cub::DoubleBuffer<Key> keys;
  check(cub::DeviceRadixSort::SortKeys(nullptr, scratch.sort_bytes, keys, count, kTokenShift,
                                       8 * static_cast<int>(sizeof(Key))),
        "embedding_backward_scratch");
  scratch.sort = take(scratch.sort_bytes);
  scratch.bytes = end + Scratch::kAlignment;
  return scratch;
}

/// Sorts the positions by their tokens. The sort is stable, so positions stay in order.
const Key* sort_positions(const Stream::Impl& stream, const Scratch& scratch, std::byte* memory,
                          const std::int32_t* tokens, std::int64_t count, std::int64_t vocab_size) {
  cub::DoubleBuffer<Key> keys(reinterpret_cast<Key*>(memory + scratch.keys[0]),
                              reinterpret_cast<Key*>(memory + scratch.keys[1]));
  make_keys_kernel<<<static_cast<unsigned>(ceil_div(count, kThreads)), kThreads, 0,
                     stream.stream>>>(keys.Current(), tokens, count, vocab_size);
  check_launch("embedding_backward");
  const int bits = std::bit_width(static_cast<std::uint64_t>(vocab_size));
  std::size_t sort_bytes = scratch.sort_bytes;
  check(cub::DeviceRadixSort::SortKeys(memory + scratch.sort, sort_bytes, keys, count, kTokenShift,
                                       kTokenShift + bits, stream.stream),
        "embedding_backward: sort");
  return keys.Current();
}

template <class T, int kN>
void launch_sums(const Stream::Impl& stream, float* dwte, const Tensor& dwpe, float* partials,
                 const T* dout, const Key* sorted, const EmbeddingSizes& sizes,
                 std::int64_t vocab_size, bool accumulate) {
  constexpr int kPartialN = kN < kVec<float> ? kN : kVec<float>;
  const std::int64_t count = sizes.B * sizes.T;
  const auto pieces = static_cast<unsigned>(ceil_div(count, kPiece));
  const auto slabs = static_cast<unsigned>(ceil_div(sizes.C, kSumThreads * kN));
  sum_pieces_kernel<T, kN><<<dim3(pieces, slabs), kSumThreads, 0, stream.stream>>>(
      dwte, partials, dout, sorted, count, sizes.C, vocab_size);
  if (pieces > 1) {
    const auto partial_slabs = static_cast<unsigned>(ceil_div(sizes.C, kWarp * kPartialN));
    add_partials_kernel<kPartialN>
        <<<dim3(pieces - 1, partial_slabs), kWarp * kSides, 0, stream.stream>>>(
            dwte, partials, sorted, count, sizes.C, vocab_size);
  }
  if (dwpe) {
    const auto positions = static_cast<unsigned>(dwpe.dim(0));
    sum_positions_kernel<T, kN><<<dim3(positions, slabs), kSumThreads, 0, stream.stream>>>(
        pointer<float>(dwpe), dout, sizes, accumulate);
  }
}

void look_up(Stream::Impl& stream, const char* op, const EmbeddingSizes& sizes, const Tensor& out,
             const Tensor& tokens, const Tensor& wte, const Tensor& wpe,
             const Positions& positions) {
  const std::int64_t rows = sizes.B * sizes.T;
  if (rows == 0) return;
  const CurrentDevice current(stream.ordinal());
  with_float_type(op, "wte", wte, [&]<class T>(std::type_identity<T>) {
    T* const y = pointer<T>(out);
    const T* const vectors = pointer<T>(wte);
    const T* const places = pointer<T>(wpe);
    const auto launch = [&]<int kN>(std::integral_constant<int, kN>) {
      const auto blocks = static_cast<unsigned>(ceil_div(rows, kWarps));
      embedding_kernel<T, kN><<<blocks, kThreads, 0, stream.stream>>>(
          y, pointer<std::int32_t>(tokens), vectors, places, sizes, wte.dim(0), positions);
    };
    if (aligned_rows<T>(sizes.C, y, vectors, places)) {
      launch(std::integral_constant<int, kVec<T>>());
    } else {
      launch(std::integral_constant<int, 1>());
    }
  });
  check_launch(op);
}

}  // namespace
}  // namespace cuda

void embedding_forward(Stream& stream, const Tensor& out, const Tensor& tokens, const Tensor& wte,
                       const Tensor& wpe, std::int64_t first_position) {
  constexpr const char* kOp = "embedding_forward";
  const EmbeddingSizes sizes = check_embedding_forward(kOp, out, tokens, wte, wpe, first_position);
  cuda::look_up(stream.impl(), kOp, sizes, out, tokens, wte, wpe, {.first = first_position});
}

void embedding_forward_at(Stream& stream, const Tensor& out, const Tensor& tokens,
                          const Tensor& wte, const Tensor& wpe, const Tensor& positions) {
  constexpr const char* kOp = "embedding_forward_at";
  const EmbeddingSizes sizes = check_embedding_forward_at(kOp, out, tokens, wte, wpe, positions);
  cuda::look_up(stream.impl(), kOp, sizes, out, tokens, wte, wpe,
                {.count = wpe ? wpe.dim(0) : 0, .each = positions.data<std::int32_t>()});
}

std::int64_t embedding_backward_scratch(const Stream& stream, std::int64_t batch,
                                        std::int64_t tokens, std::int64_t channels) {
  const cuda::CurrentDevice current(stream.device().impl().ordinal);
  return static_cast<std::int64_t>(cuda::scratch_for(batch * tokens, channels).bytes);
}

void embedding_backward(Stream& stream, const Tensor& dwte, const Tensor& dwpe, const Tensor& dout,
                        const Tensor& tokens, const Tensor& scratch, bool accumulate) {
  constexpr const char* kOp = "embedding_backward";
  const EmbeddingSizes sizes = check_embedding_backward(kOp, dwte, dwpe, dout, tokens);
  const std::int64_t count = sizes.B * sizes.T;
  if (count > std::numeric_limits<std::uint32_t>::max()) {
    fail(ErrorKind::kInput, kOp, "tokens: expected at most 2^32 - 1, got ", count);
  }
  if (count == 0) return;
  const cuda::CurrentDevice current(stream.impl().ordinal());
  const cuda::Scratch parts = cuda::scratch_for(count, sizes.C);
  expect_scratch(kOp, scratch, static_cast<std::int64_t>(parts.bytes));
  const auto address = reinterpret_cast<std::uintptr_t>(scratch.raw());
  auto* const memory = static_cast<std::byte*>(scratch.raw()) +
                       (cuda::Scratch::kAlignment - address % cuda::Scratch::kAlignment);
  const std::int64_t vocab_size = dwte.dim(0);
  const cuda::Key* const sorted = cuda::sort_positions(
      stream.impl(), parts, memory, cuda::pointer<std::int32_t>(tokens), count, vocab_size);
  auto* const to = cuda::pointer<float>(dwte);
  auto* const partials = reinterpret_cast<float*>(memory + parts.partials);
  cuda::with_float_type(kOp, "dout", dout, [&]<class T>(std::type_identity<T>) {
    const T* const from = cuda::pointer<T>(dout);
    const auto launch = [&]<int kN>(std::integral_constant<int, kN>) {
      cuda::launch_sums<T, kN>(stream.impl(), to, dwpe, partials, from, sorted, sizes, vocab_size,
                               accumulate);
    };
    if (cuda::aligned_rows<T>(sizes.C, from, to, cuda::pointer<float>(dwpe))) {
      launch(std::integral_constant<int, cuda::kVec<T>>());
    } else {
      launch(std::integral_constant<int, 1>());
    }
  });
  cuda::check_launch(kOp);
}

}  // namespace llmc
