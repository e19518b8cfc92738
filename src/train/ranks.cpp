#include "train/ranks.h"

#include <cstddef>
#include <vector>

#include "llmc/core/error.h"
#include "llmc/ops/linear.h"

namespace llmc {
namespace {

void try_step(Transformer& model, std::int64_t B, std::int64_t T, std::int64_t micro_steps) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(B * T));
  constexpr std::size_t kStride = 7919;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    ids[i] = static_cast<std::int32_t>(i * kStride %
                                       static_cast<std::size_t>(model.config().vocab_size));
  }
  const int tried = micro_steps > 1 ? 2 : 1;  // the first overwrites gradients, others add
  model.begin_step(
      {.lr = 0, .seed = 0, .step = 0, .nominal_tokens = static_cast<double>(ids.size())}, tried);
  for (int i = 0; i < tried; ++i) {
    model.forward(ids, ids, B, T);
    model.backward();
  }
}

}  // namespace

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

void share_products(Communicator& comm, Transformer& model, std::int64_t B, std::int64_t T,
                    std::int64_t micro_steps) {
  Stream& stream = model.stream();
  if (comm.size() == 1 || !stream.device().tunes_matmul()) return;
  if (comm.rank() == 0) try_step(model, B, T, micro_steps);
  set_matmul_choices(stream, text_of_rank_0(comm, stream, matmul_choices(stream)));
}

void PlannedRanks::refuse() {
  fail(ErrorKind::kConfig, "run", "expected no exchange between ranks that are only planned");
}

}  // namespace llmc
