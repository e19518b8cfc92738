#include "ops/loss_check.h"

#include "llmc/core/error.h"
#include "ops/check.h"

namespace llmc {

LossSizes check_cross_entropy(std::string_view op, const Tensor& losses, const Tensor& logits,
                              const Tensor& targets, std::int64_t vocab_size) {
  expect_float(op, "logits", logits);
  const LossSizes sizes{logits.dim(0), logits.dim(1)};
  expect(op, "logits", logits, logits.dtype(), {sizes.rows, sizes.padded_vocab_size});
  expect_count(op, "losses", losses, DType::kF32, sizes.rows);
  expect_count(op, "targets", targets, DType::kI32, sizes.rows);
  if (vocab_size > kMaxVocabulary) {
    fail(ErrorKind::kInput, op, "vocab_size: expected at most ", kMaxVocabulary, ", got ",
         vocab_size);
  }
  if (vocab_size < 1 || vocab_size > sizes.padded_vocab_size) {
    fail(ErrorKind::kInput, op, "vocab_size: expected 1 to ", sizes.padded_vocab_size, ", got ",
         vocab_size);
  }
  return sizes;
}

}  // namespace llmc
