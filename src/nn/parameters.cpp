#include "llmc/nn/parameters.h"

#include <algorithm>
#include <cstddef>
#include <thread>
#include <utility>

#include "llmc/core/checksum.h"
#include "llmc/core/error.h"
#include "llmc/core/rng.h"
#include "llmc/ops/step.h"

namespace llmc {
namespace {

constexpr std::int64_t kParameterAlignment = 64;  // elements

std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace

ParameterSet::ParameterSet(DType dtype, bool gradients, int ranks)
    : dtype_(dtype), gradients_(gradients), ranks_(ranks) {
  if (dtype != DType::kF32 && dtype != DType::kBF16) {
    fail(ErrorKind::kConfig, "parameters", "dtype: expected f32 or bf16, got ", name_of(dtype));
  }
  if (ranks < 1) fail(ErrorKind::kConfig, "parameters", "ranks: expected 1 or more, got ", ranks);
}

std::size_t ParameterSet::begin_bucket(std::string name, std::int64_t layer) {
  if (planned_) {
    fail(ErrorKind::kMemory, "parameters", "expected buckets before the plan, got ", name,
         " after it");
  }
  buckets_.push_back({std::move(name), layer, 0, 0});
  return buckets_.size() - 1;
}

ParameterSet::Id ParameterSet::declare(std::string name, Shape shape, Initialiser init,
                                       OptimizerGroup group) {
  if (planned_) {
    fail(ErrorKind::kMemory, "parameters", "expected parameters before the plan, got ", name,
         " after it");
  }
  if (buckets_.empty()) {
    fail(ErrorKind::kConfig, "parameters", "expected a bucket before ", name,
         ", got none; call begin_bucket first");
  }
  for (const Parameter& known : table_) {
    if (known.name != name) continue;
    fail(ErrorKind::kConfig, "parameters", "expected each name once, got ", name, " again");
  }
  Bucket& bucket = buckets_.back();
  table_.push_back(
      {std::move(name), shape, init, group, bucket.layer, buckets_.size() - 1, bucket.size});
  bucket.size += round_up(shape.numel(), kParameterAlignment);
  return table_.size() - 1;
}

void ParameterSet::plan(Arena& arena) {
  if (planned_) fail(ErrorKind::kMemory, "parameters", "expected one plan, got a second");
  planned_ = true;
  std::int64_t first_index = 0;
  for (Bucket& bucket : buckets_) {
    bucket.first_index = first_index;
    first_index += round_up(bucket.size, kNormBlock);
    bucket.size = round_up(bucket.size, kNormBlock * ranks_);
    const Shape shape{bucket.size};
    value_segments_.push_back(arena.declare(MemoryKind::kParameters, bucket.name, dtype_, shape));
    if (!gradients_) continue;
    grad_segments_.push_back(
        arena.declare(MemoryKind::kGradients, bucket.name, DType::kF32, shape));
  }
}

void ParameterSet::bind(const Arena& arena) {
  const auto take = [&](const std::vector<Arena::Id>& segments, std::vector<Tensor>& buckets,
                        std::vector<Tensor>& views) {
    buckets.clear();
    views.clear();
    for (const Arena::Id segment : segments) buckets.push_back(arena.tensor(segment));
    buckets.resize(buckets_.size());
    for (const Parameter& p : table_) {
      const Tensor& bucket = buckets[p.bucket];
      views.push_back(bucket ? bucket.flat(p.offset, p.shape.numel()).view(p.shape) : Tensor());
    }
  };
  take(value_segments_, bucket_values_, values_);
  take(grad_segments_, bucket_grads_, grads_);
}

ParameterSet::Id ParameterSet::find(std::string_view name) const {
  const auto row = std::find_if(table_.begin(), table_.end(),
                                [&](const Parameter& p) { return p.name == name; });
  if (row == table_.end()) {
    fail(ErrorKind::kInput, "parameters", "expected the name of a parameter, got \"", name, "\"");
  }
  return static_cast<Id>(row - table_.begin());
}

std::int64_t ParameterSet::numel() const {
  std::int64_t sum = 0;
  for (const Parameter& p : table_) sum += p.shape.numel();
  return sum;
}

namespace {

// Elements drawn at a time; a multiple of the 16 that the stream is made of.
constexpr std::int64_t kDrawChunk = std::int64_t{1} << 20;

/// Writes the same value everywhere.
void fill(Stream& stream, const Tensor& tensor, float value) {
  const auto count = static_cast<std::size_t>(std::min(tensor.numel(), kDrawChunk));
  const std::vector<float> f32(count, value);
  const std::vector<bf16> low(count, to_bf16(value));
  for (std::int64_t begin = 0; begin < tensor.numel(); begin += kDrawChunk) {
    const Tensor part = tensor.flat(begin, std::min(kDrawChunk, tensor.numel() - begin));
    if (tensor.dtype() == DType::kF32) {
      copy_from_host(stream, part, f32.data());
    } else {
      copy_from_host(stream, part, low.data());
    }
  }
}

/// Host threads to draw with: those that compute, or all where a GPU does.
int drawing_threads(const Device& device) {
  return backend_name() == "cpu" ? device.threads()
                                 : static_cast<int>(std::thread::hardware_concurrency());
}

/// Draws the first `count` elements. Chunks give the stream of one draw of everything as long as
/// all but the last are multiples of 16 and the last is no shorter than 16.
void draw(Stream& stream, const Tensor& tensor, std::int64_t count, float stddev, Mt19937& rng) {
  std::vector<float> f32(static_cast<std::size_t>(std::min(count, 2 * kDrawChunk)));
  std::vector<bf16> low(tensor.dtype() == DType::kBF16 ? f32.size() : 0);
  for (std::int64_t begin = 0; begin < count;) {
    const std::int64_t left = count - begin;
    const std::int64_t size = left < 2 * kDrawChunk ? left : kDrawChunk;
    const std::span<float> chunk(f32.data(), static_cast<std::size_t>(size));
    rng.fill_normal(chunk, 0.0f, stddev, drawing_threads(stream.device()));
    const Tensor part = tensor.flat(begin, size);
    if (low.empty()) {
      copy_from_host(stream, part, chunk.data());
    } else {
      std::transform(chunk.begin(), chunk.end(), low.begin(), to_bf16);
      copy_from_host(stream, part, low.data());
    }
    begin += size;
  }
}

}  // namespace

void initialise(Stream& stream, const ParameterSet& parameters, std::uint32_t seed) {
  Mt19937 rng(seed);
  for (ParameterSet::Id id = 0; id < parameters.table().size(); ++id) {
    const Parameter& p = parameters.table()[id];
    const Tensor value = parameters.value(id);
    switch (p.init.kind) {
      case Initialiser::Kind::kZeros:
        zero(stream, value);
        break;
      case Initialiser::Kind::kOnes:
        fill(stream, value, 1.0f);
        break;
      case Initialiser::Kind::kNormal: {
        const std::int64_t rows = p.init.rows > 0 ? p.init.rows : p.shape.dim(0);
        const std::int64_t drawn = p.shape.numel() / p.shape.dim(0) * rows;
        zero(stream, value);
        draw(stream, value, drawn, p.init.stddev, rng);
        break;
      }
    }
  }
}

std::uint64_t checksum_of(Stream& stream, const ParameterSet& parameters) {
  constexpr std::int64_t kPiece = std::int64_t{1} << 22;  // elements
  std::vector<std::byte> host;
  Checksum64 checksum;
  for (ParameterSet::Id id = 0; id < parameters.table().size(); ++id) {
    const Tensor value = parameters.value(id);
    for (std::int64_t begin = 0; begin < value.numel(); begin += kPiece) {
      const Tensor piece = value.flat(begin, std::min(kPiece, value.numel() - begin));
      host.resize(std::max(host.size(), piece.bytes()));
      copy_to_host(stream, host.data(), piece);
      checksum.update(host.data(), piece.bytes());
    }
  }
  return checksum.value();
}

}  // namespace llmc
