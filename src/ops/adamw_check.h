#pragma once

#include "llmc/ops/adamw.h"

namespace llmc {

/// Checks the tensors of a range of adamw_update; returns its element count.
std::int64_t check_adamw(const AdamWRange& range);

}  // namespace llmc
