#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace llmc {

/// Element types of tensors. The type is data, chosen at run time.
enum class DType : std::uint8_t { kF32, kBF16, kI32, kU16, kU8 };

/// bfloat16: the upper half of an fp32, kept as bits so that no compiler support is needed.
struct bf16 {
  std::uint16_t bits;
};

/// Rounds to nearest, ties to even; NaN stays NaN.
inline bf16 to_bf16(float value) {
  const auto u = std::bit_cast<std::uint32_t>(value);
  if ((u & 0x7fffffffu) > 0x7f800000u) {
    return {static_cast<std::uint16_t>((u >> 16) | 0x0040u)};
  }
  return {static_cast<std::uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16)};
}

inline float to_f32(bf16 value) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16);
}

/// Bytes of one element.
std::size_t size_of(DType dtype);

/// "f32", "bf16", "i32", "u16", "u8".
std::string_view name_of(DType dtype);

/// The DType of a C++ type; only the specialisations below exist.
template <class T>
struct DTypeOf;
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::kF32;
};
template <>
struct DTypeOf<bf16> {
  static constexpr DType value = DType::kBF16;
};
template <>
struct DTypeOf<std::int32_t> {
  static constexpr DType value = DType::kI32;
};
template <>
struct DTypeOf<std::uint16_t> {
  static constexpr DType value = DType::kU16;
};
template <>
struct DTypeOf<std::uint8_t> {
  static constexpr DType value = DType::kU8;
};

}  // namespace llmc
