// Training data of one's own: a BatchSource over text in memory, with everything a training needs
// from one, shuffling and exact resume included.

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "llmc/core/error.h"
#include "llmc/core/rng.h"
#include "llmc/data/batch_source.h"
#include "llmc/data/corpus.h"
#include "llmc/data/tokenizer.h"
#include "llmc/nn/transformer.h"
#include "llmc/optim/adamw.h"

namespace {

/// Rows of T tokens cut from one text, in an order that depends on the seed and the epoch only.
class TextSource : public llmc::BatchSource {
 public:
  TextSource(std::string_view text, const llmc::Tokenizer& tokenizer, std::int64_t B,
             std::int64_t T, std::uint64_t seed)
      : B_(B), T_(T), seed_(seed), tokens_(tokenizer.encode(text)) {
    // A row needs one token more than it is long: the target of its last input.
    const auto rows = (static_cast<std::int64_t>(tokens_.size()) - 1) / T;
    if (rows < B) {
      llmc::fail(llmc::ErrorKind::kInput, "text source", "expected text for ", B, " rows, got ",
                 rows);
    }
    order_.resize(static_cast<std::size_t>(rows));
    reset();
  }

  std::int64_t B() const override { return B_; }
  std::int64_t T() const override { return T_; }

  void next(llmc::Batch& batch) override {
    batch.inputs.clear();
    batch.targets.clear();
    for (std::int64_t row = 0; row < B_; ++row) {
      const auto begin = tokens_.begin() + order_[static_cast<std::size_t>(next_row_ + row)] * T_;
      batch.inputs.insert(batch.inputs.end(), begin, begin + T_);
      batch.targets.insert(batch.targets.end(), begin + 1, begin + T_ + 1);
    }
    next_row_ += B_;
    if (next_row_ + B_ > rows()) start_epoch(epoch_ + 1);  // the rest would not fill a batch
  }

  // A position is a few numbers. Whatever else there is must follow from them.
  llmc::SourceState state() const override {
    return {{"epoch", epoch_}, {"row", next_row_}, {"rows", rows()}};
  }
  void restore(const llmc::SourceState& state) override {
    if (state.at("rows") != rows()) {
      llmc::fail(llmc::ErrorKind::kInput, "text source", "rows: expected ", rows(), ", got ",
                 state.at("rows"), "; the position belongs to another text");
    }
    start_epoch(state.at("epoch"));
    next_row_ = state.at("row");
  }
  void reset() override { start_epoch(0); }

  std::int64_t epoch() const override { return epoch_; }
  std::int64_t batches_per_epoch() const override { return rows() / B_; }
  std::int64_t tokens_per_epoch() const override { return batches_per_epoch() * B_ * T_; }

 private:
  std::int64_t rows() const { return static_cast<std::int64_t>(order_.size()); }

  /// A Fisher-Yates shuffle with counter-based random numbers: the same in every run.
  void start_epoch(std::int64_t epoch) {
    epoch_ = epoch;
    next_row_ = 0;
    std::iota(order_.begin(), order_.end(), 0);
    for (std::size_t i = order_.size() - 1; i > 0; --i) {
      const auto random = llmc::philox4x32(seed_, i, static_cast<std::uint64_t>(epoch));
      std::swap(order_[i], order_[random[0] % (i + 1)]);
    }
  }

  std::int64_t B_, T_;
  std::uint64_t seed_;
  std::vector<std::int32_t> tokens_;
  std::vector<std::int64_t> order_;
  std::int64_t epoch_ = 0;
  std::int64_t next_row_ = 0;
};

/// Whether a second source that is put where the first one stands goes on with the same batches.
bool resumes_exactly(TextSource& source, TextSource other) {
  llmc::Batch expected, got;
  other.restore(source.state());
  for (std::int64_t i = 0; i < 2 * source.batches_per_epoch(); ++i) {
    source.next(expected);
    other.next(got);
    if (expected.inputs != got.inputs || expected.targets != got.targets) return false;
  }
  return true;
}

}  // namespace

int main() {
  constexpr std::int64_t B = 8, T = 64;
  std::string text;
  for (int i = 0; i < 100; ++i) text += llmc::make_tale(/*seed=*/1, i).text;
  const auto tokenizer = llmc::make_byte_tokenizer();
  TextSource source(text, *tokenizer, B, T, /*seed=*/7);

  const llmc::Device device = llmc::Device::open();
  const auto config = llmc::ModelConfig::gpt2(2, 4, 64, T, tokenizer->vocab_size());
  llmc::Transformer model(device, config, {.micro_batch = B});
  model.allocate();
  model.init(42);
  llmc::AdamW optimizer(model.parameters(), {.beta2 = 0.99f}, {.grad_clip = 1.0f});
  optimizer.allocate(device);
  optimizer.start(model.stream());

  llmc::Batch batch;
  while (source.epoch() < 10) {
    const std::int64_t epoch = source.epoch();
    source.next(batch);
    model.begin_step({.lr = 3e-3f, .seed = 42, .step = 0, .nominal_tokens = double(B * T)});
    model.forward(batch.inputs, batch.targets);
    model.backward();
    optimizer.step(model.stream(), model.step_block());
    if (source.epoch() > epoch) {
      std::printf("epoch %d  loss %.3f\n", static_cast<int>(epoch), model.read_step_block().loss);
    }
  }

  source.next(batch);  // somewhere inside an epoch
  const bool exact = resumes_exactly(source, source);
  source.reset();
  std::printf("resumes %s\n", exact ? "exactly" : "wrongly");
  return exact && model.read_step_block().loss < 2.0f ? 0 : 1;
}
