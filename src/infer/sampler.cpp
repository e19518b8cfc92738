#include "llmc/infer/sampler.h"

#include <algorithm>

#include "llmc/core/error.h"

namespace llmc {
namespace {

constexpr std::size_t kAlignment = 64;

std::size_t padded(std::size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

std::size_t token_bytes(std::int64_t rows) {
  return static_cast<std::size_t>(rows) * sizeof(std::int32_t);
}

SampleRule rule_of(const SampleOptions& options) {
  SampleRule rule;
  rule.vocab_size = options.vocab_size;
  rule.repetition_penalty = options.repetition_penalty;
  rule.temperature = options.temperature;
  rule.top_k = options.top_k;
  rule.top_p = options.top_p;
  rule.min_p = options.min_p;
  rule.seed = options.seed;
  return rule;
}

/// The rule for this model.
SampleRule checked(const SampleOptions& options, const ModelConfig& model) {
  validate(options);
  if (options.end_of_text >= model.vocab_size) {
    fail(ErrorKind::kConfig, "sampler", "end_of_text: expected a token below ", model.vocab_size,
         ", got ", options.end_of_text);
  }
  SampleRule rule = rule_of(options);
  if (rule.vocab_size == 0 || rule.vocab_size > model.vocab_size) {
    rule.vocab_size = model.vocab_size;
  }
  return rule;
}

std::size_t memory_for(const SampleRule& rule, std::int64_t rows) {
  const bool penalty = rule.repetition_penalty != 1.0f;
  return padded(token_bytes(rows)) +
         (penalty ? static_cast<std::size_t>(rows * rule.vocab_size) : 0);
}

}  // namespace

void validate(const SampleOptions& options) {
  check_rule(rule_of(options));
  if (options.temperature != 0.0f) return;
  const auto refuse = [](const char* name) {
    fail(ErrorKind::kConfig, "sampler", name, ": expected none with temperature 0, which always ",
         "takes the likeliest token; raise temperature or leave it out");
  };
  if (options.top_k != 0) refuse("top_k");
  if (options.top_p != 1.0f) refuse("top_p");
  if (options.min_p != 0.0f) refuse("min_p");
}

Sampler::Sampler(Transformer& model, const SampleOptions& options, std::int64_t rows)
    : model_(model),
      rule_(checked(options, model.config())),
      end_of_text_(options.end_of_text),
      cache_(model.make_cache(rows)),
      memory_(model.stream().device(), memory_for(rule_, rows)),
      tokens_(memory_.data(), DType::kI32, {rows}),
      readback_(model.stream().device(), token_bytes(rows)) {
  if (rule_.repetition_penalty != 1.0f) {
    seen_ = Tensor(static_cast<std::byte*>(memory_.data()) + padded(token_bytes(rows)), DType::kU8,
                   {rows, rule_.vocab_size});
  }
}

/// Fills the cache from the prompts, and returns the sequences.
std::vector<Sampler::Tokens> Sampler::start(std::span<const Tokens> prompts) {
  if (prompts.empty() || std::ssize(prompts) > cache_.batch()) {
    fail(ErrorKind::kInput, "sampler", "prompts: expected 1 to ", cache_.batch(),
         ", the rows of the sampler, got ", prompts.size());
  }
  std::vector<Tokens> sequences(prompts.begin(), prompts.end());
  for (Tokens& sequence : sequences) {
    if (sequence.empty() && end_of_text_ < 0) {
      fail(ErrorKind::kInput, "sampler", "prompt: expected at least one token, got none");
    }
    if (sequence.empty()) sequence.push_back(end_of_text_);
    if (std::ssize(sequence) > cache_.max_positions()) {
      fail(ErrorKind::kInput, "sampler", "prompt: expected at most the ", cache_.max_positions(),
           " tokens of the model's context, got ", sequence.size());
    }
  }
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    const auto row = static_cast<std::int64_t>(i);
    if (i > 0 && sequences[i] == sequences[i - 1]) {
      cache_.copy_row(model_.stream(), row, row - 1);
      continue;
    }
    cache_.truncate(row, 0);
    model_.prefill(cache_, row, sequences[i]);
  }
  if (seen_) mark_seen(sequences);
  return sequences;
}

void Sampler::mark_seen(std::span<const Tokens> sequences) {
  const std::int64_t V = rule_.vocab_size;
  std::vector<std::uint8_t> marks(static_cast<std::size_t>(std::ssize(sequences) * V), 0);
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    for (const std::int32_t id : sequences[i]) {
      if (id < V) marks[i * static_cast<std::size_t>(V) + static_cast<std::size_t>(id)] = 1;
    }
  }
  copy_from_host(model_.stream(), seen_.rows(0, std::ssize(sequences)), marks.data());
}

/// Where a row is full, fills it again from the end of its sequence, whose newest token comes next.
void Sampler::make_room(std::int64_t row, const Tokens& sequence, bool goes_on) {
  if (cache_.position(row) < cache_.max_positions()) return;
  cache_.truncate(row, 0);
  const auto kept = static_cast<std::size_t>(std::max<std::int64_t>(cache_.max_positions() / 2, 1));
  if (!goes_on || kept == 1) return;
  model_.prefill(cache_, row, std::span(sequence).last(kept).first(kept - 1));
}

std::vector<Sampler::Tokens> Sampler::generate_batch(std::span<const Tokens> prompts,
                                                     std::int64_t max_new_tokens,
                                                     const OnRowToken& on_token,
                                                     std::int64_t first_sample) {
  if (max_new_tokens < 0) {
    fail(ErrorKind::kInput, "sampler", "max_new_tokens: expected 0 or more, got ", max_new_tokens);
  }
  std::vector<Tokens> sequences = start(prompts);
  const std::size_t rows = sequences.size();
  const auto B = static_cast<std::int64_t>(rows);
  const Tensor tokens = tokens_.rows(0, B);
  const Tensor seen = seen_ ? seen_.rows(0, B) : Tensor();
  std::vector<Tokens> drawn(rows);
  std::vector<bool> goes_on(rows, true);
  for (std::int64_t n = 0; n < max_new_tokens; ++n) {
    if (n > 0) {
      for (std::size_t i = 0; i < rows; ++i) {
        make_room(static_cast<std::int64_t>(i), sequences[i], goes_on[i]);
      }
      model_.decode(cache_, tokens);
    }
    sample_tokens(model_.stream(), tokens, seen, cache_.logits().rows(0, B), rule_, first_sample,
                  n);
    readback_.start(model_.stream(), tokens_.raw());
    const auto* const newest = static_cast<const std::int32_t*>(readback_.wait());
    for (std::size_t i = 0; i < rows; ++i) {
      if (newest[i] < 0) {
        fail(ErrorKind::kInput, "sampler",
             "logits: expected finite values, got others; the model has diverged");
      }
      if (!goes_on[i]) continue;
      sequences[i].push_back(newest[i]);
      drawn[i].push_back(newest[i]);
      goes_on[i] = (!on_token || on_token(i, newest[i])) && newest[i] != end_of_text_;
    }
    if (std::find(goes_on.begin(), goes_on.end(), true) == goes_on.end()) break;
  }
  return drawn;
}

Sampler::Tokens Sampler::generate(std::span<const std::int32_t> prompt, std::int64_t max_new_tokens,
                                  const OnToken& on_token, std::int64_t sample) {
  const Tokens prompts[] = {Tokens(prompt.begin(), prompt.end())};
  OnRowToken on_row_token;
  if (on_token) on_row_token = [&](std::size_t, std::int32_t token) { return on_token(token); };
  return generate_batch(prompts, max_new_tokens, on_row_token, sample).front();
}

}  // namespace llmc
