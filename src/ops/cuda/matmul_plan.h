#pragma once

#include <cublasLt.h>

#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/cuda/device_impl.h"
#include "ops/cuda/matmul_choices.h"

namespace llmc::cuda {

/// A matrix as matmul reads it: rows follow one another; `transposed`: the product reads it so.
struct MatmulOperand {
  const void* data;
  DType dtype;
  bool transposed = false;
};

/// c = alpha · a·b + beta · c + bias, row-major. c: (m, n); a: (m, k); b: (k, n) after transposing;
/// bias: (n), or null.
struct Product {
  std::int64_t m, n, k;
  void* c;
  DType c_type;
  MatmulOperand a, b;
  const void* bias = nullptr;
  DType bias_type = DType::kF32;
  float alpha = 1.0f;
  float beta = 0.0f;

  double flops() const;
};

/// What products share that use one plan.
struct MatmulKey {
  std::int64_t m, n, k;
  DType c, a, b;
  bool transpose_a, transpose_b;
  bool bias;
  bool adds;  ///< beta is not 0
  bool tf32;  ///< fp32 inputs may be rounded to TF32
  /// Of the addresses: the largest power of two up to 16 that divides them.
  int c_alignment, a_alignment, b_alignment;

  auto operator<=>(const MatmulKey&) const = default;
};

/// Throws a device error that says what was tried.
void check(cublasStatus_t status, std::string_view what);

/// Destroys what cublasLt…Create made.
template <auto destroy>
struct LtDeleter {
  template <class T>
  void operator()(T* object) const {
    destroy(object);
  }
};
using LtHandle = std::unique_ptr<cublasLtContext, LtDeleter<cublasLtDestroy>>;
using LtProduct = std::unique_ptr<cublasLtMatmulDescOpaque_t, LtDeleter<cublasLtMatmulDescDestroy>>;
using LtLayout =
    std::unique_ptr<cublasLtMatrixLayoutOpaque_t, LtDeleter<cublasLtMatrixLayoutDestroy>>;

/// A product as cuBLASLt knows it. The library is column-major: it computes cᵀ = bᵀ·aᵀ, so that its
/// first operand is our b.
struct MatmulPlan {
  LtProduct product;
  LtLayout c, a, b;
  cublasLtMatmulAlgo_t algorithm;
  bool has_algorithm = false;  ///< if not, plain_matmul computes the product
};

/// Queues a product by the algorithm given; `c` stands for product.c.
cublasStatus_t launch(cublasLtHandle_t handle, const MatmulPlan& plan,
                      const cublasLtMatmulAlgo_t& algorithm, Stream::Impl& stream,
                      const Product& product, void* c);

/// What a Stream keeps for its matrix products: one plan for each kind of product that occurred.
class MatmulPlans : public StreamState {
 public:
  explicit MatmulPlans(const Device& device);

  /// Queues the product. The first one of its kind makes the plan, which may time algorithms: that
  /// allocates memory and waits for the GPU. Later ones do neither.
  void run(Stream::Impl& stream, const Product& product);

  /// Whether new kinds of products are timed, as far as the device does that, and their choices
  /// kept. Returns what was set before.
  bool set_timing(bool timing) { return std::exchange(timing_, timing); }

  std::string choices() const { return choices_.text(); }
  /// Takes choices made elsewhere; plans are made again from them.
  void set_choices(std::string_view text);

 private:
  const MatmulPlan& plan_for(Stream::Impl& stream, const Product& product);
  MatmulPlan make_plan(Stream::Impl& stream, const Product& product, const MatmulKey& key);
  bool use_known_choice(MatmulPlan& plan, const std::string& name) const;
  std::vector<cublasLtMatmulAlgo_t> candidates(const MatmulPlan& plan, const MatmulKey& key) const;
  void save_choices();

  LtHandle handle_;
  bool tune_;
  bool timing_ = true;
  std::string cache_;  // file of timed choices; empty: none
  MatmulChoices choices_;
  std::map<MatmulKey, MatmulPlan> plans_;
};

/// The plans of a stream, made at the first call. The stream's device must be current.
MatmulPlans& matmul_plans(Stream::Impl& stream);

}  // namespace llmc::cuda
