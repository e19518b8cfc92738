#pragma once

#include "llmc/core/tensor.h"

namespace llmc {

/// What combine_ranks requires of its arguments.
void check_records(const Tensor& partials, const Tensor& records, const Tensor& order);

}  // namespace llmc
