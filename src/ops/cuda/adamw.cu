#include "llmc/ops/adamw.h"

#include <algorithm>
#include <array>
#include <cstddef>

#include "ops/adamw_check.h"
#include "ops/cuda/kernel.cuh"

namespace llmc {
namespace cuda {
namespace {

constexpr int kThreads = 256;
/// Elements of one group share a counter of the generator.
constexpr int kGroup = 8;
/// Elements that a thread updates at a time: kQuads stretches of 4, a warp's width apart, so that
/// neighbouring lanes touch neighbouring 16 bytes of fp32.
constexpr int kQuad = 4;
constexpr int kQuads = 2;
constexpr int kWarpStep = kWarp * kQuad * kQuads;
constexpr int kBlockStep = kWarpStep * kThreads / kWarp;
/// Elements that a block takes at a time; they belong to one range.
constexpr int kChunk = 4 * kBlockStep;

/// A range as the kernel sees it. Its chunks are counted from the group that holds its first
/// element, so that groups are never cut.
struct Range {
  void* param;
  float* master;
  float* m;
  float* v;
  const void* grad;
  std::int64_t count;
  std::int64_t first_index;
  std::uint32_t first_chunk;  ///< chunks of the ranges before it
  bool decay;
  bool aligned;  ///< whether quads can be read and written whole
};

/// What a launch covers. It travels as the kernel's argument, of which CUDA allows 32,764 bytes.
struct Launch {
  static constexpr int kMaxRanges = 504;
  AdamWOptions options;
  int ranges;
  std::uint32_t chunks;
  Range range[kMaxRanges];
};
static_assert(sizeof(Launch) + sizeof(StepBlock*) <= 32764);

struct Factors {
  float grad_scale;
  float one_minus_beta1;
  float one_minus_beta2;
  float bias1;  ///< 1 / (1 − β1ᵗ)
  float bias2;  ///< 1 / (1 − β2ᵗ)
  float lr;
  float eps;
};

__device__ double power(double base, std::int64_t exponent) {
  double result = 1.0;
  for (; exponent > 0; exponent >>= 1) {
    if (exponent & 1) result *= base;
    base *= base;
  }
  return result;
}

__device__ Factors factors_of(const StepBlock& block, const AdamWOptions& options) {
  return {.grad_scale = block.grad_scale,
          .one_minus_beta1 = 1.0f - options.beta1,
          .one_minus_beta2 = 1.0f - options.beta2,
          .bias1 = static_cast<float>(1.0 / (1.0 - power(options.beta1, block.updates))),
          .bias2 = static_cast<float>(1.0 / (1.0 - power(options.beta2, block.updates))),
          .lr = block.lr,
          .eps = options.eps};
}

/// Philox4x32-10 (Salmon et al., 2011).
__device__ uint4 philox(std::uint64_t key, std::uint64_t counter, std::uint64_t counter_high) {
  auto k0 = static_cast<std::uint32_t>(key);
  auto k1 = static_cast<std::uint32_t>(key >> 32);
  uint4 c = make_uint4(
      static_cast<std::uint32_t>(counter), static_cast<std::uint32_t>(counter >> 32),
      static_cast<std::uint32_t>(counter_high), static_cast<std::uint32_t>(counter_high >> 32));
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = std::uint64_t{0xD2511F53u} * c.x;
    const std::uint64_t p1 = std::uint64_t{0xCD9E8D57u} * c.z;
    c = make_uint4(static_cast<std::uint32_t>(p1 >> 32) ^ c.y ^ k0, static_cast<std::uint32_t>(p1),
                   static_cast<std::uint32_t>(p0 >> 32) ^ c.w ^ k1, static_cast<std::uint32_t>(p0));
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return c;
}

/// The noise of this lane's quads: [q] belongs to elements q·kWarp·kQuad + lane·kQuad from the
/// warp's first, which starts group `group`. Two lanes share a group of 8; the even one draws for
/// the first quads, the odd one for the second, and each gets the other's half.
__device__ void draw_noise(uint2 (&noise)[kQuads], std::uint64_t seed, std::int64_t step,
                           std::int64_t group) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const bool odd = lane % 2 == 1;
  const std::int64_t drawn = group + lane / 2 + (odd ? kWarp * kQuad / kGroup : 0);
  const uint4 words =
      philox(seed, static_cast<std::uint64_t>(drawn), static_cast<std::uint64_t>(step));
  const uint2 low = make_uint2(words.x, words.y);
  const uint2 high = make_uint2(words.z, words.w);
  const uint2 given = odd ? low : high;
  const uint2 taken = make_uint2(__shfl_xor_sync(0xffffffffu, given.x, 1),
                                 __shfl_xor_sync(0xffffffffu, given.y, 1));
  noise[0] = odd ? taken : low;
  noise[1] = odd ? high : taken;
}

/// The noise of element number `e`, drawn by itself.
__device__ std::uint32_t noise_of(std::int64_t e, std::uint64_t seed, std::int64_t step) {
  const uint4 words =
      philox(seed, static_cast<std::uint64_t>(e) / kGroup, static_cast<std::uint64_t>(step));
  const std::uint32_t low = e % 4 < 2 ? words.x : words.y;
  const std::uint32_t high = e % 4 < 2 ? words.z : words.w;
  const std::uint32_t word = e % kGroup < kGroup / 2 ? low : high;
  return e % 2 == 0 ? word & 0xffffu : word >> 16;
}

/// The bits of x plus 16 bits of noise below those of a bf16, of which the upper half is the
/// result. Values that are not finite stay.
__device__ std::uint32_t add_noise(float x, std::uint32_t noise) {
  const std::uint32_t u = __float_as_uint(x);
  const bool finite = (u & 0x7f800000u) != 0x7f800000u;
  const bool nan = (u & 0x7fffffffu) > 0x7f800000u;
  return finite ? u + noise : nan ? u | 0x400000u : u;
}

/// Roundings are spelled out, so that parameters of every kind take the same path to the bit.
__device__ void update(float& theta, float& m, float& v, float grad, const Factors& f,
                       float weight_decay) {
  const float g = __fmul_rn(grad, f.grad_scale);
  m = fmaf(f.one_minus_beta1, __fsub_rn(g, m), m);
  v = fmaf(f.one_minus_beta2, fmaf(g, g, -v), v);
  const float root = __fsqrt_rn(__fmul_rn(v, f.bias2));
  const float ratio = __fdiv_rn(__fmul_rn(m, f.bias1), __fadd_rn(root, f.eps));
  theta = fmaf(-f.lr, fmaf(weight_decay, theta, ratio), theta);
}

template <class T>
__device__ void load(float (&to)[kQuad], const T* from) {
  const auto quad = Vec<T, kQuad>::load(from);
#pragma unroll
  for (int j = 0; j < kQuad; ++j) to[j] = quad.get(j);
}

__device__ void store(float* to, const float (&quad)[kQuad]) {
  *reinterpret_cast<float4*>(to) = make_float4(quad[0], quad[1], quad[2], quad[3]);
}

__device__ void store_rounded(__nv_bfloat16* to, const float (&quad)[kQuad], uint2 noise) {
  const std::uint32_t bits[kQuad] = {
      add_noise(quad[0], noise.x & 0xffffu), add_noise(quad[1], noise.x >> 16),
      add_noise(quad[2], noise.y & 0xffffu), add_noise(quad[3], noise.y >> 16)};
  *reinterpret_cast<uint2*>(to) =
      make_uint2(__byte_perm(bits[0], bits[1], 0x7632), __byte_perm(bits[2], bits[3], 0x7632));
}

struct Quad {
  float theta[kQuad], m[kQuad], v[kQuad], grad[kQuad];
};

/// Updates kWarpStep elements of an aligned range from its element `first`, which starts a group.
template <class P, class G, bool kMaster>
__device__ void update_quads(const Range& range, std::int64_t first, const StepBlock& block,
                             const Factors& factors, float weight_decay) {
  auto* const param = static_cast<P*>(range.param);
  const std::int64_t i = first + static_cast<int>(threadIdx.x) % kWarp * kQuad;
  Quad quads[kQuads];
#pragma unroll
  for (int q = 0; q < kQuads; ++q) {
    const std::int64_t at = i + q * kWarp * kQuad;
    if constexpr (kMaster) {
      load(quads[q].theta, range.master + at);
    } else {
      load(quads[q].theta, param + at);
    }
    load(quads[q].m, range.m + at);
    load(quads[q].v, range.v + at);
    load(quads[q].grad, static_cast<const G*>(range.grad) + at);
  }
#pragma unroll
  for (int q = 0; q < kQuads; ++q) {
    const std::int64_t at = i + q * kWarp * kQuad;
    Quad& quad = quads[q];
#pragma unroll
    for (int j = 0; j < kQuad; ++j) {
      update(quad.theta[j], quad.m[j], quad.v[j], quad.grad[j], factors, weight_decay);
    }
    store(range.m + at, quad.m);
    store(range.v + at, quad.v);
    if constexpr (kMaster) store(range.master + at, quad.theta);
  }
  if constexpr (std::is_same_v<P, float>) {
#pragma unroll
    for (int q = 0; q < kQuads; ++q) store(param + i + q * kWarp * kQuad, quads[q].theta);
  } else {
    uint2 noise[kQuads];
    draw_noise(noise, block.seed, block.step, (range.first_index + first) / kGroup);
#pragma unroll
    for (int q = 0; q < kQuads; ++q) {
      store_rounded(param + i + q * kWarp * kQuad, quads[q].theta, noise[q]);
    }
  }
}

/// The same for any range, one element after the other, as far as they belong to it.
template <class P, class G, bool kMaster>
__device__ void update_elements(const Range& range, std::int64_t first, const StepBlock& block,
                                const Factors& factors, float weight_decay) {
  auto* const param = static_cast<P*>(range.param);
  const std::int64_t end = min(first + kWarpStep, range.count);
#pragma unroll 1
  for (std::int64_t i = first + static_cast<int>(threadIdx.x) % kWarp; i < end; i += kWarp) {
    if (i < 0) continue;
    float theta;
    if constexpr (kMaster) {
      theta = range.master[i];
    } else {
      theta = to_float(param[i]);
    }
    update(theta, range.m[i], range.v[i], to_float(static_cast<const G*>(range.grad)[i]), factors,
           weight_decay);
    if constexpr (kMaster) range.master[i] = theta;
    if constexpr (std::is_same_v<P, float>) {
      param[i] = theta;
    } else {
      const std::uint32_t noise = noise_of(range.first_index + i, block.seed, block.step);
      param[i] = __ushort_as_bfloat16(static_cast<unsigned short>(add_noise(theta, noise) >> 16));
    }
  }
}

/// The last range whose chunks start at `chunk` or before.
__device__ int range_of(const Launch& launch, std::uint32_t chunk) {
  int low = 0;
  for (int high = launch.ranges; high - low > 1;) {
    const int middle = (low + high) / 2;
    (launch.range[middle].first_chunk <= chunk ? low : high) = middle;
  }
  return low;
}

template <class P, class G, bool kMaster>
__global__ void __launch_bounds__(kThreads, 3)
    adamw_kernel(const __grid_constant__ Launch launch, const StepBlock* block) {
  __shared__ Factors shared_factors;
  if (block->skip != kNoSkip) return;
  if (threadIdx.x == 0) shared_factors = factors_of(*block, launch.options);
  __syncthreads();
  const Factors factors = shared_factors;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  for (std::uint32_t chunk = blockIdx.x; chunk < launch.chunks; chunk += gridDim.x) {
    const Range& range = launch.range[range_of(launch, chunk)];
    const float weight_decay = range.decay ? launch.options.weight_decay : 0.0f;
    const std::int64_t chunk_first =
        static_cast<std::int64_t>(chunk - range.first_chunk) * kChunk - range.first_index % kGroup;
    const std::int64_t end = min(chunk_first + kChunk, range.count);
    for (std::int64_t i = chunk_first + warp * kWarpStep; i < end; i += kBlockStep) {
      if (range.aligned && i >= 0 && i + kWarpStep <= range.count) {
        update_quads<P, G, kMaster>(range, i, *block, factors, weight_decay);
      } else {
        update_elements<P, G, kMaster>(range, i, *block, factors, weight_decay);
      }
    }
  }
}

/// What must be equal within a launch.
struct Kind {
  DType param;
  DType grad;
  bool master;
  bool operator==(const Kind&) const = default;
};
Kind kind_of(const AdamWRange& range) {
  return {range.param.dtype(), range.grad.dtype(), !range.master.empty()};
}

/// Whether the element that starts a quad, any multiple of kQuad in the whole model, lies at a
/// multiple of a quad's bytes.
bool quads_aligned(const Tensor& tensor, std::int64_t first_index) {
  if (tensor.empty()) return true;
  const auto element = static_cast<std::int64_t>(size_of(tensor.dtype()));
  const auto address = static_cast<std::int64_t>(reinterpret_cast<std::intptr_t>(tensor.raw()));
  return (address - first_index % kQuad * element) % (kQuad * element) == 0;
}

Range range_for(const AdamWRange& range, std::uint32_t first_chunk) {
  const std::array tensors{range.param, range.master, range.m, range.v, range.grad};
  const bool aligned = std::all_of(tensors.begin(), tensors.end(), [&](const Tensor& tensor) {
    return quads_aligned(tensor, range.first_index);
  });
  return {.param = range.param.raw(),
          .master = pointer<float>(range.master),
          .m = pointer<float>(range.m),
          .v = pointer<float>(range.v),
          .grad = range.grad.raw(),
          .count = range.param.numel(),
          .first_index = range.first_index,
          .first_chunk = first_chunk,
          .decay = range.decay,
          .aligned = aligned};
}

/// Fills a launch from the front of `ranges`; returns how many it took.
std::size_t fill(Launch& launch, std::span<const AdamWRange> ranges, const AdamWOptions& options) {
  launch.options = options;
  launch.ranges = 0;
  launch.chunks = 0;
  const Kind kind = kind_of(ranges.front());
  std::size_t taken = 0;
  for (; taken < ranges.size() && launch.ranges < Launch::kMaxRanges; ++taken) {
    const AdamWRange& range = ranges[taken];
    if (!(kind_of(range) == kind)) break;
    launch.range[launch.ranges++] = range_for(range, launch.chunks);
    const std::int64_t covered = range.first_index % kGroup + range.param.numel();
    launch.chunks += static_cast<std::uint32_t>(ceil_div(covered, kChunk));
  }
  return taken;
}

template <class P, class G>
void launch_kernel(const Stream::Impl& stream, const Launch& launch, const StepBlock* block,
                   bool master) {
  const unsigned grid = grid_of(stream, launch.chunks, 1);
  if (master) {
    adamw_kernel<P, G, true><<<grid, kThreads, 0, stream.stream>>>(launch, block);
  } else {
    adamw_kernel<P, G, false><<<grid, kThreads, 0, stream.stream>>>(launch, block);
  }
  check_launch("adamw_update");
}

}  // namespace
}  // namespace cuda

void adamw_update(Stream& stream, std::span<const AdamWRange> ranges, const StepBlock* block,
                  const AdamWOptions& options) {
  for (const AdamWRange& range : ranges) check_adamw(range);
  const cuda::CurrentDevice current(stream.impl().ordinal());
  while (!ranges.empty()) {
    cuda::Launch launch;
    const AdamWRange& first = ranges.front();
    const std::size_t taken = cuda::fill(launch, ranges, options);
    cuda::with_float_type(
        "adamw_update", "param", first.param, [&]<class P>(std::type_identity<P>) {
          cuda::with_float_type(
              "adamw_update", "grad", first.grad, [&]<class G>(std::type_identity<G>) {
                cuda::launch_kernel<P, G>(stream.impl(), launch, block, !first.master.empty());
              });
        });
    ranges = ranges.subspan(taken);
  }
}

}  // namespace llmc
