#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "llmc/ops/adamw.h"
#include "llmc/optim/optimizer.h"

namespace llmc {

/// AdamW (Loshchilov and Hutter, 2019): moments "m" and "v" in fp32 and, for bf16 parameters, their
/// exact values "master" in fp32. Weight decay acts on the kDecay group only.
class AdamW : public Optimizer {
 public:
  /// Without `master_weights`, bf16 parameters are all there is, and each update is rounded into
  /// them stochastically; fp32 parameters never have masters. Throws a config error for options out
  /// of range.
  AdamW(const ParameterSet& parameters, const AdamWOptions& options, const GuardOptions& guard = {},
        bool master_weights = true, const Sharing& sharing = {});

  std::string_view name() const override { return "adamw"; }
  const AdamWOptions& options() const { return options_; }
  bool has_master_weights() const { return has_master_; }

 private:
  void start_state(Stream& stream) override;
  void update(Stream& stream, std::span<const UpdateRange> part, const StepBlock* block) override;

  AdamWOptions options_;
  bool has_master_;
  StateId m_;
  StateId v_;
  StateId master_ = 0;
  std::vector<AdamWRange> update_ranges_;  ///< `ranges`, one by one, as adamw_update takes them
};

}  // namespace llmc
