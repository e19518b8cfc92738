#include "ops/step_check.h"

#include "llmc/core/error.h"
#include "llmc/ops/step.h"
#include "ops/check.h"

namespace llmc {

void check_records(const Tensor& partials, const Tensor& records, const Tensor& order) {
  constexpr const char* kOp = "combine_ranks";
  expect_count(kOp, "partials", partials, DType::kF32, partials.numel());
  expect_count(kOp, "order", order, DType::kI32, partials.numel());
  expect_count(kOp, "records", records, DType::kU8, records.numel());
  const Shape& shape = records.shape();
  if (shape.rank() != 2 || shape.dim(1) < step_record_bytes(0) || shape.dim(1) % kRecordAlignment) {
    fail(ErrorKind::kInput, kOp, "records: expected a row of step_record_bytes for each rank, got ",
         shape);
  }
}

}  // namespace llmc
