#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "llmc/data/batch_source.h"

namespace llmc {

/// A short text in the embedded language "tales", and how surprising it is.
struct Tale {
  std::string text;  ///< ends with a newline
  double bits = 0;   ///< −log2 of the probability of exactly this text, its end included
};

/// Tale number `index` of a seed. Tales are independent draws from one distribution: a grammar in
/// which a named hero of either gender keeps name, pronoun and belonging through three to six
/// sentences and may meet a friend. Different choices give different texts, and the choices can be
/// read off a text from left to right, so no model can predict tales better than their bits say.
Tale make_tale(std::uint64_t seed, std::int64_t index);

/// The bits of a text; an input error that states the position if it is not exactly one tale.
double tale_bits(std::string_view text);

/// Expected values over all tales, summed exactly.
struct TaleStatistics {
  double bits_per_tale = 0;
  double bytes_per_tale = 0;
  /// The lowest loss in bits per byte that any model can reach on many tales, where only the bytes
  /// of the texts count and not the end-of-text tokens between them (these are certain).
  double bits_per_byte() const { return bits_per_tale / bytes_per_tale; }
};
TaleStatistics tale_statistics();

/// The most bytes a tale can have.
std::int64_t longest_tale();

/// Endless batches of tales as bytes (see make_byte_tokenizer). A row is an end-of-text, then whole
/// tales, each ended by an end-of-text, while there is room for the longest one; the targets of the
/// rest are ignored. As no row begins within a tale, the least possible loss is exactly `bits`.
class TaleSource : public BatchSource {
 public:
  /// T must be longest_tale() + 1 or more. The rows of a seed are numbered: of world_size·B rows
  /// that follow each other, rank r gets rows r·B to r·B + B - 1.
  TaleSource(std::int64_t B, std::int64_t T, std::uint64_t seed, int rank = 0, int world_size = 1);

  std::int64_t B() const override { return B_; }
  std::int64_t T() const override { return T_; }
  void next(Batch& batch) override;
  /// The bits of the tales in the batch that `next` returned last.
  double bits() const { return bits_; }
  SourceState state() const override;
  void restore(const SourceState& state) override;
  void reset() override { next_row_ = 0; }
  std::int64_t epoch() const override { return 0; }
  std::int64_t batches_per_epoch() const override { return 0; }
  std::int64_t tokens_per_epoch() const override { return 0; }

 private:
  void fill_row(std::int32_t* inputs, std::int32_t* targets, std::int64_t row);

  std::int64_t B_;
  std::int64_t T_;
  std::uint64_t seed_;
  std::int64_t rank_;
  std::int64_t world_size_;
  std::int64_t next_row_ = 0;  // over all ranks
  double bits_ = 0;
};

}  // namespace llmc
