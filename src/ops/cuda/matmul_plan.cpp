#include "ops/cuda/matmul_plan.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "llmc/core/error.h"
#include "llmc/core/log.h"
#include "ops/cuda/matmul_kernels.h"
#include "ops/cuda/matmul_tuning.h"

namespace llmc::cuda {
namespace {

constexpr int kCandidates = 16;
constexpr int kVectorBytes = 16;  // the widest access of the library's kernels

/// Below this, launching takes about as long as computing, and there is nothing to time.
constexpr double kMinTimedFlops = 1e9;

cudaDataType_t data_type(DType dtype) {
  return dtype == DType::kBF16 ? CUDA_R_16BF : CUDA_R_32F;
}

int alignment_of(const void* address) {
  const auto bits = reinterpret_cast<std::uintptr_t>(address);
  int alignment = kVectorBytes;
  while (bits % static_cast<std::uintptr_t>(alignment) != 0) alignment /= 2;
  return alignment;
}

MatmulKey key_of(const Stream::Impl& stream, const Product& p) {
  return {.m = p.m,
          .n = p.n,
          .k = p.k,
          .c = p.c_type,
          .a = p.a.dtype,
          .b = p.b.dtype,
          .transpose_a = p.a.transposed,
          .transpose_b = p.b.transposed,
          .bias = p.bias != nullptr,
          .adds = p.beta != 0.0f,
          .tf32 = stream.tf32 && p.a.dtype == DType::kF32,
          .c_alignment = alignment_of(p.c),
          .a_alignment = alignment_of(p.a.data),
          .b_alignment = alignment_of(p.b.data)};
}

/// One line without tabs, for people too.
std::string name_of(const MatmulKey& key) {
  const auto input = [&key](DType dtype) { return key.tf32 ? "tf32" : llmc::name_of(dtype); };
  return concat(llmc::name_of(key.c), key.adds ? "+=" : "=", input(key.a), "*", input(key.b), " ",
                key.transpose_a ? "T" : "N", key.transpose_b ? "T" : "N",
                key.bias ? " bias m=" : " m=", key.m, " n=", key.n, " k=", key.k,
                " align=", key.c_alignment, ",", key.a_alignment, ",", key.b_alignment);
}

/// Whether cuBLASLt computes products like this at all: one dtype of inputs, results in the same or
/// in fp32, and a bias like the results that it can read with its widest accesses.
bool library_takes(const Product& p) {
  return p.k > 0 && p.a.dtype == p.b.dtype && (p.c_type == p.a.dtype || p.c_type == DType::kF32) &&
         (p.bias == nullptr || (p.bias_type == p.c_type && alignment_of(p.bias) == kVectorBytes));
}

template <class T>
void set(const LtProduct& product, cublasLtMatmulDescAttributes_t attribute, const T& value) {
  check(cublasLtMatmulDescSetAttribute(product.get(), attribute, &value, sizeof value),
        "cannot describe a product");
}

/// A row-major (rows, columns) matrix in the library's eyes: its transpose, column-major.
LtLayout layout(DType dtype, std::int64_t rows, std::int64_t columns) {
  cublasLtMatrixLayout_t made = nullptr;
  check(cublasLtMatrixLayoutCreate(&made, data_type(dtype), static_cast<std::uint64_t>(columns),
                                   static_cast<std::uint64_t>(rows), columns),
        "cannot describe a matrix");
  return LtLayout(made);
}

/// The library looks at the bias even when it is only asked for algorithms.
MatmulPlan describe(const MatmulKey& key, const void* bias) {
  MatmulPlan plan;
  cublasLtMatmulDesc_t made = nullptr;
  check(cublasLtMatmulDescCreate(
            &made, key.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUDA_R_32F),
        "cannot describe a product");
  plan.product.reset(made);
  set(plan.product, CUBLASLT_MATMUL_DESC_TRANSA, key.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(plan.product, CUBLASLT_MATMUL_DESC_TRANSB, key.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
  if (key.bias) {
    set(plan.product, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    set(plan.product, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE,
        static_cast<std::int32_t>(data_type(key.c)));
    set(plan.product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
  }
  plan.c = layout(key.c, key.m, key.n);
  plan.a = key.transpose_a ? layout(key.a, key.k, key.m) : layout(key.a, key.m, key.k);
  plan.b = key.transpose_b ? layout(key.b, key.n, key.k) : layout(key.b, key.k, key.n);
  return plan;
}

MatmulChoice choice_of(const cublasLtMatmulAlgo_t& algorithm, double microseconds) {
  MatmulChoice choice{.algorithm = {}, .microseconds = microseconds};
  static_assert(sizeof choice.algorithm == sizeof algorithm);
  std::memcpy(choice.algorithm.data(), &algorithm, sizeof algorithm);
  return choice;
}

}  // namespace

double Product::flops() const {
  return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
}

void check(cublasStatus_t status, std::string_view what) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  fail(ErrorKind::kDevice, "matmul", what, ": ", cublasLtGetStatusString(status));
}

cublasStatus_t launch(cublasLtHandle_t handle, const MatmulPlan& plan,
                      const cublasLtMatmulAlgo_t& algorithm, Stream::Impl& stream,
                      const Product& product, void* c) {
  if (product.bias != nullptr) {
    set(plan.product, CUBLASLT_MATMUL_DESC_BIAS_POINTER, product.bias);
  }
  return cublasLtMatmul(handle, plan.product.get(), &product.alpha, product.b.data, plan.b.get(),
                        product.a.data, plan.a.get(), &product.beta, c, plan.c.get(), c,
                        plan.c.get(), &algorithm, stream.matmul_workspace.data(),
                        stream.matmul_workspace.bytes(), stream.stream);
}

MatmulPlans::MatmulPlans(const Device& device)
    : tune_(device.impl().tune_matmul),
      cache_(tune_ ? device.impl().tuning_cache : std::string()),
      choices_(device.impl().gpu, cublasLtGetVersion()) {
  cublasLtHandle_t made = nullptr;
  check(cublasLtCreate(&made), "cannot start cuBLASLt");
  handle_.reset(made);
  if (!cache_.empty()) choices_.load(cache_);
}

void MatmulPlans::run(Stream::Impl& stream, const Product& product) {
  if (product.m == 0 || product.n == 0) return;
  if (!library_takes(product)) return plain_matmul(stream, product);
  const MatmulPlan& plan = plan_for(stream, product);
  if (!plan.has_algorithm) return plain_matmul(stream, product);
  check(launch(handle_.get(), plan, plan.algorithm, stream, product, product.c),
        "cannot start a product");
}

void MatmulPlans::set_choices(std::string_view text) {
  const MatmulChoices::Merged merged = choices_.merge(text);
  if (merged.foreign > 0 || merged.damaged > 0) {
    log(LogLevel::kWarning, concat("[matmul] of the choices given, ", merged.foreign,
                                   " are for another GPU or library and ", merged.damaged,
                                   " are damaged; those products may differ in their last bits"));
  }
  plans_.clear();
}

const MatmulPlan& MatmulPlans::plan_for(Stream::Impl& stream, const Product& product) {
  const MatmulKey key = key_of(stream, product);
  const auto known = plans_.find(key);
  if (known != plans_.end()) return known->second;
  return plans_.emplace(key, make_plan(stream, product, key)).first->second;
}

MatmulPlan MatmulPlans::make_plan(Stream::Impl& stream, const Product& product,
                                  const MatmulKey& key) {
  MatmulPlan plan = describe(key, product.bias);
  const std::string name = name_of(key);
  if (use_known_choice(plan, name)) return plan;
  const std::vector<cublasLtMatmulAlgo_t> found = candidates(plan, key);
  if (found.empty()) {
    if (product.flops() >= kMinTimedFlops) {
      log(LogLevel::kWarning,
          concat("[matmul] cuBLASLt has no algorithm for ", name, "; a slow kernel is used"));
    }
    return plan;
  }
  TimedAlgorithm best;
  if (tune_ && timing_ && product.flops() >= kMinTimedFlops && !is_capturing(stream.stream)) {
    best = fastest_algorithm(handle_.get(), plan, found, stream, product);
  }
  plan.algorithm = found[best.index];
  plan.has_algorithm = true;
  if (timing_) choices_.set(name, choice_of(plan.algorithm, best.microseconds));
  if (best.microseconds > 0) save_choices();
  return plan;
}

bool MatmulPlans::use_known_choice(MatmulPlan& plan, const std::string& name) const {
  const MatmulChoice* choice = choices_.find(name);
  if (choice == nullptr) return false;
  std::memcpy(&plan.algorithm, choice->algorithm.data(), sizeof plan.algorithm);
  cublasLtMatmulHeuristicResult_t result{};
  const cublasStatus_t status =
      cublasLtMatmulAlgoCheck(handle_.get(), plan.product.get(), plan.b.get(), plan.a.get(),
                              plan.c.get(), plan.c.get(), &plan.algorithm, &result);
  plan.has_algorithm =
      status == CUBLAS_STATUS_SUCCESS && result.workspaceSize <= kMatmulWorkspaceBytes;
  if (!plan.has_algorithm) {
    log(LogLevel::kWarning, concat("[matmul] the algorithm chosen before for ", name,
                                   " cannot be used; another one is chosen"));
  }
  return plan.has_algorithm;
}

std::vector<cublasLtMatmulAlgo_t> MatmulPlans::candidates(const MatmulPlan& plan,
                                                          const MatmulKey& key) const {
  cublasLtMatmulPreferenceOpaque_t preference;
  check(cublasLtMatmulPreferenceInit(&preference), "cannot describe a preference");
  const auto prefer = [&preference](cublasLtMatmulPreferenceAttributes_t attribute, auto value) {
    check(cublasLtMatmulPreferenceSetAttribute(&preference, attribute, &value, sizeof value),
          "cannot describe a preference");
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::uint64_t{kMatmulWorkspaceBytes});
  // The other schemes store partial sums in the type of the results, or add to them in place.
  prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
         static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, static_cast<std::uint32_t>(key.b_alignment));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, static_cast<std::uint32_t>(key.a_alignment));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, static_cast<std::uint32_t>(key.c_alignment));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, static_cast<std::uint32_t>(key.c_alignment));

  cublasLtMatmulHeuristicResult_t results[kCandidates];
  int count = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
      handle_.get(), plan.product.get(), plan.b.get(), plan.a.get(), plan.c.get(), plan.c.get(),
      &preference, kCandidates, results, &count);
  std::vector<cublasLtMatmulAlgo_t> found;
  if (status == CUBLAS_STATUS_NOT_SUPPORTED) return found;
  check(status, "cannot ask for algorithms");
  for (const auto& result : std::span(results, static_cast<std::size_t>(count))) {
    if (result.state == CUBLAS_STATUS_SUCCESS) found.push_back(result.algo);
  }
  return found;
}

void MatmulPlans::save_choices() {
  if (cache_.empty()) return;
  try {
    choices_.save(cache_);
  } catch (const Error& error) {
    log(LogLevel::kWarning, concat("[matmul] the timed choices are not kept: ", error.what()));
    cache_.clear();
  }
}

MatmulPlans& matmul_plans(Stream::Impl& stream) {
  if (!stream.matmul_state) stream.matmul_state = std::make_unique<MatmulPlans>(stream.device);
  return static_cast<MatmulPlans&>(*stream.matmul_state);
}

}  // namespace llmc::cuda
