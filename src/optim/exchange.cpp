#include "optim/exchange.h"

#include <algorithm>

#include "llmc/core/error.h"
#include "llmc/ops/activation.h"

namespace llmc {
std::int64_t norm_blocks(const ParameterSet& parameters, std::size_t bucket) {
  std::int64_t end = 0;
  for (const Parameter& p : parameters.table()) {
    if (p.bucket == bucket) end = std::max(end, p.offset + p.shape.numel());
  }
  return (end + kNormBlock - 1) / kNormBlock;
}

Exchange::Exchange(const ParameterSet& parameters, const Sharing& sharing, Arena& arena)
    : parameters_(&parameters), sharing_(sharing) {
  std::int64_t own = 0, used = 0, largest = 0;
  for (std::size_t b = 0; b < parameters.buckets().size(); ++b) {
    first_partial_.push_back(own);
    own += blocks(b);
    used += norm_blocks(parameters, b);
    largest = std::max(largest, parameters.buckets()[b].size);
  }
  record_bytes_ = step_record_bytes(own);
  const auto kind = MemoryKind::kOptimizer;
  records_id_ =
      arena.declare(kind, "ranks.records", DType::kU8, {sharing.comm->size(), record_bytes_});
  order_id_ = arena.declare(kind, "ranks.order", DType::kI32, {used});
  if (sharing.wire == DType::kBF16) {
    wire_id_ = arena.declare(kind, "ranks.wire", DType::kBF16, {largest});
  }
}

void Exchange::open(const Device& device, const Arena& arena) {
  const std::size_t buckets = parameters_->buckets().size();
  stream_.emplace(Stream::beside(device));
  mark_.emplace(device);
  for (std::size_t b = 0; b < buckets; ++b) arrived_.emplace_back(device);
  summed_.assign(buckets, false);
  coming_.assign(buckets, false);
  records_ = arena.tensor(records_id_);
  record_ = records_.flat(sharing_.comm->rank() * record_bytes_, record_bytes_);
  const std::int64_t partials = first_partial_.back() + blocks(buckets - 1);
  own_partials_ = {
      static_cast<std::byte*>(record_.raw()) + sizeof(StepBlock), DType::kF32, {partials}};
  order_ = arena.tensor(order_id_);
  if (sharing_.wire == DType::kBF16) wire_ = arena.tensor(wire_id_);
  make_order(order_);
}

/// Where the partial of each block of the table stands in the records.
void Exchange::make_order(const Tensor& order) {
  constexpr std::int64_t kFloat = sizeof(float);
  std::vector<std::int32_t> places;
  for (std::size_t b = 0; b < parameters_->buckets().size(); ++b) {
    const std::int64_t used = norm_blocks(*parameters_, b);
    for (std::int64_t i = 0; i < used; ++i) {
      const std::int64_t rank = i / blocks(b);
      const std::int64_t in_record =
          std::int64_t{sizeof(StepBlock)} / kFloat + first_partial_[b] + i % blocks(b);
      places.push_back(static_cast<std::int32_t>(rank * record_bytes_ / kFloat + in_record));
    }
  }
  copy_from_host(*stream_, order, places.data());
}

std::int64_t Exchange::slice_size(std::size_t bucket) const {
  return parameters_->buckets()[bucket].size / sharing_.comm->size();
}

std::int64_t Exchange::slice_begin(std::size_t bucket) const {
  return slice_size(bucket) * sharing_.comm->rank();
}

void Exchange::hold_exchange(Stream& compute) {
  mark_->record(compute);
  mark_->hold(*stream_);
}

void Exchange::hold_compute(Stream& compute) {
  mark_->record(*stream_);
  mark_->hold(compute);
}

// On the CPU the exchange is the calling thread's work, which is a wait, too.
template <class Wait>
void Exchange::marked(Stream& compute, const Wait& wait) {
  if (mark_wait_) mark_wait_(compute);
  wait();
  if (mark_wait_) mark_wait_(compute);
}

void Exchange::bucket_ready(Stream& compute, std::size_t bucket) {
  marked(compute, [&] {
    hold_exchange(compute);
    sum_gradients(bucket);
  });
  summed_[bucket] = true;
}

void Exchange::sum_gradients(std::size_t bucket) {
  Stream& stream = *stream_;
  Communicator& comm = *sharing_.comm;
  const Tensor all = parameters_->bucket_gradients(bucket);
  const Tensor own = all.flat(slice_begin(bucket), slice_size(bucket));
  const bool rounded = !wire_.empty();
  const Tensor sent = rounded ? wire_.flat(0, all.numel()) : all;
  const Tensor sum = sent.flat(slice_begin(bucket), slice_size(bucket));
  if (rounded) convert(stream, sent, all);
  comm.reduce_scatter(stream, sum, sent);
  if (sharing_.zero_stage == 0) comm.all_gather(stream, sent, sum);
  if (rounded && sharing_.zero_stage == 0) convert(stream, all, sent);
  if (rounded && sharing_.zero_stage == 1) convert(stream, own, sum);
  sum_of_squares(stream, own_partials_.flat(first_partial_[bucket], blocks(bucket)), own);
}

void Exchange::sum_up(Stream& compute, StepBlock* block, const Tensor& partials) {
  marked(compute, [&] {
    hold_exchange(compute);
    for (std::size_t b = summed_.size(); b-- > 0;) {
      if (!summed_[b]) sum_gradients(b);
      summed_[b] = false;
    }
    const Shape block_bytes{static_cast<std::int64_t>(sizeof(StepBlock))};
    copy(*stream_, record_.flat(0, block_bytes.numel()), Tensor(block, DType::kU8, block_bytes));
    sharing_.comm->all_gather(*stream_, records_, record_);
    hold_compute(compute);
  });
  combine_ranks(compute, block, partials, records_, order_);
}

void Exchange::send_parameters(Stream& compute, std::size_t bucket) {
  marked(compute, [&] {
    hold_exchange(compute);
    const Tensor all = parameters_->bucket_values(bucket);
    sharing_.comm->all_gather(*stream_, all, all.flat(slice_begin(bucket), slice_size(bucket)));
    arrived_[bucket].record(*stream_);
    coming_[bucket] = true;
    if (!attached_) await(compute, bucket);
  });
}

void Exchange::await(Stream& compute, std::size_t bucket) {
  arrived_[bucket].hold(compute);
  coming_[bucket] = false;
}

void Exchange::bucket_needed(Stream& compute, std::size_t bucket) {
  if (coming_[bucket]) marked(compute, [&] { await(compute, bucket); });
}

void Exchange::all_needed(Stream& compute) {
  for (std::size_t b = 0; b < coming_.size(); ++b) bucket_needed(compute, b);
}

}  // namespace llmc
