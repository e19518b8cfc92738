#include "llmc/comm/agreement.h"

#include <cstdint>
#include <vector>

#include "llmc/core/checksum.h"
#include "llmc/core/error.h"

namespace llmc {
namespace {

std::uint64_t hash_of(const std::string& text) {
  return checksum64(text.data(), text.size());
}

}  // namespace

void expect_agreement(Communicator& comm, Stream& stream, std::span<const Belief> beliefs) {
  std::vector<std::uint64_t> own;
  for (const Belief& belief : beliefs) own.push_back(hash_of(belief.value));
  const auto bytes = static_cast<std::int64_t>(own.size() * sizeof own[0]);
  const Buffer memory(stream.device(), static_cast<std::size_t>(bytes * comm.size()));
  const Tensor all(memory.data(), DType::kU8, {bytes * comm.size()});
  const Tensor slice = all.flat(comm.rank() * bytes, bytes);
  copy_from_host(stream, slice, own.data());
  comm.all_gather(stream, all, slice);
  std::vector<std::uint64_t> hashes(own.size() * static_cast<std::size_t>(comm.size()));
  copy_to_host(stream, hashes.data(), all);
  for (std::size_t i = own.size(); i < hashes.size(); ++i) {
    const std::size_t which = i % own.size();
    if (hashes[i] == hashes[which]) continue;
    const auto rank = static_cast<int>(i / own.size());
    const bool known = comm.rank() == 0 || comm.rank() == rank;
    fail(ErrorKind::kConfig, "comm", beliefs[which].name,
         ": expected the same on all ranks, got another value on rank ", rank, " than on rank 0",
         known ? concat("; on rank ", comm.rank(), " it is '", beliefs[which].value, "'") : "",
         "; start all with the same options and files");
  }
}

}  // namespace llmc
