#include "llmc/comm/agreement.h"

#include <cstdint>
#include <vector>

#include "comm/gather.h"
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
  const auto hashes = gather_values<std::uint64_t>(comm, stream, own);
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
