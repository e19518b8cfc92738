#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "llmc/core/arena.h"
#include "llmc/core/device.h"
#include "llmc/nn/activations.h"
#include "llmc/nn/kv_cache.h"
#include "llmc/nn/model_config.h"
#include "llmc/nn/parameters.h"
#include "llmc/ops/step.h"

namespace llmc {

/// How a Transformer will be used: this decides its memory.
struct TransformerOptions {
  std::int64_t micro_batch = 1;  ///< largest B of a call
  std::int64_t seq_len = 0;      ///< largest T of a call; 0: block_size
  DType dtype = DType::kF32;     ///< of parameters and activations: f32 or bf16
  Recompute recompute = Recompute::kNone;
  bool training = true;  ///< false: no gradients, and no activation outlives its layer
  int ranks = 1;         ///< buckets are padded so that this many ranks can cut them evenly
  bool tf32 = false;     ///< f32 only: products may round their inputs (Stream::allow_tf32)
  std::int64_t head_chunk_bytes = preferred_chunk_bytes();  ///< logits that exist at once
};

/// Sum of losses over counted targets (those that are not −1).
struct LossSum {
  double loss_sum = 0;  ///< nats
  std::int64_t counted_tokens = 0;
};

/// A GPT: embedding, blocks, final norm, tied head. Construction plans; `allocate` allocates;
/// afterwards no call allocates memory. Move-only; moving keeps every view, and the Stream, valid.
/// One thread at a time may use it.
///
/// One optimizer step of n micro-steps:
///
///     model.begin_step({.lr = lr, .seed = seed, .step = step,
///                       .nominal_tokens = double(n * B * T)}, n);
///     for (...) { model.forward(tokens, targets); model.backward(); }
///     // the gradients are those of (sum of losses) / nominal_tokens; an optimizer takes them,
///     // and the sums in step_block(), through finish_gradients (ops/step.h)
class Transformer {
 public:
  /// Throws a config error for a config or options that cannot be used.
  Transformer(const Device& device, const ModelConfig& config, const TransformerOptions& options);
  ~Transformer();
  Transformer(Transformer&&) noexcept;
  Transformer& operator=(Transformer&&) noexcept;

  const ModelConfig& config() const;
  const TransformerOptions& options() const;  ///< with seq_len filled in
  const ParameterSet& parameters() const;
  /// The plan of its memory, before `allocate` too.
  const Arena& arena() const;
  /// Sizes, FLOPs per token and the memory table, for people.
  std::string report() const;
  /// The queue all its work runs on; an optimizer uses the same.
  Stream& stream();
  const Stream& stream() const;

  /// Throws a memory error that says by how much it does not fit and what would help.
  void allocate();
  bool allocated() const { return arena().allocated(); }
  /// Draws the starting weights (PyTorch's stream); until then, or a load, they are zero.
  void init(std::uint32_t seed);

  // Tokens are host memory, B rows of T ids below vocab_size, row by row; targets are the same, −1
  // for those that do not count. An id out of range is an input error that names its place. B = 0
  // and T = 0 stand for the planned sizes; smaller ones may be given. Where no backward pass
  // follows, B may be larger for a smaller T: B·T is at most the planned product.

  /// Starts an optimizer step of `micro_steps` pairs of forward and backward: clears the sums in
  /// step_block() and sets its inputs. The first pair overwrites the gradients, the others add.
  /// nominal_tokens is that of the whole step over all ranks. Without begin_step every pair is a
  /// step of its own: gradients are overwritten, scaled by 1/(B·T), and the sums go on growing.
  void begin_step(const StepInputs& inputs, int micro_steps = 1);
  /// Loss and, for training, the gradients of head and hidden states. Sums are added in
  /// step_block(). Throws a config error unless planned for training.
  void forward(std::span<const std::int32_t> tokens, std::span<const std::int32_t> targets,
               std::int64_t batch = 0, std::int64_t seq_len = 0);
  /// Gradients of everything below the head, for the tokens of the forward call just before.
  void backward();

  /// Loss only; leaves gradients, step_block() and micro-steps alone, but not what backward reads.
  /// Waits for the result. losses: (B, T) host memory for the loss of every token, 0 where the
  /// target is −1; or empty.
  LossSum evaluate(std::span<const std::int32_t> tokens, std::span<const std::int32_t> targets,
                   std::int64_t batch = 0, std::int64_t seq_len = 0, std::span<float> losses = {});
  /// logits: (B, T, V) host memory. Waits for the result.
  void logits(std::span<float> logits, std::span<const std::int32_t> tokens, std::int64_t batch = 0,
              std::int64_t seq_len = 0);

  /// A cache for decoding `batch` rows with this model.
  KvCache make_cache(std::int64_t batch, std::int64_t max_positions = 0) const;
  /// Adds T tokens, one or a whole prompt, to one row of the cache. tokens: (T). Throws an input
  /// error, and adds nothing, if the row is too short. As prompts have any length, their products
  /// are not timed on a GPU (UntimedMatmuls).
  void prefill(KvCache& cache, std::int64_t row, std::span<const std::int32_t> tokens);
  /// Adds one token to each of the cache's first B rows, which may hold different numbers of them.
  /// tokens: (B) i32, device memory, such as ops/sample.h writes, so that nothing waits for the
  /// host. Throws an input error, and adds nothing, if a row is full or B exceeds the rows (B·T)
  /// that the model was planned for.
  void decode(KvCache& cache, const Tensor& tokens);
  /// Logits that follow the newest token of each row: cache.logits() in fp32, without padding.
  /// logits: (B, V) host memory. Waits for the result.
  void read_logits(std::span<float> logits, const KvCache& cache);

  /// Per-token losses of the last forward or evaluate. (B, T) f32, device memory.
  Tensor losses() const;
  /// Device memory: inputs and sums of the running step.
  StepBlock* step_block();
  /// Its content; waits for the queued work.
  StepBlock read_step_block();

  // Hooks are called with a bucket's number, in the calling thread; buckets
  // are 0 (embeddings), 1 to L (blocks), L + 1 (final norm). An empty function removes one.

  /// Before every stretch of reads of a bucket's parameters: 0, 1 … L, L + 1, 0 (head) in forward,
  /// evaluate, logits and decode; L + 1, L … 1 in backward.
  void on_bucket_needed(std::function<void(std::size_t bucket)> hook);
  /// When a bucket's gradients are final, in the last micro-step's backward: L + 1, L … 2, 0, 1.
  /// The first block's are last, so that one of its products can go on beside the embeddings'
  /// exchange.
  void on_bucket_ready(std::function<void(std::size_t bucket)> hook);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace llmc
