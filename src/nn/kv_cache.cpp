#include "llmc/nn/kv_cache.h"

#include "llmc/core/error.h"

namespace llmc {
namespace {

std::size_t checked_batch(std::int64_t batch) {
  if (batch < 1) fail(ErrorKind::kConfig, "cache", "batch: expected 1 or more, got ", batch);
  return static_cast<std::size_t>(batch);
}

}  // namespace

KvCache::KvCache(const Device& device, const ModelConfig& config, DType dtype, std::int64_t batch,
                 std::int64_t max_positions)
    : max_positions_(max_positions == 0 ? config.block_size : max_positions),
      positions_(checked_batch(batch), 0) {
  if (max_positions_ < 1 || max_positions_ > config.block_size) {
    fail(ErrorKind::kConfig, "cache", "max_positions: expected 1 to the block_size of ",
         config.block_size, ", got ", max_positions_);
  }
  const auto declare = [this](std::string name, DType type, Shape shape) {
    return arena_.declare(MemoryKind::kActivations, std::move(name), type, shape);
  };
  const Shape shape{batch, max_positions_, config.n_kv_head, config.head_dim};
  for (std::int64_t i = 0; i < config.n_layer; ++i) {
    k_.push_back(declare(concat("k_cache.", i), dtype, shape));
    v_.push_back(declare(concat("v_cache.", i), dtype, shape));
  }
  logits_ = declare("next_logits", dtype, {batch, config.padded_vocab_size()});
  device_positions_ = declare("positions", DType::kI32, {batch});
  arena_.allocate(device);
}

void KvCache::check_row(std::int64_t row) const {
  if (row < 0 || row >= batch()) {
    fail(ErrorKind::kInput, "cache", "row: expected 0 to ", batch() - 1, ", got ", row);
  }
}

void KvCache::check_layer(std::size_t layer) const {
  if (layer >= k_.size()) {
    fail(ErrorKind::kInput, "cache", "expected a layer below ", k_.size(), ", got ", layer,
         "; a cache serves only models of its own configuration");
  }
}

std::int64_t KvCache::position(std::int64_t row) const {
  check_row(row);
  return positions_[static_cast<std::size_t>(row)];
}

void KvCache::truncate(std::int64_t row, std::int64_t position) {
  if (position < 0 || position > this->position(row)) {
    fail(ErrorKind::kInput, "cache", "truncate: expected 0 to ", this->position(row), ", got ",
         position);
  }
  positions_[static_cast<std::size_t>(row)] = static_cast<std::int32_t>(position);
}

void KvCache::advance(std::int64_t row, std::int64_t tokens) {
  const std::int64_t left = max_positions_ - position(row);
  if (tokens < 0 || tokens > left) {
    fail(ErrorKind::kInput, "cache", "expected at most ", left, " more tokens, got ", tokens);
  }
  positions_[static_cast<std::size_t>(row)] += static_cast<std::int32_t>(tokens);
}

void KvCache::copy_row(Stream& stream, std::int64_t to, std::int64_t from) {
  const std::int64_t held = position(from);
  check_row(to);
  if (to == from) return;
  for (std::size_t i = 0; i < k_.size(); ++i) {
    for (const Arena::Id id : {k_[i], v_[i]}) {
      const Tensor all = arena_.tensor(id);
      const std::int64_t token = all.dim(2) * all.dim(3);
      const std::int64_t row = max_positions_ * token;
      if (held == 0) continue;
      copy(stream, all.flat(to * row, held * token), all.flat(from * row, held * token));
    }
  }
  copy(stream, logits().rows(to, to + 1), logits().rows(from, from + 1));
  positions_[static_cast<std::size_t>(to)] = static_cast<std::int32_t>(held);
}

KvCacheLayer KvCache::layer(std::size_t layer, std::int64_t row) const {
  check_layer(layer);
  const std::int64_t held = position(row);
  return {arena_.tensor(k_[layer]).rows(row, row + 1), arena_.tensor(v_[layer]).rows(row, row + 1),
          held};
}

KvCacheLayer KvCache::first_rows(std::size_t layer, std::int64_t rows) const {
  check_layer(layer);
  check_row(rows - 1);
  return {arena_.tensor(k_[layer]).rows(0, rows), arena_.tensor(v_[layer]).rows(0, rows), 0,
          arena_.tensor(device_positions_).rows(0, rows)};
}

void KvCache::send_positions(Stream& stream, std::int64_t rows) {
  check_row(rows - 1);
  copy_from_host(stream, arena_.tensor(device_positions_).rows(0, rows), positions_.data());
}

}  // namespace llmc
