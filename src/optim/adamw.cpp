#include "llmc/optim/adamw.h"

#include <cmath>

#include "llmc/core/error.h"
#include "llmc/ops/activation.h"

namespace llmc {
namespace {

void check(bool good, std::string_view option, std::string_view expected, float got) {
  if (!good) fail(ErrorKind::kConfig, "adamw", option, ": expected ", expected, ", got ", got);
}

}  // namespace

AdamW::AdamW(const ParameterSet& parameters, const AdamWOptions& options, const GuardOptions& guard,
             bool master_weights, const Sharing& sharing)
    : Optimizer(parameters, guard, sharing),
      options_(options),
      has_master_(master_weights && parameters.dtype() == DType::kBF16),
      m_(declare_state("m")),
      v_(declare_state("v")) {
  check(options.beta1 >= 0 && options.beta1 < 1, "beta1", "at least 0 and below 1", options.beta1);
  check(options.beta2 >= 0 && options.beta2 < 1, "beta2", "at least 0 and below 1", options.beta2);
  check(std::isfinite(options.eps) && options.eps > 0, "eps", "a finite number above 0",
        options.eps);
  check(std::isfinite(options.weight_decay) && options.weight_decay >= 0, "weight_decay",
        "a finite number of at least 0", options.weight_decay);
  if (has_master_) master_ = declare_state(std::string(kMasterState));
}

void AdamW::start_state(Stream& stream) {
  update_ranges_.clear();
  for (const UpdateRange& range : ranges()) {
    const Tensor master = has_master_ ? state(master_, range) : Tensor();
    if (has_master_) convert(stream, master, values(range));
    update_ranges_.push_back({values(range), master, state(m_, range), state(v_, range),
                              gradients(range), range.first_index,
                              range.group == OptimizerGroup::kDecay});
  }
}

void AdamW::update(Stream& stream, std::span<const UpdateRange> part, const StepBlock* block) {
  const auto first = static_cast<std::size_t>(part.data() - ranges().data());
  adamw_update(stream, std::span(update_ranges_).subspan(first, part.size()), block, options_);
}

}  // namespace llmc
