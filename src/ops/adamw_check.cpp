#include "ops/adamw_check.h"

#include "ops/check.h"

namespace llmc {

std::int64_t check_adamw(const AdamWRange& range) {
  constexpr const char* kOp = "adamw_update";
  const std::int64_t n = range.param.numel();
  expect_float(kOp, "param", range.param);
  if (range.master) expect_count(kOp, "master", range.master, DType::kF32, n);
  expect_count(kOp, "m", range.m, DType::kF32, n);
  expect_count(kOp, "v", range.v, DType::kF32, n);
  expect_float(kOp, "grad", range.grad);
  expect_count(kOp, "grad", range.grad, range.grad.dtype(), n);
  return n;
}

}  // namespace llmc
