#pragma once

#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

#include "llmc/comm/communicator.h"

namespace llmc {

/// What every rank passes, as many values on each, in order of rank. Waits for the stream. All
/// ranks must call it.
template <class T>
std::vector<T> gather_values(Communicator& comm, Stream& stream, std::span<const T> own) {
  static_assert(std::is_trivially_copyable_v<T>);
  const auto bytes = static_cast<std::int64_t>(own.size_bytes());
  const Buffer memory(stream.device(), static_cast<std::size_t>(bytes * comm.size()));
  const Tensor all(memory.data(), DType::kU8, {bytes * comm.size()});
  const Tensor slice = all.flat(comm.rank() * bytes, bytes);
  copy_from_host(stream, slice, own.data());
  comm.all_gather(stream, all, slice);
  std::vector<T> values(own.size() * static_cast<std::size_t>(comm.size()));
  copy_to_host(stream, values.data(), all);
  return values;
}

}  // namespace llmc
