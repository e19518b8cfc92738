#pragma once

#include <cstdint>

#include "llmc/core/device.h"
#include "llmc/core/tensor.h"

namespace llmc {

// Lookups of token and position vectors. Tokens must be below the rows of wte. Where one is not,
// the CPU backend throws an input error; a GPU backend, which cannot look at them in time, makes
// its vector NaN, so that the step is skipped, and adds its gradient nowhere.

/// out[b, t] = wte[tokens[b, t]] + wpe[first_position + t]. out: (B, T, C); tokens: (B, T) i32;
/// wte: (Vp, C); wpe: (maxT, C) or empty; out, wte and wpe of one dtype, f32 or bf16.
void embedding_forward(Stream& stream, const Tensor& out, const Tensor& tokens, const Tensor& wte,
                       const Tensor& wpe, std::int64_t first_position = 0);

/// out[b] = wte[tokens[b]] + wpe[positions[b]], one token a row. out: (B, 1, C); tokens: (B, 1)
/// i32; wte: (Vp, C); wpe: (maxT, C) or empty; positions: (B) i32, below maxT: as for tokens, the
/// CPU backend throws for another one and a GPU backend makes the vector NaN.
void embedding_forward_at(Stream& stream, const Tensor& out, const Tensor& tokens,
                          const Tensor& wte, const Tensor& wpe, const Tensor& positions);

/// Bytes of scratch that embedding_backward needs.
std::int64_t embedding_backward_scratch(const Stream& stream, std::int64_t batch,
                                        std::int64_t tokens, std::int64_t channels);

/// dwte[tokens[b, t]] += dout[b, t], in a fixed order, onto what is there; dwpe[t] (+)= sum over b
/// of dout[b, t], rows T and up get zeros unless `accumulate`. dwte: (Vp, C) f32; dwpe: (maxT, C)
/// f32, or empty; dout: (B, T, C) f32 or bf16; tokens: (B, T) i32; scratch: u8.
void embedding_backward(Stream& stream, const Tensor& dwte, const Tensor& dwpe, const Tensor& dout,
                        const Tensor& tokens, const Tensor& scratch, bool accumulate);

}  // namespace llmc
