#include "llmc/infer/sampler.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "llmc/core/error.h"
#include "llmc/core/rng.h"

namespace llmc {
namespace {

/// Uniform in [0, 1) with 53 bits, the n-th draw of a sample.
double draw(std::uint64_t seed, std::uint64_t sample, std::uint64_t n) {
  const auto words = philox4x32(seed, n, sample);
  const std::uint64_t bits = (static_cast<std::uint64_t>(words[0]) << 32 | words[1]) >> 11;
  return static_cast<double>(bits) * 0x1p-53;
}

}  // namespace

void validate(const SampleOptions& options) {
  if (!(options.temperature >= 0.0f && std::isfinite(options.temperature))) {
    fail(ErrorKind::kConfig, "sampler", "temperature: expected 0 or more, got ",
         options.temperature);
  }
  if (options.vocab_size < 0) {
    fail(ErrorKind::kConfig, "sampler", "vocab_size: expected 0 or more, got ", options.vocab_size);
  }
  if (options.top_k < 0) {
    fail(ErrorKind::kConfig, "sampler", "top_k: expected 0 or more, got ", options.top_k);
  }
  if (!(options.top_p > 0.0f && options.top_p <= 1.0f)) {
    fail(ErrorKind::kConfig, "sampler", "top_p: expected more than 0 and at most 1, got ",
         options.top_p);
  }
}

std::int32_t pick_token(std::span<const float> logits, const SampleOptions& options, double uniform,
                        std::vector<std::int32_t>& order) {
  if (logits.empty()) fail(ErrorKind::kInput, "sampler", "logits: expected some, got none");
  for (const float logit : logits) {
    if (std::isfinite(logit)) continue;
    fail(ErrorKind::kInput, "sampler", "logits: expected finite values, got ", logit,
         "; the model has diverged");
  }
  order.resize(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto likelier = [&](std::int32_t a, std::int32_t b) {
    const float la = logits[static_cast<std::size_t>(a)];
    const float lb = logits[static_cast<std::size_t>(b)];
    return la != lb ? la > lb : a < b;
  };
  if (options.temperature == 0.0f) {
    return *std::min_element(order.begin(), order.end(), likelier);
  }
  std::size_t count = order.size();
  if (options.top_k > 0) count = std::min(count, static_cast<std::size_t>(options.top_k));
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(count), order.end(),
                    likelier);

  // Probabilities of the tokens left, relative to the likeliest.
  const double largest = logits[static_cast<std::size_t>(order[0])];
  const auto weight = [&](std::size_t i) {
    return std::exp((logits[static_cast<std::size_t>(order[i])] - largest) / options.temperature);
  };
  double total = 0;
  for (std::size_t i = 0; i < count; ++i) total += weight(i);
  if (options.top_p < 1.0f) {
    const double wanted = options.top_p * total;
    total = 0;
    for (std::size_t i = 0; i < count; ++i) {
      total += weight(i);
      if (total >= wanted) count = i + 1;
    }
  }
  double passed = 0;
  for (std::size_t i = 0; i + 1 < count; ++i) {
    passed += weight(i);
    if (uniform * total < passed) return order[i];
  }
  return order[count - 1];
}

Sampler::Sampler(Transformer& model, const SampleOptions& options)
    : model_(model),
      options_(options),
      cache_(model.make_cache(1)),
      logits_(static_cast<std::size_t>(model.config().vocab_size)),
      choices_(logits_.size()) {
  validate(options);
  if (options.end_of_text >= model.config().vocab_size) {
    fail(ErrorKind::kConfig, "sampler", "end_of_text: expected a token below ",
         model.config().vocab_size, ", got ", options.end_of_text);
  }
  if (options.vocab_size > 0) {
    choices_ = std::min(choices_, static_cast<std::size_t>(options.vocab_size));
  }
}

/// Fills the cache from the end of a sequence: all of it if that fits, else half a block.
void Sampler::refill(std::span<const std::int32_t> sequence) {
  const auto block = static_cast<std::size_t>(cache_.max_positions());
  if (sequence.size() > block) sequence = sequence.last(std::max<std::size_t>(block / 2, 1));
  cache_.truncate(0);
  model_.decode(logits_, cache_, sequence);
}

std::vector<std::int32_t> Sampler::generate(std::span<const std::int32_t> prompt,
                                            std::int64_t max_new_tokens, const OnToken& on_token,
                                            std::uint64_t sample) {
  if (max_new_tokens < 0) {
    fail(ErrorKind::kInput, "sampler", "max_new_tokens: expected 0 or more, got ", max_new_tokens);
  }
  std::vector<std::int32_t> sequence(prompt.begin(), prompt.end());
  if (sequence.empty()) {
    if (options_.end_of_text < 0) {
      fail(ErrorKind::kInput, "sampler", "prompt: expected at least one token, got none");
    }
    sequence.push_back(options_.end_of_text);
  }
  const std::size_t prompt_size = sequence.size();
  for (std::int64_t n = 0; n < max_new_tokens; ++n) {
    if (n == 0 || cache_.position() == cache_.max_positions()) {
      refill(sequence);
    } else {
      model_.decode(logits_, cache_, std::span(sequence).last(1));
    }
    const std::int32_t token =
        pick_token(std::span(logits_).first(choices_), options_,
                   draw(options_.seed, sample, static_cast<std::uint64_t>(n)), order_);
    sequence.push_back(token);
    const bool go_on = !on_token || on_token(token);
    if (!go_on || token == options_.end_of_text) break;
  }
  sequence.erase(sequence.begin(), sequence.begin() + static_cast<std::ptrdiff_t>(prompt_size));
  return sequence;
}

}  // namespace llmc
