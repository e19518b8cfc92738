#pragma once

// Instructions of sm_80 and later that CUDA C++ has no name for.

#include <cstdint>

namespace llmc::cuda {

__device__ __forceinline__ std::uint32_t shared_address(const void* p) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(p));
}

/// Four 8 x 8 matrices of 16-bit elements. Lane l gives the address of row l % 8 of matrix l / 8,
/// and receives elements (l / 4, 2 (l % 4)) and (l / 4, 2 (l % 4) + 1) of matrix i in r[i].
__device__ __forceinline__ void load_matrices(std::uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}

/// The same of the transposed matrices.
__device__ __forceinline__ void load_matrices_transposed(std::uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(row))
               : "memory");
}

/// c += a · b, 16 x 8 += 16 x 16 · 16 x 8 of bf16. With g = lane / 4 and t = lane % 4: c holds
/// (g, 2t), (g, 2t+1), (g+8, 2t), (g+8, 2t+1); a holds pairs from (g, 2t), (g+8, 2t), (g, 2t+8),
/// (g+8, 2t+8) along the row; b0 and b1 hold pairs from (2t, g) and (2t+8, g) along the column.
__device__ __forceinline__ void multiply_bf16(float (&c)[4], const std::uint32_t (&a)[4],
                                              std::uint32_t b0, std::uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// c += a · b, 16 x 8 += 16 x 8 · 8 x 8 of TF32, c as above; a holds (g, t), (g+8, t), (g, t+4),
/// (g+8, t+4); b0 and b1 hold (t, g) and (t+4, g).
__device__ __forceinline__ void multiply_tf32(float (&c)[4], const std::uint32_t (&a)[4],
                                              std::uint32_t b0, std::uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// The nearest TF32.
__device__ __forceinline__ std::uint32_t to_tf32(float x) {
  std::uint32_t rounded;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(rounded) : "f"(x));
  return rounded;
}

/// 2^x within 2 units in the last place; results below the normal numbers become 0.
__device__ __forceinline__ float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// 1/x within 1 unit in the last place; numbers below the normal ones count and become 0.
__device__ __forceinline__ float reciprocal_approx(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// a·b between 0 and 1; 0 if it is not a number.
__device__ __forceinline__ float multiply_saturated(float a, float b) {
  float y;
  asm("mul.rn.sat.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}

/// Stores 16 bytes to global memory, aligned to that, at once: a plain store of a struct or vector
/// may be taken apart.
__device__ __forceinline__ void store_16(void* global, int4 x) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};"
               :
               : "l"(global), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w)
               : "memory");
}

/// Begins to copy 16 bytes to shared memory, or to zero them where `valid` is false.
__device__ __forceinline__ void copy_16_async(void* shared, const void* global, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               :
               : "r"(shared_address(shared)), "l"(global), "r"(valid ? 16 : 0)
               : "memory");
}

/// Ends a group of the copies that this thread began.
__device__ __forceinline__ void end_copy_group() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

/// Waits for all of this thread's groups but the newest kPending.
template <int kPending>
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" : : "n"(kPending) : "memory");
}

}  // namespace llmc::cuda
