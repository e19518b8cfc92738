#pragma once

// What Hopper (compute capability 9.0) adds for tiles of matrices: copies of boxes of tensors that
// end at a barrier in shared memory, and products of a warp group, 128 threads, of operands there.
// Kernels that use it have bodies only where LLMC_HOPPER is defined.

#include <cuda.h>

#include <cstdint>

#include "ops/cuda/ptx.cuh"
#include "ops/cuda/warp_products.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define LLMC_HOPPER
#endif

namespace llmc::cuda {

inline constexpr int kWarpGroup = 128;

/// A barrier in shared memory. Phases end when the expected arrivals and bytes have come; they are
/// waited for by their parity, 0 first.
using Barrier = std::uint64_t;

__device__ __forceinline__ void start_barrier(Barrier* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;"
               :
               : "r"(shared_address(barrier)), "r"(arrivals)
               : "memory");
}

/// After start_barrier and before a barrier of the block: lets copies see the barriers.
__device__ __forceinline__ void publish_barriers() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

__device__ __forceinline__ void arrive(Barrier* barrier) {
  asm volatile("mbarrier.arrive.shared.b64 _, [%0];" : : "r"(shared_address(barrier)) : "memory");
}

/// Arrives, and adds to the bytes of the phase.
__device__ __forceinline__ void arrive_and_expect(Barrier* barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;"
               :
               : "r"(shared_address(barrier)), "r"(bytes)
               : "memory");
}

__device__ __forceinline__ void wait_for_phase(Barrier* barrier, int parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n"
      "@done bra finished;\n"
      "bra again;\n"
      "finished:\n"
      "}"
      :
      : "r"(shared_address(barrier)), "r"(parity)
      : "memory");
}

/// Begins to copy the map's box at (c0, c1, c2, c3) to shared memory, aligned to 1024 bytes; ends
/// at the barrier. What lies outside of the tensor becomes 0.
__device__ __forceinline__ void copy_box(void* to, const CUtensorMap* map, Barrier* barrier, int c0,
                                         int c1, int c2, int c3) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], "
      "[%1, {%3, %4, %5, %6}], [%2];"
      :
      : "r"(shared_address(to)), "l"(map), "r"(shared_address(barrier)), "r"(c0), "r"(c1), "r"(c2),
        "r"(c3)
      : "memory");
}

/// The same of consecutive bytes, a multiple of 16 at aligned addresses.
__device__ __forceinline__ void copy_bytes(void* to, const void* from, int bytes,
                                           Barrier* barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
      :
      : "r"(shared_address(to)), "l"(from), "r"(bytes), "r"(shared_address(barrier))
      : "memory");
}

/// A tile of rows of 64 bf16, whose 16-byte parts are permuted in every 8 rows (part p of row r
/// lies at p ^ r % 8), as an operand of products: whole (16 columns after the other are 32 bytes
/// apart) or transposed (16 rows after the other are 2048 bytes apart).
__device__ __forceinline__ std::uint64_t tile_operand(const void* tile) {
  constexpr std::uint64_t kEightRows = std::uint64_t{1024 / 16} << 32;
  constexpr std::uint64_t kPermuted = std::uint64_t{1} << 62;
  constexpr std::uint64_t kOneBlock = std::uint64_t{1} << 16;
  return (shared_address(tile) & 0x3ffff) / 16 | kOneBlock | kEightRows | kPermuted;
}
__device__ __forceinline__ std::uint64_t columns_further(std::uint64_t operand, int k) {
  return operand + static_cast<std::uint64_t>(k * (32 / 16));
}
__device__ __forceinline__ std::uint64_t rows_further(std::uint64_t operand, int k) {
  return operand + static_cast<std::uint64_t>(k * (2048 / 16));
}

/// Before the first product of a group: what the threads wrote to its registers is written.
__device__ __forceinline__ void begin_products() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void end_product_group() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/// Waits for all groups but the newest kPending.
template <int kPending>
__device__ __forceinline__ void wait_for_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" : : "n"(kPending) : "memory");
}

/// Keeps what is computed from and for the sums on its side, of wait_for_products above all.
__device__ __forceinline__ void settle(Sums<8>& sums) {
#pragma unroll
  for (int n = 0; n < 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) asm volatile("" : "+f"(sums[n][i]) : : "memory");
  }
}

// The instruction up to its first input, with a predicate that says whether it adds ("1") or not
// ("0"), and its results: the sums, read and written ("+f") or only written ("=&f").
#define LLMC_PRODUCT(adds)                                                  \
  "{ .reg .pred p; setp.ne.b32 p, " adds                                    \
  ", 0; "                                                                   \
  "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "                   \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
#define LLMC_SUM_ROW(how, n) how(d[n][0]), how(d[n][1]), how(d[n][2]), how(d[n][3])
#define LLMC_SUMS(how)                                                                    \
  LLMC_SUM_ROW(how, 0), LLMC_SUM_ROW(how, 1), LLMC_SUM_ROW(how, 2), LLMC_SUM_ROW(how, 3), \
      LLMC_SUM_ROW(how, 4), LLMC_SUM_ROW(how, 5), LLMC_SUM_ROW(how, 6), LLMC_SUM_ROW(how, 7)

// d = a · b, or d += a · b where kAdd, 64 x 64, begun by the 128 threads of a warp group; d and a
// must not be touched before wait_for_products. Each warp has 16 rows of d, in the layout of Sums.
// a and b are operands of 16 columns, or a is 16 columns in registers, as Rows and Weights hold
// them. kTransposed: b is 16 rows.

template <bool kAdd, bool kTransposed>
__device__ __forceinline__ void multiply_group(Sums<8>& d, std::uint64_t a, std::uint64_t b) {
  if constexpr (kAdd) {
    asm volatile(LLMC_PRODUCT("1") "%32, %33, p, 1, 1, 0, %34; }"
                 : LLMC_SUMS("+f")
                 : "l"(a), "l"(b), "n"(kTransposed ? 1 : 0));
  } else {
    asm volatile(LLMC_PRODUCT("0") "%32, %33, p, 1, 1, 0, %34; }"
                 : LLMC_SUMS("=&f")
                 : "l"(a), "l"(b), "n"(kTransposed ? 1 : 0));
  }
}

template <bool kAdd, bool kTransposed>
__device__ __forceinline__ void multiply_group(Sums<8>& d, const std::uint32_t (&a)[4],
                                               std::uint64_t b) {
  if constexpr (kAdd) {
    asm volatile(LLMC_PRODUCT("1") "{%32, %33, %34, %35}, %36, p, 1, 1, %37; }"
                 : LLMC_SUMS("+f")
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(kTransposed ? 1 : 0));
  } else {
    asm volatile(LLMC_PRODUCT("0") "{%32, %33, %34, %35}, %36, p, 1, 1, %37; }"
                 : LLMC_SUMS("=&f")
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(kTransposed ? 1 : 0));
  }
}

#undef LLMC_SUMS
#undef LLMC_SUM_ROW
#undef LLMC_PRODUCT

}  // namespace llmc::cuda
