#include "io/tensor_stream.h"

#include <algorithm>
#include <vector>

#include "llmc/core/error.h"

namespace llmc {
namespace {

constexpr std::int64_t kPieceElements = std::int64_t{1} << 20;

void convert(void* out, DType out_type, const void* in, std::int64_t count) {
  if (out_type == DType::kBF16) {
    const auto* from = static_cast<const float*>(in);
    std::transform(from, from + count, static_cast<bf16*>(out), to_bf16);
  } else {
    const auto* from = static_cast<const bf16*>(in);
    std::transform(from, from + count, static_cast<float*>(out), to_f32);
  }
}

}  // namespace

bool is_convertible(DType a, DType b) {
  const auto is_float = [](DType t) { return t == DType::kF32 || t == DType::kBF16; };
  return a == b || (is_float(a) && is_float(b));
}

void load_tensor(Stream& stream, const Tensor& dst, DType stored, const ReadElements& read) {
  std::int64_t position = 0;
  convert_elements(dst.numel(), stored, read, dst.dtype(),
                   [&](const void* data, std::int64_t count) {
                     copy_from_host(stream, dst.flat(position, count), data);
                     position += count;
                   });
}

void convert_elements(std::int64_t numel, DType stored, const ReadElements& read, DType wanted,
                      const WriteElements& write) {
  if (!is_convertible(stored, wanted)) {
    fail(ErrorKind::kInput, "io", "cannot convert between ", name_of(stored), " and ",
         name_of(wanted));
  }
  const auto buffer_for = [&](DType dtype) {
    return std::vector<char>(static_cast<std::size_t>(std::min(numel, kPieceElements)) *
                             size_of(dtype));
  };
  std::vector<char> piece = buffer_for(stored);
  std::vector<char> converted;
  if (stored != wanted) converted = buffer_for(wanted);
  for (std::int64_t begin = 0; begin < numel; begin += kPieceElements) {
    const std::int64_t count = std::min(kPieceElements, numel - begin);
    read(begin, count, piece.data());
    if (!converted.empty()) convert(converted.data(), wanted, piece.data(), count);
    write(converted.empty() ? piece.data() : converted.data(), count);
  }
}

}  // namespace llmc
