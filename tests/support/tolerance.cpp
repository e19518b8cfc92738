#include "support/tolerance.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace llmc::testing {
namespace {

struct Size {
  double max = 0;
  double rms = 0;
};

template <class Term>
Size size_of_terms(std::size_t n, const Term& term) {
  Size size;
  for (std::size_t i = 0; i < n; ++i) {
    const double x = term(i);
    if (!(std::abs(x) <= size.max)) size.max = std::abs(x);  // a NaN stays
    if (std::isnan(x)) return {x, x};
    size.rms += x * x;
  }
  size.rms = n == 0 ? 0 : std::sqrt(size.rms / static_cast<double>(n));
  return size;
}

Size size_of_values(const Values& v) {
  return size_of_terms(v.size(), [&](std::size_t i) { return v[i]; });
}
Size error_of(const Values& a, const Values& b) {
  return size_of_terms(a.size(), [&](std::size_t i) { return a[i] - b[i]; });
}

}  // namespace

double f32_tolerance(std::int64_t terms) {
  constexpr double kUnitRoundoff = 0x1p-24;
  return kUnitRoundoff * (8 + 2 * std::sqrt(static_cast<double>(terms)));
}

void expect_close(std::string_view what, const Values& actual, const Values& exact,
                  std::int64_t terms) {
  ASSERT_EQ(actual.size(), exact.size()) << what;
  const double tolerance = f32_tolerance(terms);
  const Size size = size_of_values(exact);
  const Size error = error_of(actual, exact);
  EXPECT_LE(error.max, tolerance * size.max) << what << ": largest of " << size.max;
  EXPECT_LE(error.rms, 0.5 * tolerance * size.rms) << what << ": root mean square " << size.rms;
}

void expect_close_bf16(std::string_view what, const Values& actual, const Values& exact,
                       const Values& plain, std::int64_t terms) {
  ASSERT_EQ(actual.size(), exact.size()) << what;
  ASSERT_EQ(plain.size(), exact.size()) << what;
  const double tolerance = f32_tolerance(terms);
  const Size size = size_of_values(exact);
  const Size error = error_of(actual, exact);
  const Size bound = error_of(plain, exact);
  EXPECT_LE(error.max, 2 * bound.max + tolerance * size.max) << what << ": largest of " << size.max;
  EXPECT_LE(error.rms, 2 * bound.rms + tolerance * size.rms)
      << what << ": root mean square " << size.rms;
}

void expect_close(std::string_view what, const TestTensor& actual, const Values& exact,
                  const Values& plain, std::int64_t terms) {
  if (actual->dtype() == DType::kF32) {
    expect_close(what, actual.values(), exact, terms);
  } else {
    expect_close_bf16(what, actual.values(), exact, plain, terms);
  }
}

}  // namespace llmc::testing
