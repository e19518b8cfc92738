#include "train/ranks.h"

#include <chrono>
#include <cstddef>
#include <random>
#include <system_error>
#include <thread>
#include <vector>

#include "llmc/core/error.h"
#include "llmc/core/file.h"
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

void expect_shared_folder(Communicator& comm, Stream& stream, const std::filesystem::path& folder,
                          double patience_s) {
  using Clock = std::chrono::steady_clock;
  const std::filesystem::path file = folder / ".seen-by-all-ranks";
  std::string word;
  if (comm.rank() == 0) {
    std::random_device draw;
    word = concat(draw(), '-', draw());
    write_text(file, word);
  }
  word = text_of_rank_0(comm, stream, word);
  const auto sees_it = [&] {
    try {
      return read_text(file) == word;
    } catch (const Error&) {  // not there, or not yet
      return false;
    }
  };
  const auto deadline = Clock::now() + std::chrono::duration<double>(patience_s);
  while (!sees_it()) {
    if (Clock::now() > deadline) {
      fail(ErrorKind::kConfig, "run", "out_dir: expected a folder that all ranks see, got ",
           folder.string(), ", which on rank ", comm.rank(),
           " is not the one of rank 0; give one on a file system that all machines share");
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  comm.barrier(stream);
  std::error_code ignored;
  if (comm.rank() == 0) std::filesystem::remove(file, ignored);
}

void PlannedRanks::refuse() {
  fail(ErrorKind::kConfig, "run", "expected no exchange between ranks that are only planned");
}

}  // namespace llmc
