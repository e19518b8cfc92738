#pragma once

#include <string>
#include <string_view>

#include "llmc/core/device.h"
#include "llmc/core/tensor.h"

namespace llmc {

/// How matmul reads its inputs and combines with the output.
struct MatmulOptions {
  bool transpose_a = false;  ///< a is stored (K, M) instead of (M, K)
  bool transpose_b = false;  ///< b is stored (N, K) instead of (K, N)
  float alpha = 1.0f;
  float beta = 0.0f;  ///< 0: c is overwritten, whatever it held
};

/// c = alpha · a·b + beta · c, accumulated in fp32. c: (M, N); a: (M, K); b: (K, N), each f32 or
/// bf16 on its own. The result does not depend on the number of threads.
void matmul(Stream& stream, const Tensor& c, const Tensor& a, const Tensor& b,
            const MatmulOptions& options = {});

// The four products of a linear layer. N rows (B·T), C inputs, OC outputs. bias may be empty.

/// out = in · weightᵀ + bias. out: (N, OC); in: (N, C); weight: (OC, C); bias: (OC).
void linear_forward(Stream& stream, const Tensor& out, const Tensor& in, const Tensor& weight,
                    const Tensor& bias);

/// pre = in · weightᵀ + bias; out = gelu(pre), of pre as stored, so that gelu_forward(pre) gives
/// the same bits. out, pre: (N, OC), of one dtype. pre may be empty where no backward pass follows.
void linear_gelu_forward(Stream& stream, const Tensor& out, const Tensor& pre, const Tensor& in,
                         const Tensor& weight, const Tensor& bias);

/// din = dout · weight. din: (N, C); dout: (N, OC); weight: (OC, C).
void linear_backward_input(Stream& stream, const Tensor& din, const Tensor& dout,
                           const Tensor& weight);

/// dpre = (dout · weight) ⊙ gelu'(pre): the input gradient of a linear layer whose input is
/// gelu(pre). dbias (+)= column sums of dpre: the bias gradient of the layer that made pre, which
/// is cheaper here than there. gelu = gelu(pre), the layer's input, with the bits of gelu_forward:
/// for whoever did not keep it. dpre, pre: (N, C), of one dtype, to which the product may be
/// rounded first; gelu: as dpre, or empty; dbias: (C) or empty.
void linear_gelu_backward_input(Stream& stream, const Tensor& dpre, const Tensor& gelu,
                                const Tensor& dbias, const Tensor& dout, const Tensor& weight,
                                const Tensor& pre, bool accumulate);

/// dweight (+)= doutᵀ · in; dbias (+)= column sums of dout; added to what is there if `accumulate`.
/// dweight: (OC, C); dbias: (OC) or empty; dout: (N, OC); in: (N, C).
void linear_backward_weight(Stream& stream, const Tensor& dweight, const Tensor& dbias,
                            const Tensor& dout, const Tensor& in, bool accumulate);

// On a GPU, several algorithms can compute a product, and their roundings differ. A Stream chooses
// one for each kind of product (sizes, dtypes, …) when that first occurs: the fastest, if the
// Device times them, which need not be the same one in the next run. Whoever wants the same bits
// again, or on several GPUs, carries the choices over. The CPU backend has nothing to choose.

/// While it lives, products that occur for the first time are computed by the library's own choice,
/// which is neither timed nor among matmul_choices: for sizes that differ from call to call.
class UntimedMatmuls {
 public:
  explicit UntimedMatmuls(Stream& stream);
  ~UntimedMatmuls();
  UntimedMatmuls(const UntimedMatmuls&) = delete;
  UntimedMatmuls& operator=(const UntimedMatmuls&) = delete;

 private:
  [[maybe_unused]] Stream& stream_;
  [[maybe_unused]] bool before_ = false;
};

/// The choices so far as text, one to a line, each with the GPU and library it was made for.
std::string matmul_choices(Stream& stream);

/// Makes the Stream use the choices of `text` from now on. Lines for another GPU or library version
/// and damaged ones have no effect but a warning.
void set_matmul_choices(Stream& stream, std::string_view text);

}  // namespace llmc
