#include "llmc/ops/sample.h"

#include "core/cpu/parallel.h"
#include "ops/cpu/dispatch.h"
#include "ops/sample_check.h"
#include "ops/sample_select.h"

namespace llmc {
namespace {

using sampling::Amount;
using sampling::Cut;
using sampling::Search;

float widened(float x) {
  return x;
}
float widened(bf16 x) {
  return to_f32(x);
}

/// One row of logits under a rule.
template <class T>
class Row {
 public:
  Row(const T* logits, const std::uint8_t* seen, const SampleRule& rule)
      : logits_(logits), seen_(seen), rule_(rule) {}

  /// −1 where a logit is not finite.
  std::int32_t draw(std::uint64_t random) {
    std::int32_t likeliest = 0;
    largest_ = value(0);
    bool finite = true;
    for (std::int64_t id = 0; id < rule_.vocab_size; ++id) {
      const float x = value(id);
      finite &= sampling::is_finite(x);
      if (x > largest_) {
        largest_ = x;
        likeliest = static_cast<std::int32_t>(id);
      }
    }
    if (!finite) return -1;
    if (rule_.temperature == 0.0f) return likeliest;
    restrict();
    return at(sampling::point_in(total(rule_.min_p), random));
  }

 private:
  float value(std::int64_t id) const {
    const float logit = widened(logits_[id]);
    return seen_ != nullptr && seen_[id] != 0 ? sampling::penalised(logit, rule_.repetition_penalty)
                                              : logit;
  }
  Amount probability(float x, float min_p = 0.0f) const {
    return sampling::probability(x, largest_, rule_.temperature, min_p);
  }
  Amount probability_of_ties(float min_p) const {
    return cut_.ties == 0 ? 0 : cut_.ties * probability(sampling::value_of(cut_.key), min_p);
  }

  /// Sets the cut to what top_k and then top_p leave.
  void restrict() {
    if (rule_.top_k > 0 && rule_.top_k < rule_.vocab_size) {
      const Search search = find(static_cast<Amount>(rule_.top_k), [](float) { return 1; });
      cut_ = {search.prefix, search.wanted};
    }
    if (rule_.top_p < 1.0f) {
      const Search search = find(sampling::part_of(total(0.0f), rule_.top_p),
                                 [this](float x) { return probability(x); });
      cut_ = sampling::cut_of(search, probability(sampling::value_of(search.prefix)));
    }
  }

  /// Finds where the likeliest of the tokens left reach `wanted`.
  template <class Weight>
  Search find(Amount wanted, const Weight& weight) const {
    Search search;
    search.wanted = wanted;
    for (int round = 0; round < sampling::kRounds; ++round) {
      Amount histogram[sampling::kDigits] = {};
      for (std::int64_t id = 0; id < rule_.vocab_size; ++id) {
        const float x = value(id);
        const std::uint32_t key = sampling::key_of(x);
        if (key > cut_.key && search.counts(key)) histogram[search.digit(key)] += weight(x);
      }
      if (cut_.ties > 0 && search.counts(cut_.key)) {
        histogram[search.digit(cut_.key)] += cut_.ties * weight(sampling::value_of(cut_.key));
      }
      search.narrow(histogram);
    }
    return search;
  }

  Amount total(float min_p) const {
    Amount sum = probability_of_ties(min_p);
    for (std::int64_t id = 0; id < rule_.vocab_size; ++id) {
      const float x = value(id);
      if (sampling::key_of(x) > cut_.key) sum += probability(x, min_p);
    }
    return sum;
  }

  std::int32_t at(Amount point) const {
    Amount passed = 0, ties = 0;
    for (std::int64_t id = 0; id < rule_.vocab_size; ++id) {
      const float x = value(id);
      const std::uint32_t key = sampling::key_of(x);
      if (key < cut_.key || (key == cut_.key && ties++ >= cut_.ties)) continue;
      passed += probability(x, rule_.min_p);
      if (passed > point) return static_cast<std::int32_t>(id);
    }
    return -1;  // not reached: the point lies below the total
  }

  const T* logits_;
  const std::uint8_t* seen_;
  const SampleRule& rule_;
  float largest_ = 0;
  Cut cut_;
};

}  // namespace

void sample_tokens(Stream& stream, const Tensor& tokens, const Tensor& seen, const Tensor& logits,
                   const SampleRule& rule, std::int64_t first_sample, std::int64_t draw) {
  const std::int64_t B = check_sample_tokens(tokens, seen, logits, rule, first_sample, draw);
  cpu::with_float_type("sample_tokens", "logits", logits, [&]<class T>(std::type_identity<T>) {
    cpu::parallel_items(stream.impl(), B, [&](std::int64_t b, int) {
      std::uint8_t* const marks = seen ? seen.data<std::uint8_t>() + b * seen.dim(1) : nullptr;
      Row<T> row(logits.data<T>() + b * logits.dim(1), marks, rule);
      const std::int32_t token = row.draw(sampling::random_of(rule.seed, first_sample + b, draw));
      tokens.data<std::int32_t>()[b] = token;
      if (marks != nullptr && token >= 0) marks[token] = 1;
    });
  });
}

}  // namespace llmc
