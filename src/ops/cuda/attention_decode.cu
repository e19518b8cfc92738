#include "ops/cuda/attention_decode.h"

#include "llmc/ops/attention.h"
#include "ops/cuda/flash_tile.cuh"

namespace llmc {
namespace cuda {
namespace {

constexpr const char* kOp = "attention_decode";
constexpr int kThreads = 256;

template <class T>
struct DecodeArgs {
  T* out;
  T* k_cache;
  T* v_cache;
  const T* qkv;
  std::int64_t max_tokens;
  std::int64_t position;
  const std::int32_t* positions;
  int tokens;
  int heads;
  int kv_heads;
  int head_size;
  bool aligned;
  float scale_log2;

  __device__ std::int64_t qkv_token() const {
    return std::int64_t{heads + 2 * kv_heads} * head_size;
  }
  __device__ std::int64_t kv_token() const { return std::int64_t{kv_heads} * head_size; }
};

template <class T>
DecodeArgs<T> kernel_args(const AttentionDecode& args) {
  const AttentionHeads& h = args.heads;
  DecodeArgs<T> a{};
  a.out = static_cast<T*>(args.out);
  a.k_cache = static_cast<T*>(args.k_cache);
  a.v_cache = static_cast<T*>(args.v_cache);
  a.qkv = static_cast<const T*>(args.qkv);
  a.max_tokens = args.max_tokens;
  a.position = args.position;
  a.positions = args.positions;
  a.tokens = static_cast<int>(h.T);
  a.heads = static_cast<int>(h.NH);
  a.kv_heads = static_cast<int>(h.NKV);
  a.head_size = static_cast<int>(h.HS);
  a.aligned = aligned_rows<T>(h.HS, a.out, a.k_cache, a.v_cache, a.qkv);
  a.scale_log2 = args.scale * kLog2e;
  return a;
}

/// A block for every token.
template <class T>
__global__ void append_kernel(const DecodeArgs<T> a) {
  const std::int64_t row = blockIdx.x;
  const std::int64_t n = a.kv_token();
  const T* const from = a.qkv + row * a.qkv_token() + std::int64_t{a.heads} * a.head_size;
  const std::int64_t to =
      (row / a.tokens * a.max_tokens + a.position + row % a.tokens) * a.kv_token();
  for (std::int64_t i = threadIdx.x; i < n; i += blockDim.x) {
    a.k_cache[to + i] = from[i];
    a.v_cache[to + i] = from[n + i];
  }
}

/// kVec<T> elements of a head from `column` on, as fp32; 0 beyond the head.
template <class T>
__device__ void load_part(float (&x)[kVec<T>], const T* head, int column, const DecodeArgs<T>& a) {
  if (a.aligned && column < a.head_size) {
    const auto v = Vec<T>::load(head + column);
#pragma unroll
    for (int i = 0; i < kVec<T>; ++i) x[i] = v.get(i);
  } else {
#pragma unroll
    for (int i = 0; i < kVec<T>; ++i) {
      x[i] = column + i < a.head_size ? to_float(head[column + i]) : 0.0f;
    }
  }
}

/// A block for every query head. `lanes` lanes, a power of 2, take a key, 16 bytes each; every such
/// team has its own running softmax over keys far apart, and the teams are combined in their order.
template <class T>
__global__ __launch_bounds__(kThreads) void decode_kernel(const DecodeArgs<T> a, int lanes) {
  constexpr int kAtOnce = 4;
  __shared__ float team_max[kThreads];
  __shared__ float team_sum[kThreads];
  __shared__ float team_out[kThreads * kVec<T>];
  const int head = static_cast<int>(blockIdx.x) % a.heads;
  const std::int64_t b = static_cast<int>(blockIdx.x) / a.heads;
  const int group = a.heads / a.kv_heads;
  const int kv_head = head / group;
  const int thread = static_cast<int>(threadIdx.x);
  const int teams = kThreads / lanes;
  const int team = thread / lanes;
  const int column = thread % lanes * kVec<T>;
  const T* const token = a.qkv + b * a.qkv_token();
  const T* const new_k = token + (a.heads + kv_head) * a.head_size;
  const T* const new_v = new_k + a.kv_heads * a.head_size;
  const std::int64_t cache = b * a.max_tokens * a.kv_token() + kv_head * a.head_size;
  const std::int64_t position = a.positions[b];
  if (position < 0 || position >= a.max_tokens) {
    if (thread < a.head_size) {
      a.out[(b * a.heads + head) * a.head_size + thread] =
          from_float<T>(__int_as_float(0x7fffffff));
    }
    return;
  }

  if (head % group == 0) {
    for (int i = thread; i < a.head_size; i += kThreads) {
      a.k_cache[cache + position * a.kv_token() + i] = new_k[i];
      a.v_cache[cache + position * a.kv_token() + i] = new_v[i];
    }
  }

  float q[kVec<T>];
  load_part(q, token + head * a.head_size, column, a);
  float largest = -INFINITY;
  float sum = 0.0f;
  float out[kVec<T>] = {};
  // Every thread of a warp takes part in every turn, so that lanes can exchange sums.
  for (std::int64_t first = 0; first <= position; first += std::int64_t{teams} * kAtOnce) {
    float k[kAtOnce][kVec<T>];
    float v[kAtOnce][kVec<T>];
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      // The new token is not read from the cache, which another block may be writing.
      const std::int64_t key = first + j * teams + team;
      const std::int64_t at = cache + key * a.kv_token();
      load_part(k[j], key < position ? a.k_cache + at : new_k, column, a);
      load_part(v[j], key < position ? a.v_cache + at : new_v, column, a);
    }
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      float score = 0.0f;
#pragma unroll
      for (int i = 0; i < kVec<T>; ++i) score = fmaf(q[i], k[j][i], score);
      for (int offset = lanes / 2; offset > 0; offset /= 2) {
        score += __shfl_xor_sync(kAllLanes, score, offset);
      }
      if (first + j * teams + team > position) continue;
      score *= a.scale_log2;
      const float m = fmaxf(largest, score);
      const float correction = exp2f(largest - m);
      const float p = exp2f(score - m);
      largest = m;
      sum = fmaf(sum, correction, p);
#pragma unroll
      for (int i = 0; i < kVec<T>; ++i) out[i] = fmaf(out[i], correction, p * v[j][i]);
    }
  }

  if (thread % lanes == 0) {
    team_max[team] = largest;
    team_sum[team] = sum;
  }
#pragma unroll
  for (int i = 0; i < kVec<T>; ++i) team_out[thread * kVec<T> + i] = out[i];
  __syncthreads();
  if (thread >= a.head_size) return;
  float m = -INFINITY;
  for (int i = 0; i < teams; ++i) m = fmaxf(m, team_max[i]);
  float total = 0.0f;
  float value = 0.0f;
  for (int i = 0; i < teams; ++i) {
    const float weight = exp2f(team_max[i] - m);
    total = fmaf(weight, team_sum[i], total);
    value = fmaf(weight, team_out[i * lanes * kVec<T> + thread], value);
  }
  a.out[(b * a.heads + head) * a.head_size + thread] = from_float<T>(value / total);
}

}  // namespace

void append_to_caches(Stream::Impl& stream, const AttentionDecode& args) {
  const auto append = [&]<class T>(std::type_identity<T>) {
    const unsigned blocks = static_cast<unsigned>(args.heads.B * args.heads.T);
    append_kernel<T><<<blocks, kThreads, 0, stream.stream>>>(kernel_args<T>(args));
  };
  args.dtype == DType::kF32 ? append(std::type_identity<float>())
                            : append(std::type_identity<__nv_bfloat16>());
  check_launch(kOp);
}

}  // namespace cuda

void attention_decode_token(Stream& stream, const Tensor& out, const Tensor& k_cache,
                            const Tensor& v_cache, const Tensor& qkv, const Tensor& positions,
                            float scale) {
  const AttentionHeads h = expect_attention_decode_token(out, k_cache, v_cache, qkv, positions);
  if (h.B == 0) return;
  const cuda::CurrentDevice current(stream.impl().ordinal());
  cuda::AttentionDecode args{};
  args.dtype = qkv.dtype();
  args.heads = h;
  args.out = out.raw();
  args.k_cache = k_cache.raw();
  args.v_cache = v_cache.raw();
  args.qkv = qkv.raw();
  args.max_tokens = k_cache.dim(1);
  args.positions = positions.data<std::int32_t>();
  args.scale = scale;
  const auto decode = [&]<class T>(std::type_identity<T>) {
    int lanes = 1;
    while (lanes * cuda::kVec<T> < h.HS) lanes *= 2;
    const unsigned blocks = static_cast<unsigned>(h.B * h.NH);
    cuda::decode_kernel<T>
        <<<blocks, cuda::kThreads, 0, stream.impl().stream>>>(cuda::kernel_args<T>(args), lanes);
  };
  args.dtype == DType::kF32 ? decode(std::type_identity<float>())
                            : decode(std::type_identity<__nv_bfloat16>());
  cuda::check_launch("attention_decode_token");
}

}  // namespace llmc
