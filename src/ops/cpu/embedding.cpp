#include "llmc/ops/embedding.h"

#include <algorithm>

#include "core/cpu/parallel.h"
#include "llmc/core/error.h"
#include "ops/cpu/dispatch.h"
#include "ops/cpu/kernels/elementwise_kernels.h"
#include "ops/embedding_check.h"

namespace llmc {
namespace {

void expect_ids(const char* op, const char* name, const Tensor& ids, std::int64_t rows) {
  const auto* const id = ids.data<std::int32_t>();
  for (std::int64_t i = 0; i < ids.numel(); ++i) {
    if (id[i] < 0 || id[i] >= rows) {
      fail(ErrorKind::kInput, op, name, ": expected 0 to ", rows - 1, ", got ", id[i]);
    }
  }
}

/// position_of(row): the position of a row of (B, T).
template <class PositionOf>
void look_up(Stream& stream, const char* op, const EmbeddingSizes& sizes, const Tensor& out,
             const Tensor& tokens, const Tensor& wte, const Tensor& wpe,
             const PositionOf& position_of) {
  const std::int64_t C = sizes.C;
  cpu::with_float_type(op, "wte", wte, [&]<class T>(std::type_identity<T>) {
    const auto* const token = tokens.data<std::int32_t>();
    const auto& kernels = cpu::elementwise_kernels<T>(stream.impl().isa);
    cpu::parallel_for(stream.impl(), sizes.B * sizes.T, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) {
        const T* const from = wte.data<T>() + token[row] * C;
        if (wpe) {
          const T* const position = wpe.data<T>() + position_of(row) * C;
          kernels.add(out.data<T>() + row * C, from, position, C);
        } else {
          std::copy_n(from, C, out.data<T>() + row * C);
        }
      }
    });
  });
}

}  // namespace

void embedding_forward(Stream& stream, const Tensor& out, const Tensor& tokens, const Tensor& wte,
                       const Tensor& wpe, std::int64_t first_position) {
  constexpr const char* kOp = "embedding_forward";
  const auto sizes = check_embedding_forward(kOp, out, tokens, wte, wpe, first_position);
  expect_ids(kOp, "tokens", tokens, wte.dim(0));
  look_up(stream, kOp, sizes, out, tokens, wte, wpe,
          [&](std::int64_t row) { return first_position + row % sizes.T; });
}

void embedding_forward_at(Stream& stream, const Tensor& out, const Tensor& tokens,
                          const Tensor& wte, const Tensor& wpe, const Tensor& positions) {
  constexpr const char* kOp = "embedding_forward_at";
  const auto sizes = check_embedding_forward_at(kOp, out, tokens, wte, wpe, positions);
  expect_ids(kOp, "tokens", tokens, wte.dim(0));
  if (wpe) expect_ids(kOp, "positions", positions, wpe.dim(0));
  const auto* const position = positions.data<std::int32_t>();
  look_up(stream, kOp, sizes, out, tokens, wte, wpe,
          [&](std::int64_t row) { return std::int64_t{position[row]}; });
}

std::int64_t embedding_backward_scratch(const Stream&, std::int64_t /*batch*/,
                                        std::int64_t /*tokens*/, std::int64_t /*channels*/) {
  return 0;
}

void embedding_backward(Stream& stream, const Tensor& dwte, const Tensor& dwpe, const Tensor& dout,
                        const Tensor& tokens, const Tensor& /*scratch*/, bool accumulate) {
  constexpr const char* kOp = "embedding_backward";
  const auto sizes = check_embedding_backward(kOp, dwte, dwpe, dout, tokens);
  const std::int64_t B = sizes.B;
  const std::int64_t L = sizes.T;
  const std::int64_t C = sizes.C;
  expect_ids(kOp, "tokens", tokens, dwte.dim(0));
  const std::int64_t positions = dwpe ? dwpe.dim(0) : 0;
  cpu::with_float_type(kOp, "dout", dout, [&]<class T>(std::type_identity<T>) {
    const auto* const token = tokens.data<std::int32_t>();
    const T* const gradient = dout.data<T>();
    const auto& kernels = cpu::elementwise_kernels<T>(stream.impl().isa);

    // Each thread adds all rows, in order, to its own channels: no two write the same element and
    // the order of additions never changes. Channels are dealt out by groups of cache lines.
    constexpr std::int64_t kGroup = 64;
    cpu::parallel_for(
        stream.impl(), (C + kGroup - 1) / kGroup, [&](std::int64_t begin, std::int64_t end) {
          const std::int64_t c = begin * kGroup;
          const std::int64_t n = std::min(end * kGroup, C) - c;
          for (std::int64_t row = 0; row < B * L; ++row) {
            kernels.accumulate(dwte.data<float>() + token[row] * C + c, gradient + row * C + c, n);
          }
        });
    cpu::parallel_for(stream.impl(), positions, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t t = begin; t < end; ++t) {
        float* const sum = dwpe.data<float>() + t * C;
        if (!accumulate) std::fill_n(sum, C, 0.0f);
        for (std::int64_t b = 0; t < L && b < B; ++b) {
          kernels.accumulate(sum, gradient + (b * L + t) * C, C);
        }
      }
    });
  });
}

}  // namespace llmc
