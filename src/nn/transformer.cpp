#include "llmc/nn/transformer.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "core/trace.h"
#include "llmc/core/error.h"
#include "nn/transformer_impl.h"

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

}  // namespace

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
    if (i == 1) {  // before the last product, so that this can hide their exchange
      embedding->backward(ctx, dx, get(tokens, s));
      ready(0, final);
    }
    blocks[i - 1].backward_qkv(ctx, s.batch, s.tokens);
    ready(i, final);
  }
}

/// Runs a pass, or what was recorded of one like it. Hooks must be called each time.
template <class Pass>
void Transformer::Impl::replay(const PassKey& key, const Pass& pass) {
  const bool known = replays.contains(key);
  if (bucket_needed || bucket_ready || (!known && replays.size() == kMostReplays)) return pass();
  replays[key].run(stream, std::ref(pass));
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
