#include "train/ranks.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <random>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "comm/gather.h"
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

// A file that one rank writes for others to read, for as long as this lives.
class Marker {
 public:
  Marker(std::filesystem::path file, bool writes) : file_(std::move(file)), writes_(writes) {
    if (!writes_) return;
    std::random_device draw;
    word_ = concat(draw(), '-', draw());
    write_text(file_, word_);
  }
  ~Marker() {
    std::error_code ignored;
    if (writes_) std::filesystem::remove(file_, ignored);
  }
  Marker(const Marker&) = delete;
  Marker& operator=(const Marker&) = delete;

  const std::string& word() const { return word_; }
  bool reads(const std::string& word) const {
    try {
      return read_text(file_) == word;
    } catch (const Error&) {  // not there, or not yet
      return false;
    }
  }

 private:
  std::filesystem::path file_;
  bool writes_;
  std::string word_;
};

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

std::optional<int> rank_without_folder(Communicator& comm, Stream& stream,
                                       const std::filesystem::path& folder, double patience_s) {
  using Clock = std::chrono::steady_clock;
  const Marker marker(folder / ".seen-by-all-ranks", comm.rank() == 0);
  const std::string word = text_of_rank_0(comm, stream, marker.word());
  const auto deadline = Clock::now() + std::chrono::duration<double>(patience_s);
  bool sees_it = marker.reads(word);
  while (!sees_it && Clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    sees_it = marker.reads(word);
  }
  const std::uint64_t own = sees_it ? 1 : 0;
  const auto all = gather_values<std::uint64_t>(comm, stream, std::span(&own, 1));
  const auto blind = std::find(all.begin(), all.end(), 0);
  if (blind == all.end()) return std::nullopt;
  return static_cast<int>(blind - all.begin());
}

void PlannedRanks::refuse() {
  fail(ErrorKind::kConfig, "run", "expected no exchange between ranks that are only planned");
}

}  // namespace llmc
