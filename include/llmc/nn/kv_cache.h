#pragma once

#include <cstdint>
#include <vector>

#include "llmc/core/arena.h"
#include "llmc/core/device.h"
#include "llmc/nn/block.h"
#include "llmc/nn/model_config.h"

namespace llmc {

/// Keys and values of the tokens a model has decoded so far: B rows that grow together. Move-only.
class KvCache {
 public:
  /// Allocates for `max_positions` tokens (0: block_size) of `batch` rows in the model's dtype.
  /// Throws a config error for more positions than the model has.
  KvCache(const Device& device, const ModelConfig& config, DType dtype, std::int64_t batch,
          std::int64_t max_positions = 0);

  std::int64_t batch() const { return batch_; }
  std::int64_t max_positions() const { return max_positions_; }
  /// Tokens held, of every row.
  std::int64_t position() const { return position_; }
  /// Forgets all but the first `position` tokens; throws an input error for more than it holds.
  void truncate(std::int64_t position);
  /// Counts tokens as held, after every layer has added them.
  void advance(std::int64_t tokens);
  /// Throws an input error for a layer the model does not have.
  KvCacheLayer layer(std::size_t layer) const;
  std::size_t bytes() const { return arena_.bytes(); }

 private:
  std::int64_t batch_;
  std::int64_t max_positions_;
  std::int64_t position_ = 0;
  Arena arena_;
  std::vector<Arena::Id> k_, v_;
};

}  // namespace llmc
