#include <atomic>
#include <chrono>
#include <cmath>
#include <exception>
#include <future>
#include <new>
#include <thread>
#include <utility>

#include "io/checkpoint_folder.h"
#include "io/manifest.h"
#include "llmc/core/checksum.h"
#include "llmc/core/error.h"
#include "llmc/core/file.h"
#include "llmc/core/log.h"
#include "llmc/io/checkpoint.h"
#include "llmc/io/safetensors.h"

namespace llmc {
namespace {

namespace fs = std::filesystem;

/// How long rank 0 waits for what the others write, and how long once it is to be destroyed.
constexpr auto kPatience = std::chrono::minutes(10);
constexpr auto kPatienceAtEnd = std::chrono::seconds(5);
constexpr auto kLookAgain = std::chrono::milliseconds(20);

/// All or some elements of a tensor of the model or optimizer, and where their copy lies in the
/// snapshot.
struct Part {
  std::string name;
  Shape shape;         ///< of the whole tensor
  std::int64_t begin;  ///< first element
  Tensor tensor;
  std::size_t offset;
};

/// What a rank has written besides rank 0's is told in files of these names.
fs::path description_of(const fs::path& folder, int rank) {
  return folder / concat(".rank_", rank, ".json");
}
fs::path failure_of(const fs::path& folder, int rank) {
  return folder / concat(".rank_", rank, ".failed");
}

/// "optimizer_0003.safetensors".
std::string state_file_of_rank(int rank) {
  constexpr std::size_t kDigits = 4;
  std::string digits = std::to_string(rank);
  if (digits.size() < kDigits) digits.insert(0, kDigits - digits.size(), '0');
  return concat("optimizer_", digits, ".safetensors");
}

}  // namespace

struct CheckpointWriter::Impl {
  fs::path run;
  Options options;
  const ParameterSet* parameters;
  const Optimizer* optimizer;
  std::vector<Part> weights;
  std::vector<Part> state;
  std::size_t snapshot_bytes = 0;
  std::unique_ptr<std::byte[]> snapshot;
  std::future<void> writing;
  std::atomic<bool> ending{false};

  ~Impl() {
    ending = true;
    try {
      wait();
    } catch (const Error& error) {
      log(LogLevel::kError, error.what());
    }
  }

  const Sharing& sharing() const { return optimizer->sharing(); }
  bool writes() const { return sharing().rank() == 0 || sharing().sliced(); }

  void wait() {
    if (!writing.valid()) return;
    try {
      writing.get();
    } catch (const Error&) {
      throw;
    } catch (const std::exception& error) {
      fail(ErrorKind::kIo, "checkpoint", "cannot write to ", run.string(), ": ", error.what());
    }
  }

  void plan() {
    if (sharing().rank() == 0) {
      for (ParameterSet::Id id = 0; id < parameters->table().size(); ++id) {
        const Tensor value = parameters->value(id);
        add(weights, {parameters->table()[id].name, value.shape(), 0, value, 0});
      }
    }
    if (!writes()) return;
    optimizer->visit_state([this](const StatePiece& piece) {
      add(state, {piece.name, piece.shape, piece.begin, piece.tensor, 0});
    });
  }

  void add(std::vector<Part>& parts, Part part) {
    constexpr std::size_t kAlignment = 64;
    part.offset = snapshot_bytes;
    snapshot_bytes += (part.tensor.bytes() + kAlignment - 1) / kAlignment * kAlignment;
    parts.push_back(std::move(part));
  }

  void take_snapshot(Stream& stream) {
    optimizer->need_parameters(stream);
    for (const std::vector<Part>* parts : {&weights, &state}) {
      for (const Part& part : *parts) {
        copy_to_host(stream, snapshot.get() + part.offset, part.tensor);
      }
    }
  }

  /// Writes one file of parts and describes it and them in the manifest.
  void write_parts(const fs::path& folder, std::string_view file_name,
                   const std::vector<Part>& parts, const CheckpointInfo& info,
                   std::map<std::string, ManifestFile>& files,
                   std::map<std::string, ManifestTensor>& tensors) const {
    std::vector<SafetensorsSpec> specs;
    for (const Part& part : parts) {
      specs.push_back({part.name, part.tensor.dtype(), part.tensor.shape()});
    }
    const std::string name(file_name);
    SafetensorsWriter file(folder / name, specs, {{"step", std::to_string(info.step)}});
    for (const Part& part : parts) {
      const std::byte* data = snapshot.get() + part.offset;
      file.write(part.name, data, part.tensor.bytes());
      tensors[part.name] = {part.tensor.dtype(),
                            part.shape,
                            {{name, part.begin, part.begin + part.tensor.numel(),
                              checksum64(data, part.tensor.bytes())}}};
    }
    file.commit();
    files[name] = {file.file_bytes(), file.header_checksum()};
  }

  void write_state(const fs::path& folder, const CheckpointInfo& info, Manifest& manifest) const {
    const std::string name =
        sharing().sliced() ? state_file_of_rank(sharing().rank()) : std::string(kStateFile);
    write_parts(folder, name, state, info, manifest.files, manifest.state);
  }

  /// Makes the folder that all ranks write into.
  void make_unfinished(const CheckpointInfo& info) const {
    make_folders(checkpoints_folder(run));
    sync_folder(run);
    remove_leftovers(run);
    make_folders(unfinished_folder(run, info.step));
  }

  /// Runs in the writer's thread, as all below: reads the snapshot, never the model.
  void write(const CheckpointInfo& info) const {
    if (!sharing().sliced()) make_unfinished(info);
    const fs::path folder = unfinished_folder(run, info.step);
    try {
      Manifest manifest;
      manifest.info = info;
      write_parts(folder, kWeightsFile, weights, info, manifest.files, manifest.weights);
      write_state(folder, info, manifest);
      if (sharing().sliced()) take_parts_of_others(folder, manifest);
      write_text(folder / kManifestName, to_json(manifest));
      publish_checkpoint(run, info.step);
    } catch (...) {
      std::error_code ignored;
      fs::remove_all(folder, ignored);
      throw;
    }
    if (info.val_loss) update_best(run, info.step, *info.val_loss);
    prune_checkpoints(run, options.keep, info.step);
  }

  /// The same on ranks other than 0.
  void write_own_part(const CheckpointInfo& info) const {
    const fs::path folder = unfinished_folder(run, info.step);
    const int rank = sharing().rank();
    try {
      if (!fs::is_directory(folder)) {
        fail(ErrorKind::kIo, "checkpoint", "expected ", folder.string(),
             ", which rank 0 has made, got none; all ranks must see one file system");
      }
      Manifest part;
      write_state(folder, info, part);
      write_text(description_of(folder, rank), part_to_json(part));
    } catch (const std::exception& error) {
      tell_failure(folder, rank, error.what());
      throw;
    }
  }

  /// So that rank 0 need not wait in vain.
  static void tell_failure(const fs::path& folder, int rank, std::string_view what) noexcept {
    try {
      write_text(failure_of(folder, rank), what);
    } catch (const std::exception&) {
    }
  }

  void take_parts_of_others(const fs::path& folder, Manifest& manifest) const {
    const auto began = std::chrono::steady_clock::now();
    for (int rank = 1; rank < sharing().ranks(); ++rank) {
      const fs::path description = description_of(folder, rank);
      while (!fs::exists(description)) {
        const fs::path failure = failure_of(folder, rank);
        if (fs::exists(failure)) {
          fail(ErrorKind::kIo, "checkpoint", "rank ", rank, " cannot write: ", read_text(failure));
        }
        sharing().comm->check();
        const auto waited = std::chrono::steady_clock::now() - began;
        if (waited > kPatience || (ending && waited > kPatienceAtEnd)) {
          fail(ErrorKind::kIo, "checkpoint", folder.string(), ": expected the part of rank ", rank,
               ", got none");
        }
        std::this_thread::sleep_for(kLookAgain);
      }
      add_part(manifest, read_text(description), description);
      fs::remove(description);
    }
    check_state_whole(manifest, folder);
  }
};

CheckpointWriter::CheckpointWriter(fs::path run, const ParameterSet& parameters,
                                   const Optimizer& optimizer, const Options& options)
    : impl_(std::make_unique<Impl>()) {
  if (options.keep < 0) {
    fail(ErrorKind::kConfig, "checkpoint", "keep_checkpoints: expected at least 0, got ",
         options.keep);
  }
  impl_->run = std::move(run);
  impl_->options = options;
  impl_->parameters = &parameters;
  impl_->optimizer = &optimizer;
  impl_->plan();
}

CheckpointWriter::~CheckpointWriter() = default;
CheckpointWriter::CheckpointWriter(CheckpointWriter&&) noexcept = default;
CheckpointWriter& CheckpointWriter::operator=(CheckpointWriter&&) noexcept = default;

std::size_t CheckpointWriter::snapshot_bytes() const {
  return impl_->snapshot_bytes;
}

void CheckpointWriter::allocate() {
  if (impl_->snapshot) return;
  impl_->snapshot.reset(new (std::nothrow) std::byte[impl_->snapshot_bytes]());
  if (!impl_->snapshot) {
    fail(ErrorKind::kMemory, "checkpoint", "cannot have ", format_bytes(impl_->snapshot_bytes),
         " of host memory for the copy of the training state");
  }
}

void CheckpointWriter::save(Stream& stream, CheckpointInfo info) {
  impl_->wait();
  if (info.step < 0)
    fail(ErrorKind::kInput, "checkpoint", "step: expected at least 0, got ", info.step);
  allocate();
  info.guard = impl_->optimizer->read_guard(stream);
  info.optimizer = impl_->optimizer->name();
  if (info.val_loss && !std::isfinite(*info.val_loss)) info.val_loss.reset();
  info.world_size = impl_->sharing().ranks();
  impl_->take_snapshot(stream);
  stream.synchronize();
  const bool first = impl_->sharing().rank() == 0;
  if (impl_->sharing().sliced()) {
    if (first) impl_->make_unfinished(info);
    impl_->sharing().comm->barrier(stream);
  }
  if (!impl_->writes()) return;
  impl_->writing = std::async(std::launch::async, [impl = impl_.get(), first, info] {
    first ? impl->write(info) : impl->write_own_part(info);
  });
}

void CheckpointWriter::check() {
  constexpr auto kNow = std::chrono::seconds(0);
  if (impl_->writing.valid() && impl_->writing.wait_for(kNow) == std::future_status::ready) {
    impl_->wait();
  }
}

void CheckpointWriter::wait() {
  impl_->wait();
}

}  // namespace llmc
