#include "llmc/nn/transformer.h"

#include <algorithm>
#include <compare>
#include <cstring>
#include <functional>
#include <map>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "core/replay.h"
#include "core/trace.h"
#include "llmc/core/error.h"
#include "llmc/nn/block.h"
#include "llmc/nn/embedding.h"
#include "llmc/nn/head.h"
#include "llmc/nn/norm.h"
#include "llmc/ops/linear.h"

namespace llmc {
namespace {

constexpr float kEmbeddingStddev = 0.02f;
/// Callers whose steps are all different must not gather recordings without end.
constexpr std::size_t kMostReplays = 16;

ModelConfig checked(const ModelConfig& config) {
  config.validate();
  return config;
}

TransformerOptions checked(TransformerOptions options, const ModelConfig& config) {
  if (options.seq_len == 0) options.seq_len = config.block_size;
  if (options.micro_batch < 1) {
    fail(ErrorKind::kConfig, "model", "micro_batch: expected 1 or more, got ", options.micro_batch);
  }
  if (options.seq_len < 1 || options.seq_len > config.block_size) {
    fail(ErrorKind::kConfig, "model", "seq_len: expected 1 to the block_size of ",
         config.block_size, ", got ", options.seq_len);
  }
  return options;
}

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

struct Sizes {
  std::int64_t batch = 0;   // B
  std::int64_t tokens = 0;  // T
  std::int64_t rows() const { return batch * tokens; }
  auto operator<=>(const Sizes&) const = default;
};

/// What tells one forward or backward pass from another, all else being the same for good.
struct PassKey {
  bool backward = false;
  Sizes sizes;
  bool accumulate = false;
  double nominal_tokens = 0;
  auto operator<=>(const PassKey&) const = default;
};

constexpr std::int64_t kAllRows = -1;

/// What a decoding pass depends on, besides the model.
struct DecodeKey {
  const void* logits = nullptr;  ///< of the cache
  std::int64_t batch = 0, max_positions = 0;
  const void* tokens = nullptr;
  std::int64_t rows = 0;

  bool operator==(const DecodeKey&) const = default;
};

/// Where the layers add to a cache: a prompt to one row, or one token to each row.
struct Decoding {
  KvCache* cache = nullptr;
  std::int64_t row = kAllRows;
  Tensor tokens = {};  ///< (B) i32, for all rows
};

}  // namespace

struct Transformer::Impl {
  Impl(const Device& opened, const ModelConfig& model, const TransformerOptions& wanted);

  // Checks of what enters.
  void check_allocated() const;
  Sizes sizes(std::int64_t batch, std::int64_t seq_len, bool training = false) const;
  void check_ids(std::string_view what, std::span<const std::int32_t> ids, const Sizes& s,
                 std::int32_t lowest) const;
  void check_room(std::string_view what, std::size_t got, std::int64_t expected) const;
  void begin_inference();

  LayerContext context(bool accumulate = false) {
    return {stream, parameters, activations, accumulate};
  }
  Tensor get(ActivationSet::Id id, const Sizes& s) const {
    return activations.get(id, {s.batch, s.tokens});
  }
  Tensor channels(ActivationSet::Id id, const Sizes& s) const {
    return activations.get(id, {s.batch, s.tokens, config.n_embd});
  }
  Tensor rows_of(ActivationSet::Id id, const Sizes& s) const {
    return activations.get(id, {s.rows(), config.n_embd});
  }
  StepBlock* block(ActivationSet::Id id) const {
    return static_cast<StepBlock*>(activations.get(id).raw());
  }
  void needed(std::size_t bucket) const {
    if (bucket_needed) bucket_needed(bucket);
  }
  void ready(std::size_t bucket, bool final) const {
    if (final && bucket_ready) bucket_ready(bucket);
  }

  void run_layers(const Sizes& s, const Decoding& decoding = {});
  void forward_pass(const Sizes& s, double nominal);
  void backward_pass(const Sizes& s);
  void decode_pass(KvCache& cache, const Tensor& newest);
  void logits_to_host(std::span<float> out, const Tensor& hidden);
  void copy_logits(float* out, const Tensor& logits);
  template <class Pass>
  void replay(const PassKey& key, const Pass& pass);

  ModelConfig config;
  TransformerOptions options;
  Device device;
  Stream stream;
  ParameterSet parameters;
  ActivationSet activations;
  Arena arena;

  std::optional<Embedding> embedding;
  std::vector<Block> blocks;
  std::optional<LayerNorm> final_norm;
  std::optional<LmHead> head;

  ActivationSet::Id tokens, targets, losses;           // (B, T)
  ActivationSet::Id final_x, hidden;                   // (B, T, C); hidden becomes its gradient
  ActivationSet::Id dresidual = ActivationSet::kNone;  // (B, T, C)
  ActivationSet::Id step_block, eval_block;

  Sizes last;                    // of the last forward or evaluate
  bool awaits_backward = false;  // forward has run, backward has not
  int micro_steps = 0;           // of the running step; 0: none was begun
  int micro_step = 0;            // finished ones
  double nominal_tokens = 0;
  std::function<void(std::size_t)> bucket_needed;
  std::function<void(std::size_t)> bucket_ready;
  std::map<PassKey, Replay> replays;  // behind what their work uses
  DecodeKey decode_key;
  Replay decode_replay;
};

Transformer::Impl::Impl(const Device& opened, const ModelConfig& model,
                        const TransformerOptions& wanted)
    : config(checked(model)),
      options(checked(wanted, config)),
      device(opened),
      stream(device),
      parameters(options.dtype, options.training, options.ranks) {
  stream.allow_tf32(options.tf32);
  LayerPlan plan{.parameters = parameters,
                 .activations = activations,
                 .stream = stream,
                 .batch = options.micro_batch,
                 .tokens = options.seq_len,
                 .training = options.training,
                 .recompute = options.recompute};
  parameters.begin_bucket("embeddings");
  embedding.emplace(plan, "", config.vocab_size, config.padded_vocab_size(), config.block_size,
                    config.n_embd, kEmbeddingStddev);
  blocks.reserve(static_cast<std::size_t>(config.n_layer));
  for (std::int64_t i = 0; i < config.n_layer; ++i) {
    const std::string name = concat("blocks.", i);
    parameters.begin_bucket(name, i);
    blocks.emplace_back(plan, name, config);
  }
  parameters.begin_bucket("final_norm");
  final_norm.emplace(plan, "ln_f", config.n_embd, config.norm_eps);
  head.emplace(plan, embedding->weight(), config.vocab_size, options.head_chunk_bytes);

  const Shape ids{options.micro_batch, options.seq_len};
  const Shape stream_shape{options.micro_batch, options.seq_len, config.n_embd};
  tokens = activations.keep("tokens", DType::kI32, ids);
  targets = activations.keep("targets", DType::kI32, ids);
  losses = activations.keep("losses", DType::kF32, ids);
  final_x = activations.keep("final_residual", plan.dtype(), stream_shape);
  hidden = activations.keep("hidden", plan.dtype(), stream_shape);
  if (plan.training) dresidual = activations.share("dresidual", plan.dtype(), stream_shape);
  step_block = activations.keep("step.train", DType::kU8, {sizeof(StepBlock)});
  eval_block = activations.keep("step.eval", DType::kU8, {sizeof(StepBlock)});

  parameters.plan(arena);
  activations.plan(arena);
}

void Transformer::Impl::check_allocated() const {
  if (!arena.allocated()) {
    fail(ErrorKind::kMemory, "model", "expected allocated memory, got a plan only; call allocate");
  }
}

/// Without a backward pass, shorter rows may be more, in the memory of the planned ones.
Sizes Transformer::Impl::sizes(std::int64_t batch, std::int64_t seq_len, bool training) const {
  check_allocated();
  const Sizes s{batch == 0 ? options.micro_batch : batch, seq_len == 0 ? options.seq_len : seq_len};
  if (s.tokens < 1 || s.tokens > options.seq_len) {
    fail(ErrorKind::kInput, "model", "T: expected 1 to the seq_len of ", options.seq_len, ", got ",
         s.tokens);
  }
  const std::int64_t planned = options.micro_batch * options.seq_len;
  const std::int64_t most = training ? options.micro_batch : planned / s.tokens;
  if (s.batch < 1 || s.batch > most) {
    fail(ErrorKind::kInput, "model", "B: expected 1 to ", most, " for a micro_batch of ",
         options.micro_batch, " and T = ", s.tokens, ", got ", s.batch);
  }
  return s;
}

void Transformer::Impl::check_room(std::string_view what, std::size_t got,
                                   std::int64_t expected) const {
  if (got == static_cast<std::size_t>(expected)) return;
  fail(ErrorKind::kInput, "model", what, ": expected ", expected, " values, got ", got);
}

void Transformer::Impl::check_ids(std::string_view what, std::span<const std::int32_t> ids,
                                  const Sizes& s, std::int32_t lowest) const {
  check_room(what, ids.size(), s.rows());
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] >= lowest && ids[i] < config.vocab_size) continue;
    const auto place = static_cast<std::int64_t>(i);
    fail(ErrorKind::kInput, "model", what, ": expected ids from ", lowest, " to ",
         config.vocab_size - 1, ", got ", ids[i], " in row ", place / s.tokens, ", position ",
         place % s.tokens);
  }
}

/// What follows overwrites the activations that backward would read.
void Transformer::Impl::begin_inference() {
  if (awaits_backward && micro_steps > 0) {
    fail(ErrorKind::kInput, "model",
         "expected backward after the forward of a step that was begun, got another call");
  }
  awaits_backward = false;
}

/// From tokens to hidden; with a cache, behind the tokens it holds, and adds to it.
void Transformer::Impl::run_layers(const Sizes& s, const Decoding& decoding) {
  const TraceRange trace("layers forward");
  const LayerContext ctx = context();
  KvCache* const cache = decoding.cache;
  const bool all_rows = cache && decoding.row == kAllRows;
  needed(0);
  Residual residual{blocks[0].input(ctx, s.batch, s.tokens), {}};
  if (all_rows) {
    embedding->forward_at(ctx, residual.x, decoding.tokens.view({s.batch, 1}),
                          cache->first_rows(0, s.batch).positions);
  } else {
    embedding->forward(ctx, residual.x, get(tokens, s), cache ? cache->position(decoding.row) : 0);
  }
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const TraceRange block_trace("block forward");
    needed(i + 1);
    if (cache) {
      residual = blocks[i].decode(
          ctx, residual, all_rows ? cache->first_rows(i, s.batch) : cache->layer(i, decoding.row));
    } else {
      residual = blocks[i].forward(ctx, residual);
    }
  }
  needed(blocks.size() + 1);
  final_norm->forward_residual(ctx, channels(final_x, s), channels(hidden, s), residual.x,
                               residual.pending);
  needed(0);
  if (cache && !all_rows) cache->advance(decoding.row, s.tokens);
}

/// From tokens to the losses and the gradients of hidden and of the head.
void Transformer::Impl::forward_pass(const Sizes& s, double nominal) {
  run_layers(s);
  const TraceRange trace("head forward and backward");
  const Shape rows{s.rows()};
  const Tensor hidden_rows = rows_of(hidden, s);
  head->forward_backward(context(micro_step > 0), activations.get(losses, rows), hidden_rows,
                         hidden_rows, activations.get(targets, rows),
                         static_cast<float>(1.0 / nominal), block(step_block));
}

void Transformer::Impl::backward_pass(const Sizes& s) {
  const TraceRange trace("layers backward");
  const bool final = micro_step + 1 >= micro_steps;
  const LayerContext ctx = context(micro_step > 0);
  const Tensor dx = channels(dresidual, s);
  needed(blocks.size() + 1);
  final_norm->backward(ctx, dx, channels(hidden, s), channels(final_x, s), false);
  ready(blocks.size() + 1, final);
  for (std::size_t i = blocks.size(); i > 0; --i) {
    const TraceRange block_trace("block backward");
    needed(i);
    blocks[i - 1].backward(ctx, dx);
    ready(i, final);
  }
  embedding->backward(ctx, dx, get(tokens, s));
  ready(0, final);
}

/// Runs a pass, or what was recorded of one like it. Hooks must be called each time.
template <class Pass>
void Transformer::Impl::replay(const PassKey& key, const Pass& pass) {
  const bool known = replays.contains(key);
  if (bucket_needed || bucket_ready || (!known && replays.size() == kMostReplays)) return pass();
  replays[key].run(stream, std::ref(pass));
}

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

Transformer::Transformer(const Device& device, const ModelConfig& config,
                         const TransformerOptions& options)
    : impl_(std::make_unique<Impl>(device, config, options)) {}
Transformer::~Transformer() = default;
Transformer::Transformer(Transformer&&) noexcept = default;
Transformer& Transformer::operator=(Transformer&&) noexcept = default;

const ModelConfig& Transformer::config() const {
  return impl_->config;
}
const TransformerOptions& Transformer::options() const {
  return impl_->options;
}
const ParameterSet& Transformer::parameters() const {
  return impl_->parameters;
}
const Arena& Transformer::arena() const {
  return impl_->arena;
}
Stream& Transformer::stream() {
  return impl_->stream;
}
const Stream& Transformer::stream() const {
  return impl_->stream;
}

std::string Transformer::report() const {
  const ModelConfig& c = impl_->config;
  const TransformerOptions& o = impl_->options;
  return concat("layers ", c.n_layer, ", heads ", c.n_head, ", channels ", c.n_embd,
                ", vocabulary ", c.vocab_size, " (", c.padded_vocab_size(), " padded), positions ",
                c.block_size, "\nparameters ", c.num_parameters(), ", FLOPs per token ",
                static_cast<std::int64_t>(c.flops_per_token(o.seq_len)), "\nB ", o.micro_batch,
                ", T ", o.seq_len, ", ", llmc::name_of(o.dtype), ", recompute ",
                name_of(o.recompute), "\n", impl_->arena.report());
}

void Transformer::allocate() {
  Impl& m = *impl_;
  m.replays.clear();
  m.decode_key = {};
  m.arena.allocate(m.device);
  m.parameters.bind(m.arena);
  m.activations.bind(m.arena);
  const StepBlock empty{};
  copy_from_host(m.stream, m.activations.get(m.step_block), &empty);
}

void Transformer::init(std::uint32_t seed) {
  impl_->check_allocated();
  initialise(impl_->stream, impl_->parameters, seed);
}

void Transformer::begin_step(const StepInputs& inputs, int micro_steps) {
  Impl& m = *impl_;
  m.check_allocated();
  if (micro_steps < 1) {
    fail(ErrorKind::kInput, "model", "micro_steps: expected 1 or more, got ", micro_steps);
  }
  if (!(inputs.nominal_tokens > 0)) {
    fail(ErrorKind::kInput, "model", "nominal_tokens: expected a positive number, got ",
         inputs.nominal_tokens);
  }
  llmc::begin_step(m.stream, step_block(), inputs);
  m.micro_steps = micro_steps;
  m.micro_step = 0;
  m.nominal_tokens = inputs.nominal_tokens;
  m.awaits_backward = false;
}

void Transformer::forward(std::span<const std::int32_t> tokens,
                          std::span<const std::int32_t> targets, std::int64_t batch,
                          std::int64_t seq_len) {
  Impl& m = *impl_;
  if (!m.options.training) {
    fail(ErrorKind::kConfig, "model", "forward: expected a model planned for training, got one ",
         "that is not; use evaluate, logits or decode");
  }
  const Sizes s = m.sizes(batch, seq_len, true);
  m.check_ids("tokens", tokens, s, 0);
  m.check_ids("targets", targets, s, -1);
  m.begin_inference();
  if (m.micro_steps > 0 && m.micro_step == m.micro_steps) {
    fail(ErrorKind::kInput, "model", "forward: expected ", m.micro_steps,
         " micro-steps as begin_step said, got another; call begin_step");
  }
  copy_from_host(m.stream, m.get(m.tokens, s), tokens.data());
  copy_from_host(m.stream, m.get(m.targets, s), targets.data());
  const double nominal = m.micro_steps > 0 ? m.nominal_tokens : static_cast<double>(s.rows());
  m.replay({false, s, m.micro_step > 0, nominal}, [&] { m.forward_pass(s, nominal); });
  m.last = s;
  m.awaits_backward = true;
}

void Transformer::backward() {
  Impl& m = *impl_;
  if (!m.awaits_backward) {
    fail(ErrorKind::kInput, "model", "backward: expected a call of forward just before, got none");
  }
  m.replay({true, m.last, m.micro_step > 0}, [&] { m.backward_pass(m.last); });
  m.awaits_backward = false;
  if (m.micro_steps > 0) ++m.micro_step;
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

Tensor Transformer::losses() const {
  impl_->check_allocated();
  return impl_->get(impl_->losses, impl_->last);
}

StepBlock* Transformer::step_block() {
  impl_->check_allocated();
  return impl_->block(impl_->step_block);
}

StepBlock Transformer::read_step_block() {
  impl_->check_allocated();
  StepBlock block{};
  copy_to_host(impl_->stream, &block, impl_->activations.get(impl_->step_block));
  return block;
}

void Transformer::on_bucket_needed(std::function<void(std::size_t bucket)> hook) {
  impl_->bucket_needed = std::move(hook);
}

void Transformer::on_bucket_ready(std::function<void(std::size_t bucket)> hook) {
  impl_->bucket_ready = std::move(hook);
}

}  // namespace llmc
