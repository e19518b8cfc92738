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

/// Tiles have 64 rows, and their columns lie in blocks of 64 bf16, one block after the other.
inline constexpr int kTileRows = 64;
inline constexpr int kTileColumns = 64;
inline constexpr int kTileRowBytes = kTileColumns * 2;
inline constexpr int kTileBlockBytes = kTileRows * kTileRowBytes;

/// A tile, whose 16-byte parts are permuted in every 8 rows of a block (part p of row r lies at
/// p ^ r % 8), as an operand of products: 16 columns of all rows, or transposed, 16 rows of as many
/// columns as the product has.
__device__ __forceinline__ std::uint64_t tile_operand(const void* tile) {
  constexpr std::uint64_t kEightRows = std::uint64_t{1024 / 16} << 32;
  constexpr std::uint64_t kPermuted = std::uint64_t{1} << 62;
  constexpr std::uint64_t kNextBlock = std::uint64_t{kTileBlockBytes / 16} << 16;
  return (shared_address(tile) & 0x3ffff) / 16 | kNextBlock | kEightRows | kPermuted;
}
/// The operand 16 · k columns further.
__device__ __forceinline__ std::uint64_t columns_further(std::uint64_t operand, int k) {
  constexpr int kSteps = kTileColumns / 16;
  return operand +
         static_cast<std::uint64_t>(k / kSteps * (kTileBlockBytes / 16) + k % kSteps * (32 / 16));
}
/// The operand 16 · k rows further.
__device__ __forceinline__ std::uint64_t rows_further(std::uint64_t operand, int k) {
  return operand + static_cast<std::uint64_t>(k * (16 * kTileRowBytes / 16));
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
template <int N>
__device__ __forceinline__ void settle(Sums<N>& sums) {
#pragma unroll
  for (int n = 0; n < N; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) asm volatile("" : "+f"(sums[n][i]) : : "memory");
  }
}

// Products of 64 rows, begun by the 128 threads of a warp group; the sums d must not be touched
// before wait_for_products. Each warp has 16 rows of d, in the layout of Sums. a is an operand of
// 16 columns, or 16 columns in registers, as Rows and Weights hold them.

// The instruction up to its first input, with a predicate that says whether it adds ("1") or not
// ("0"), and its results: the sums, read and written ("+f") or only written ("=&f").
#define LLMC_PRODUCT(columns, adds, registers) \
  "{ .reg .pred p; setp.ne.b32 p, " adds       \
  ", 0; "                                      \
  "wgmma.mma_async.sync.aligned.m64n" columns "k16.f32.bf16.bf16 {" registers "}, "
#define LLMC_REGISTERS_32                                                  \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define LLMC_REGISTERS_40 LLMC_REGISTERS_32 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define LLMC_REGISTERS_48 LLMC_REGISTERS_40 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define LLMC_REGISTERS_64 \
  LLMC_REGISTERS_48       \
  ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define LLMC_SUM_ROW(how, n) how(d[n][0]), how(d[n][1]), how(d[n][2]), how(d[n][3])
#define LLMC_SUMS_8(how)                                                                  \
  LLMC_SUM_ROW(how, 0), LLMC_SUM_ROW(how, 1), LLMC_SUM_ROW(how, 2), LLMC_SUM_ROW(how, 3), \
      LLMC_SUM_ROW(how, 4), LLMC_SUM_ROW(how, 5), LLMC_SUM_ROW(how, 6), LLMC_SUM_ROW(how, 7)
#define LLMC_SUMS_10(how) LLMC_SUMS_8(how), LLMC_SUM_ROW(how, 8), LLMC_SUM_ROW(how, 9)
#define LLMC_SUMS_12(how) LLMC_SUMS_10(how), LLMC_SUM_ROW(how, 10), LLMC_SUM_ROW(how, 11)
#define LLMC_SUMS_16(how)                                                                 \
  LLMC_SUMS_12(how), LLMC_SUM_ROW(how, 12), LLMC_SUM_ROW(how, 13), LLMC_SUM_ROW(how, 14), \
      LLMC_SUM_ROW(how, 15)
#define LLMC_ROWS(a) "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3])

/// d = a · bᵀ, or d += a · bᵀ where kAdd; b: 16 columns of 64 rows.
template <bool kAdd>
__device__ __forceinline__ void dot_group(Sums<8>& d, std::uint64_t a, std::uint64_t b) {
  if constexpr (kAdd) {
    asm volatile(LLMC_PRODUCT("64", "1", LLMC_REGISTERS_32) "%32, %33, p, 1, 1, 0, 0; }"
                 : LLMC_SUMS_8("+f")
                 : "l"(a), "l"(b));
  } else {
    asm volatile(LLMC_PRODUCT("64", "0", LLMC_REGISTERS_32) "%32, %33, p, 1, 1, 0, 0; }"
                 : LLMC_SUMS_8("=&f")
                 : "l"(a), "l"(b));
  }
}
template <bool kAdd>
__device__ __forceinline__ void dot_group(Sums<8>& d, const std::uint32_t (&a)[4],
                                          std::uint64_t b) {
  if constexpr (kAdd) {
    asm volatile(
        LLMC_PRODUCT("64", "1", LLMC_REGISTERS_32) "{%32, %33, %34, %35}, %36, p, 1, 1, 0; }"
        : LLMC_SUMS_8("+f")
        : LLMC_ROWS(a), "l"(b));
  } else {
    asm volatile(
        LLMC_PRODUCT("64", "0", LLMC_REGISTERS_32) "{%32, %33, %34, %35}, %36, p, 1, 1, 0; }"
        : LLMC_SUMS_8("=&f")
        : LLMC_ROWS(a), "l"(b));
  }
}

/// d += a · b; b: 16 rows of 8 · N columns.
template <int N>
__device__ __forceinline__ void weigh_group(Sums<N>& d, const std::uint32_t (&a)[4],
                                            std::uint64_t b) {
  static_assert(N == 8 || N == 10 || N == 12 || N == 16);
  if constexpr (N == 8) {
    asm volatile(
        LLMC_PRODUCT("64", "1", LLMC_REGISTERS_32) "{%32, %33, %34, %35}, %36, p, 1, 1, 1; }"
        : LLMC_SUMS_8("+f")
        : LLMC_ROWS(a), "l"(b));
  } else if constexpr (N == 10) {
    asm volatile(
        LLMC_PRODUCT("80", "1", LLMC_REGISTERS_40) "{%40, %41, %42, %43}, %44, p, 1, 1, 1; }"
        : LLMC_SUMS_10("+f")
        : LLMC_ROWS(a), "l"(b));
  } else if constexpr (N == 12) {
    asm volatile(
        LLMC_PRODUCT("96", "1", LLMC_REGISTERS_48) "{%48, %49, %50, %51}, %52, p, 1, 1, 1; }"
        : LLMC_SUMS_12("+f")
        : LLMC_ROWS(a), "l"(b));
  } else {
    asm volatile(
        LLMC_PRODUCT("128", "1", LLMC_REGISTERS_64) "{%64, %65, %66, %67}, %68, p, 1, 1, 1; }"
        : LLMC_SUMS_16("+f")
        : LLMC_ROWS(a), "l"(b));
  }
}

#undef LLMC_ROWS
#undef LLMC_SUMS_16
#undef LLMC_SUMS_12
#undef LLMC_SUMS_10
#undef LLMC_SUMS_8
#undef LLMC_SUM_ROW
#undef LLMC_REGISTERS_64
#undef LLMC_REGISTERS_48
#undef LLMC_REGISTERS_40
#undef LLMC_REGISTERS_32
#undef LLMC_PRODUCT

}  // namespace llmc::cuda
