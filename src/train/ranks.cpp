#include "train/ranks.h"

#include "llmc/core/error.h"

namespace llmc {

std::string text_of_rank_0(Communicator& comm, Stream& stream, const std::string& text) {
  auto size = static_cast<std::uint64_t>(text.size());
  const auto share = [&](void* bytes, std::size_t count) {
    const Buffer memory(stream.device(), count);
    const Tensor tensor(memory.data(), DType::kU8, {static_cast<std::int64_t>(count)});
    copy_from_host(stream, tensor, bytes);
    comm.broadcast(stream, tensor, 0);
    copy_to_host(stream, bytes, tensor);
  };
  share(&size, sizeof size);
  std::string shared = comm.rank() == 0 ? text : std::string(size, '\0');
  if (size > 0) share(shared.data(), size);
  return shared;
}

void PlannedRanks::refuse() {
  fail(ErrorKind::kConfig, "run", "expected no exchange between ranks that are only planned");
}

}  // namespace llmc
