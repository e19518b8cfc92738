#include "llmc/nn/kv_cache.h"

#include "llmc/core/error.h"

namespace llmc {

KvCache::KvCache(const Device& device, const ModelConfig& config, DType dtype, std::int64_t batch,
                 std::int64_t max_positions)
    : batch_(batch), max_positions_(max_positions == 0 ? config.block_size : max_positions) {
  if (batch < 1) fail(ErrorKind::kConfig, "cache", "batch: expected 1 or more, got ", batch);
  if (max_positions_ < 1 || max_positions_ > config.block_size) {
    fail(ErrorKind::kConfig, "cache", "max_positions: expected 1 to the block_size of ",
         config.block_size, ", got ", max_positions_);
  }
  const Shape shape{batch_, max_positions_, config.n_kv_head, config.head_dim};
  for (std::int64_t i = 0; i < config.n_layer; ++i) {
    k_.push_back(arena_.declare(MemoryKind::kActivations, concat("k_cache.", i), dtype, shape));
    v_.push_back(arena_.declare(MemoryKind::kActivations, concat("v_cache.", i), dtype, shape));
  }
  arena_.allocate(device);
}

void KvCache::truncate(std::int64_t position) {
  if (position < 0 || position > position_) {
    fail(ErrorKind::kInput, "cache", "truncate: expected 0 to ", position_, ", got ", position);
  }
  position_ = position;
}

void KvCache::advance(std::int64_t tokens) {
  if (tokens < 0 || tokens > max_positions_ - position_) {
    fail(ErrorKind::kInput, "cache", "expected at most ", max_positions_ - position_,
         " more tokens, got ", tokens);
  }
  position_ += tokens;
}

KvCacheLayer KvCache::layer(std::size_t layer) const {
  if (layer >= k_.size()) {
    fail(ErrorKind::kInput, "cache", "expected a layer below ", k_.size(), ", got ", layer,
         "; a cache serves only models of its own configuration");
  }
  return {arena_.tensor(k_[layer]), arena_.tensor(v_[layer]), position_};
}

}  // namespace llmc
