#include "llmc/core/dtype.h"

#include "llmc/core/error.h"

namespace llmc {

std::size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kBF16:
    case DType::kU16:
      return 2;
    case DType::kU8:
      return 1;
  }
  fail(ErrorKind::kInput, "dtype", "unknown dtype ", static_cast<int>(dtype));
}

std::string_view name_of(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "f32";
    case DType::kBF16:
      return "bf16";
    case DType::kI32:
      return "i32";
    case DType::kU16:
      return "u16";
    case DType::kU8:
      return "u8";
  }
  fail(ErrorKind::kInput, "dtype", "unknown dtype ", static_cast<int>(dtype));
}

}  // namespace llmc
