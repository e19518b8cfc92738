#include "io/tensor_stream.h"

#include <algorithm>
#include <vector>

#include "llmc/core/error.h"

namespace llmc {
namespace {

constexpr std::int64_t kPieceElements = std::int64_t{1} << 20;

void convert_elements(void* out, DType out_type, const void* in, std::int64_t count) {
  if (out_type == DType::kBF16) {
    const auto* from = static_cast<const float*>(in);
    std::transform(from, from + count, static_cast<bf16*>(out), to_bf16);
  } else {
    const auto* from = static_cast<const bf16*>(in);
    std::transform(from, from + count, static_cast<float*>(out), to_f32);
  }
}

std::vector<char> buffer_for(const Tensor& tensor, DType dtype) {
  return std::vector<char>(static_cast<std::size_t>(std::min(tensor.numel(), kPieceElements)) *
                           size_of(dtype));
}

void check_convertible(DType a, DType b) {
  if (!is_convertible(a, b)) {
    fail(ErrorKind::kInput, "io", "cannot convert between ", name_of(a), " and ", name_of(b));
  }
}

}  // namespace

bool is_convertible(DType a, DType b) {
  const auto is_float = [](DType t) { return t == DType::kF32 || t == DType::kBF16; };
  return a == b || (is_float(a) && is_float(b));
}

void load_tensor(Stream& stream, const Tensor& dst, DType stored, const ReadElements& read) {
  check_convertible(dst.dtype(), stored);
  std::vector<char> piece = buffer_for(dst, stored);
  std::vector<char> converted;
  if (stored != dst.dtype()) converted = buffer_for(dst, dst.dtype());
  for (std::int64_t begin = 0; begin < dst.numel(); begin += kPieceElements) {
    const std::int64_t count = std::min(kPieceElements, dst.numel() - begin);
    read(begin, count, piece.data());
    if (!converted.empty()) convert_elements(converted.data(), dst.dtype(), piece.data(), count);
    copy_from_host(stream, dst.flat(begin, count),
                   converted.empty() ? piece.data() : converted.data());
  }
}

void store_tensor(Stream& stream, const Tensor& src, DType stored, const WriteBytes& write) {
  check_convertible(src.dtype(), stored);
  std::vector<char> piece = buffer_for(src, src.dtype());
  std::vector<char> converted;
  if (stored != src.dtype()) converted = buffer_for(src, stored);
  for (std::int64_t begin = 0; begin < src.numel(); begin += kPieceElements) {
    const std::int64_t count = std::min(kPieceElements, src.numel() - begin);
    copy_to_host(stream, piece.data(), src.flat(begin, count));
    if (!converted.empty()) convert_elements(converted.data(), stored, piece.data(), count);
    write(converted.empty() ? piece.data() : converted.data(),
          static_cast<std::size_t>(count) * size_of(stored));
  }
}

}  // namespace llmc
