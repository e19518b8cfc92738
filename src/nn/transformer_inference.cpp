#include <algorithm>
#include <cstring>
#include <functional>

#include "core/trace.h"
#include "llmc/core/error.h"
#include "llmc/ops/linear.h"
#include "nn/transformer_impl.h"

namespace llmc {
namespace {

/// Where `count` bf16 wait to be widened into the floats they share memory with.
std::byte* upper_half(float* values, std::int64_t count) {
  return reinterpret_cast<std::byte*>(values) + static_cast<std::size_t>(count) * sizeof(bf16);
}

void widen_in_place(float* values, std::int64_t count) {
  const std::byte* low = upper_half(values, count);
  for (std::int64_t i = 0; i < count; ++i) {
    bf16 value;
    std::memcpy(&value, low + static_cast<std::size_t>(i) * sizeof value, sizeof value);
    values[i] = to_f32(value);
  }
}

}  // namespace

/// One token of each of the first rows of a cache, whose positions are on the device: the same work
/// for every token.
void Transformer::Impl::decode_pass(KvCache& cache, const Tensor& newest) {
  const Sizes s{newest.numel(), 1};
  const auto pass = [&] {
    run_layers(s, {&cache, kAllRows, newest});
    head->logits(context(), cache.logits().rows(0, s.batch), rows_of(hidden, s));
  };
  if (bucket_needed) return pass();
  const DecodeKey key{cache.logits().raw(), cache.batch(), cache.max_positions(), newest.raw(),
                      s.batch};
  if (key != decode_key) {
    decode_key = key;
    decode_replay = Replay();
  }
  decode_replay.run(stream, std::ref(pass));
}

/// The first V logits of every row. out: (R, V); in: (R, C).
void Transformer::Impl::logits_to_host(std::span<float> out, const Tensor& in) {
  const LayerContext ctx = context();
  const std::int64_t rows = in.dim(0);
  for (std::int64_t begin = 0; begin < rows; begin += head->chunk_rows()) {
    const std::int64_t end = std::min(rows, begin + head->chunk_rows());
    const Tensor chunk = head->chunk_logits(ctx, end - begin);
    head->logits(ctx, chunk, in.rows(begin, end));
    copy_logits(out.data() + begin * config.vocab_size, chunk);
  }
}

/// The first V columns, in fp32. out: (R, V) host memory; logits: (R, Vp).
void Transformer::Impl::copy_logits(float* out, const Tensor& logits) {
  const std::int64_t V = config.vocab_size;
  const std::int64_t count = logits.dim(0) * V;
  if (logits.dtype() == DType::kF32) {
    copy_columns_to_host(stream, out, logits, V);
  } else {
    copy_columns_to_host(stream, upper_half(out, count), logits, V);
    widen_in_place(out, count);
  }
}

LossSum Transformer::evaluate(std::span<const std::int32_t> tokens,
                              std::span<const std::int32_t> targets, std::int64_t batch,
                              std::int64_t seq_len, std::span<float> losses) {
  Impl& m = *impl_;
  const Sizes s = m.sizes(batch, seq_len);
  m.check_ids("tokens", tokens, s, 0);
  m.check_ids("targets", targets, s, -1);
  if (!losses.empty()) m.check_room("losses", losses.size(), s.rows());
  m.begin_inference();
  copy_from_host(m.stream, m.get(m.tokens, s), tokens.data());
  copy_from_host(m.stream, m.get(m.targets, s), targets.data());
  m.run_layers(s);
  StepBlock sums{};
  const Tensor block = m.activations.get(m.eval_block);
  copy_from_host(m.stream, block, &sums);
  const Shape rows{s.rows()};
  const Tensor all_losses = m.activations.get(m.losses, rows);
  m.head->forward(m.context(), all_losses, m.rows_of(m.hidden, s),
                  m.activations.get(m.targets, rows), m.block(m.eval_block));
  m.last = s;
  copy_to_host(m.stream, &sums, block);
  if (!losses.empty()) copy_to_host(m.stream, losses.data(), all_losses);
  return {sums.loss_sum, sums.counted_tokens};
}

void Transformer::logits(std::span<float> logits, std::span<const std::int32_t> tokens,
                         std::int64_t batch, std::int64_t seq_len) {
  Impl& m = *impl_;
  const Sizes s = m.sizes(batch, seq_len);
  m.check_ids("tokens", tokens, s, 0);
  m.check_room("logits", logits.size(), s.rows() * m.config.vocab_size);
  m.begin_inference();
  copy_from_host(m.stream, m.get(m.tokens, s), tokens.data());
  m.run_layers(s);
  m.logits_to_host(logits, m.rows_of(m.hidden, s));
}

KvCache Transformer::make_cache(std::int64_t batch, std::int64_t max_positions) const {
  return KvCache(impl_->device, impl_->config, impl_->options.dtype, batch, max_positions);
}

void Transformer::prefill(KvCache& cache, std::int64_t row, std::span<const std::int32_t> tokens) {
  Impl& m = *impl_;
  m.check_allocated();
  const Sizes all{1, static_cast<std::int64_t>(tokens.size())};
  const std::int64_t left = cache.max_positions() - cache.position(row);
  if (all.tokens < 1 || all.tokens > left) {
    fail(ErrorKind::kInput, "model", "tokens: expected at least one, and at most the ", left,
         " that fit behind those in the cache, got ", all.tokens);
  }
  m.check_ids("tokens", tokens, all, 0);
  m.begin_inference();

  const UntimedMatmuls untimed(m.stream);
  // Pieces as long as the planned activations allow.
  const std::int64_t longest = m.options.micro_batch * m.options.seq_len;
  Sizes piece{1, 0};
  for (std::int64_t begin = 0; begin < all.tokens; begin += piece.tokens) {
    piece.tokens = std::min(longest, all.tokens - begin);
    copy_from_host(m.stream, m.get(m.tokens, piece), tokens.data() + begin);
    m.run_layers(piece, {&cache, row});
  }
  m.head->logits(m.context(), cache.logits().rows(row, row + 1),
                 m.rows_of(m.hidden, piece).rows(piece.tokens - 1, piece.tokens));
}

void Transformer::decode(KvCache& cache, const Tensor& tokens) {
  Impl& m = *impl_;
  m.check_allocated();
  const Sizes s{tokens.numel(), 1};
  const std::int64_t most = std::min(cache.batch(), m.options.micro_batch * m.options.seq_len);
  if (s.batch < 1 || s.batch > most || tokens.dtype() != DType::kI32) {
    fail(ErrorKind::kInput, "model", "tokens: expected i32 of 1 to ", most, " rows, got ",
         llmc::name_of(tokens.dtype()), " of ", s.batch);
  }
  for (std::int64_t b = 0; b < s.batch; ++b) {
    if (cache.position(b) < cache.max_positions()) continue;
    fail(ErrorKind::kInput, "model", "cache: expected room for a token in row ", b,
         ", got one that holds ", cache.position(b));
  }
  m.begin_inference();
  cache.send_positions(m.stream, s.batch);
  m.decode_pass(cache, tokens);
  for (std::int64_t b = 0; b < s.batch; ++b) cache.advance(b, 1);
}

void Transformer::read_logits(std::span<float> logits, const KvCache& cache) {
  Impl& m = *impl_;
  m.check_room("logits", logits.size(), cache.batch() * m.config.vocab_size);
  m.copy_logits(logits.data(), cache.logits());
}

}  // namespace llmc
