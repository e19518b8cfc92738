#include <chrono>
#include <cmath>
#include <exception>
#include <future>
#include <new>
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

/// A tensor of the model or optimizer and where its copy lies in the snapshot.
struct Part {
  std::string name;
  Tensor tensor;
  std::size_t offset;
};

}  // namespace

struct CheckpointWriter::Impl {
  std::filesystem::path run;
  Options options;
  const ParameterSet* parameters;
  const Optimizer* optimizer;
  std::vector<Part> weights;
  std::vector<Part> state;
  std::size_t snapshot_bytes = 0;
  std::unique_ptr<std::byte[]> snapshot;
  std::future<void> writing;

  ~Impl() {
    try {
      wait();
    } catch (const Error& error) {
      log(LogLevel::kError, error.what());
    }
  }

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

  void add(std::vector<Part>& parts, const std::string& name, const Tensor& tensor) {
    constexpr std::size_t kAlignment = 64;
    parts.push_back({name, tensor, snapshot_bytes});
    snapshot_bytes += (tensor.bytes() + kAlignment - 1) / kAlignment * kAlignment;
  }

  void take_snapshot(Stream& stream) {
    for (const std::vector<Part>* parts : {&weights, &state}) {
      for (const Part& part : *parts) {
        copy_to_host(stream, snapshot.get() + part.offset, part.tensor);
      }
    }
  }

  /// Writes one file of parts and describes it and them in the manifest.
  void write_parts(const std::filesystem::path& folder, std::string_view file_name,
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
      tensors[part.name] = {
          part.tensor.dtype(),
          part.tensor.shape(),
          {{name, 0, part.tensor.numel(), checksum64(data, part.tensor.bytes())}}};
    }
    file.commit();
    files[name] = {file.file_bytes(), file.header_checksum()};
  }

  /// Runs in the writer's thread: reads the snapshot, never the model.
  void write(const CheckpointInfo& info) const {
    make_folders(checkpoints_folder(run));
    sync_folder(run);
    remove_leftovers(run);
    const std::filesystem::path folder = unfinished_folder(run, info.step);
    try {
      make_folders(folder);
      Manifest manifest;
      manifest.info = info;
      write_parts(folder, kWeightsFile, weights, info, manifest.files, manifest.weights);
      write_parts(folder, kStateFile, state, info, manifest.files, manifest.state);
      write_text(folder / kManifestName, to_json(manifest));
      publish_checkpoint(run, info.step);
    } catch (...) {
      std::error_code ignored;
      std::filesystem::remove_all(folder, ignored);
      throw;
    }
    if (info.val_loss) update_best(run, info.step, *info.val_loss);
    prune_checkpoints(run, options.keep, info.step);
  }
};

CheckpointWriter::CheckpointWriter(std::filesystem::path run, const ParameterSet& parameters,
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
  for (ParameterSet::Id id = 0; id < parameters.table().size(); ++id) {
    impl_->add(impl_->weights, parameters.table()[id].name, parameters.value(id));
  }
  optimizer.visit_state([this](const std::string& name, const Tensor& tensor) {
    impl_->add(impl_->state, name, tensor);
  });
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
  impl_->take_snapshot(stream);
  stream.synchronize();
  impl_->writing = std::async(std::launch::async,
                              [impl = impl_.get(), info = std::move(info)] { impl->write(info); });
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
