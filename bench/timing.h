#pragma once

#include <vector>

namespace llmc::bench {

/// Seconds since some fixed moment.
double now();

/// Middle value (the mean of the two middle ones); `samples` is not empty.
double median(std::vector<double> samples);

}  // namespace llmc::bench
