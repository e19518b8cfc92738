#pragma once

#include <cstdint>
#include <vector>

#include "llmc/core/arena.h"
#include "llmc/core/device.h"
#include "llmc/nn/attention.h"
#include "llmc/nn/model_config.h"

namespace llmc {

/// Keys and values of the tokens a model has decoded so far, in B rows of different lengths, and
/// the logits that followed the newest token of each. Move-only.
class KvCache {
 public:
  /// Allocates for `max_positions` tokens (0: block_size) of `batch` rows in the model's dtype.
  /// Throws a config error for more positions than the model has.
  KvCache(const Device& device, const ModelConfig& config, DType dtype, std::int64_t batch,
          std::int64_t max_positions = 0);

  std::int64_t batch() const { return static_cast<std::int64_t>(positions_.size()); }
  std::int64_t max_positions() const { return max_positions_; }
  /// Tokens a row holds. Input errors for a row there is not, here and below.
  std::int64_t position(std::int64_t row) const;
  /// Forgets all but the first `position` tokens of a row; an input error for more than it holds.
  void truncate(std::int64_t row, std::int64_t position);
  /// Makes a row hold what another one does, its logits included.
  void copy_row(Stream& stream, std::int64_t to, std::int64_t from);
  /// (B, Vp), device memory.
  Tensor logits() const { return arena_.tensor(logits_); }
  std::size_t bytes() const { return arena_.bytes(); }

  // For the model that decodes.

  /// Counts tokens of a row as held, after every layer has added them.
  void advance(std::int64_t row, std::int64_t tokens);
  /// One row of a layer. Throws an input error for a layer the model does not have.
  KvCacheLayer layer(std::size_t layer, std::int64_t row) const;
  /// The first `rows` rows of a layer, with the positions that send_positions sent.
  KvCacheLayer first_rows(std::size_t layer, std::int64_t rows) const;
  /// Queues a copy of the first rows' positions to the device.
  void send_positions(Stream& stream, std::int64_t rows);

 private:
  void check_row(std::int64_t row) const;
  void check_layer(std::size_t layer) const;
  std::int64_t max_positions_;
  std::vector<std::int32_t> positions_;
  Arena arena_;
  std::vector<Arena::Id> k_, v_;
  Arena::Id logits_, device_positions_;
};

}  // namespace llmc
