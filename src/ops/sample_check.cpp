#include "ops/sample_check.h"

#include <cmath>

#include "llmc/core/error.h"
#include "ops/check.h"

namespace llmc {
namespace {

constexpr const char* kOp = "sample_tokens";
constexpr std::int64_t kMostIds = 1'000'000;  // what sums of integer probabilities have room for

template <class T>
void expect_value(bool holds, const char* name, const char* expected, const T& got) {
  if (!holds) fail(ErrorKind::kConfig, "sampler", name, ": expected ", expected, ", got ", got);
}

}  // namespace

void check_rule(const SampleRule& rule) {
  expect_value(rule.repetition_penalty > 0.0f && std::isfinite(rule.repetition_penalty),
               "repetition_penalty", "more than 0", rule.repetition_penalty);
  expect_value(rule.temperature >= 0.0f && std::isfinite(rule.temperature), "temperature",
               "0 or more", rule.temperature);
  expect_value(rule.vocab_size >= 0 && rule.vocab_size <= kMostIds, "vocab_size",
               "0 or more, at most a million", rule.vocab_size);
  expect_value(rule.top_k >= 0, "top_k", "0 or more", rule.top_k);
  expect_value(rule.top_p > 0.0f && rule.top_p <= 1.0f, "top_p", "more than 0 and at most 1",
               rule.top_p);
  expect_value(rule.min_p >= 0.0f && rule.min_p <= 1.0f, "min_p", "0 to 1", rule.min_p);
}

std::int64_t check_sample_tokens(const Tensor& tokens, const Tensor& seen, const Tensor& logits,
                                 const SampleRule& rule, std::int64_t first_sample,
                                 std::int64_t draw) {
  check_rule(rule);
  expect_float(kOp, "logits", logits);
  const std::int64_t B = tokens.numel();
  expect(kOp, "tokens", tokens, DType::kI32, {B});
  const std::int64_t Vp = logits.dim(-1);
  expect(kOp, "logits", logits, logits.dtype(), {B, Vp});
  if (rule.vocab_size < 1 || rule.vocab_size > Vp) {
    fail(ErrorKind::kInput, kOp, "vocab_size: expected 1 to ", Vp, ", got ", rule.vocab_size);
  }
  if (seen) {
    const std::int64_t S = seen.dim(-1);
    expect(kOp, "seen", seen, DType::kU8, {B, S});
    if (S < rule.vocab_size) {
      fail(ErrorKind::kInput, kOp, "seen: expected at least ", rule.vocab_size, " columns, got ",
           S);
    }
  }
  if (first_sample < 0 || draw < 0) {
    fail(ErrorKind::kInput, kOp, "sample and draw: expected 0 or more, got ", first_sample, " and ",
         draw);
  }
  return B;
}

}  // namespace llmc
