#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "io/checkpoint_folder.h"
#include "io/manifest.h"
#include "io/tensor_stream.h"
#include "llmc/core/checksum.h"
#include "llmc/core/error.h"
#include "llmc/core/file.h"
#include "llmc/io/checkpoint.h"
#include "llmc/io/safetensors.h"

namespace llmc {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kVerifyElements = std::int64_t{1} << 20;

/// Reads the elements of one manifest tensor in order, and checks each piece as it ends. Pieces
/// are read to their end, as their checksums cover all of them, but none before the first element
/// that is wanted or behind the last.
class PieceReader {
 public:
  PieceReader(std::string name, const ManifestTensor& tensor,
              std::map<std::string, SafetensorsReader>& files)
      : name_(std::move(name)), tensor_(tensor), files_(files) {}

  /// Makes `element` the next one.
  void start_at(std::int64_t element) {
    while (tensor_.pieces[piece_].end <= element) ++piece_;
    position_ = tensor_.pieces[piece_].begin;
    discard(element - position_);
  }

  /// No more elements are wanted.
  void finish() {
    const ManifestPiece& piece = tensor_.pieces[piece_];
    if (position_ > piece.begin && position_ < piece.end) discard(piece.end - position_);
  }

  /// The next `count` elements.
  void read(std::int64_t count, void* out) {
    auto* to = static_cast<char*>(out);
    while (count > 0) {
      const ManifestPiece& piece = tensor_.pieces[piece_];
      SafetensorsReader& file = files_.at(piece.file);
      const std::int64_t n = std::min(count, piece.end - position_);
      const auto bytes = static_cast<std::size_t>(n) * size_of(tensor_.dtype);
      file.read(file.at(name_), position_ - piece.begin, n, to);
      checksum_.update(to, bytes);
      to += bytes;
      count -= n;
      position_ += n;
      if (position_ == piece.end) finish_piece(file, piece);
    }
  }

 private:
  void discard(std::int64_t count) {
    std::vector<char> unused(static_cast<std::size_t>(std::min(count, kVerifyElements)) *
                             size_of(tensor_.dtype));
    for (; count > 0; count -= kVerifyElements)
      read(std::min(count, kVerifyElements), unused.data());
  }

  void finish_piece(const SafetensorsReader& file, const ManifestPiece& piece) {
    if (checksum_.value() != piece.checksum) {
      fail(ErrorKind::kInput, "checkpoint", file.path().string(), ": tensor '", name_,
           "': its checksum differs from the manifest",
           advice_on_damage(file.path().parent_path()));
    }
    checksum_ = Checksum64();
    if (piece_ + 1 < tensor_.pieces.size()) ++piece_;
  }

  std::string name_;
  const ManifestTensor& tensor_;
  std::map<std::string, SafetensorsReader>& files_;
  Checksum64 checksum_;
  std::size_t piece_ = 0;
  std::int64_t position_ = 0;
};

}  // namespace

struct CheckpointReader::Impl {
  fs::path folder;
  Manifest manifest;
  std::map<std::string, SafetensorsReader> files;

  template <class... Parts>
  [[noreturn]] void fail_here(const Parts&... parts) const {
    fail(ErrorKind::kInput, "checkpoint", folder.string(), ": ", parts...);
  }

  /// Files that hold no weights may be missing until `need_all_files`.
  void open_files() {
    for (const auto& [name, expected] : manifest.files) {
      const fs::path path = folder / name;
      std::error_code error;
      const std::uint64_t bytes = fs::file_size(path, error);
      if (error && !holds_weights(name)) continue;
      if (error) fail_missing(name);
      if (bytes != expected.bytes) {
        fail_here(name, ": expected ", expected.bytes, " bytes, got ", bytes,
                  advice_on_damage(folder));
      }
      const auto file = files.emplace(name, open_file(path)).first;
      if (file->second.header_checksum() != expected.header_checksum) {
        fail_here(name, ": the checksum of its header differs from the manifest",
                  advice_on_damage(folder));
      }
    }
    for (const auto* tensors : {&manifest.weights, &manifest.state}) {
      for (const auto& [name, tensor] : *tensors) {
        if (has_files(tensor)) check_pieces(name, tensor);
      }
    }
  }

  SafetensorsReader open_file(const fs::path& path) const {
    try {
      return SafetensorsReader(path);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kInput) throw;
      fail_here("a file cannot be read: ", error.what(), advice_on_damage(folder));
    }
  }

  [[noreturn]] void fail_missing(const std::string& file) const {
    fail_here("expected the file ", file, ", got none", advice_on_damage(folder));
  }

  void need_all_files() const {
    for (const auto& [name, expected] : manifest.files) {
      if (!files.contains(name)) fail_missing(name);
    }
  }

  bool holds_weights(const std::string& file) const {
    for (const auto& [name, tensor] : manifest.weights) {
      for (const ManifestPiece& piece : tensor.pieces) {
        if (piece.file == file) return true;
      }
    }
    return false;
  }

  bool has_files(const ManifestTensor& tensor) const {
    return std::all_of(tensor.pieces.begin(), tensor.pieces.end(),
                       [&](const ManifestPiece& piece) { return files.contains(piece.file); });
  }

  void check_pieces(const std::string& name, const ManifestTensor& tensor) const {
    for (const ManifestPiece& piece : tensor.pieces) {
      const SafetensorsEntry* entry = files.at(piece.file).find(name);
      if (entry == nullptr || entry->dtype != tensor.dtype ||
          entry->numel() != piece.end - piece.begin) {
        fail_here(piece.file, ": expected ", piece.end - piece.begin, " elements of ",
                  name_of(tensor.dtype), " under the name '", name, "'");
      }
    }
  }

  void load(Stream& stream, const StatePiece& piece, const std::string& name,
            const ManifestTensor& tensor) {
    if (tensor.shape != piece.shape) {
      fail_here("tensor '", name, "': expected shape ", piece.shape, ", got ", tensor.shape);
    }
    PieceReader pieces(name, tensor, files);
    pieces.start_at(piece.begin);
    load_tensor(stream, piece.tensor, tensor.dtype,
                [&](std::int64_t, std::int64_t count, void* out) { pieces.read(count, out); });
    pieces.finish();
  }

  /// A stored tensor, to be read from front to back.
  StoredWeight stored(const std::string& name, const ManifestTensor& tensor) {
    return {tensor.dtype, tensor.shape,
            [pieces = PieceReader(name, tensor, files)](
                std::int64_t, std::int64_t count, void* out) mutable { pieces.read(count, out); }};
  }

  /// What is stored of a parameter; the masters where they are more exact than `dtype`'s weights.
  std::pair<std::string, const ManifestTensor*> weights_of(const std::string& name,
                                                           DType dtype) const {
    const auto stored = manifest.weights.find(name);
    if (stored == manifest.weights.end()) fail_here("expected a weight '", name, "', got none");
    if (dtype == DType::kF32 && stored->second.dtype == DType::kBF16) {
      const auto master = manifest.state.find(concat(kMasterState, ".", name));
      if (master != manifest.state.end() && has_files(master->second))
        return {master->first, &master->second};
    }
    return {name, &stored->second};
  }

  void load_state(Stream& stream, const StatePiece& piece) {
    const std::string& name = piece.name;
    if (const auto found = manifest.state.find(name); found != manifest.state.end()) {
      load(stream, piece, name, found->second);
      return;
    }
    const std::string prefix = concat(kMasterState, ".");
    const auto weight = name.starts_with(prefix) ? manifest.weights.find(name.substr(prefix.size()))
                                                 : manifest.weights.end();
    if (weight == manifest.weights.end()) {
      fail_here("expected optimizer state '", name, "', got none");
    }
    load(stream, piece, weight->first, weight->second);
  }

  /// Refuses state that the optimizer has no place for, but for masters of fp32 parameters.
  void check_all_used(const Optimizer& optimizer) const {
    std::set<std::string> places;
    for (const std::string& state : optimizer.state_names()) {
      for (const Parameter& parameter : optimizer.parameters().table()) {
        places.insert(concat(state, ".", parameter.name));
      }
    }
    for (const auto& [name, tensor] : manifest.state) {
      if (!places.contains(name) && !name.starts_with(concat(kMasterState, "."))) {
        fail_here("optimizer state '", name, "' is stored but the optimizer has none of that name");
      }
    }
  }
};

CheckpointReader::CheckpointReader(const fs::path& folder) : impl_(std::make_unique<Impl>()) {
  impl_->folder = folder;
  const fs::path path = folder / kManifestName;
  std::error_code ignored;
  if (!fs::is_regular_file(path, ignored)) {
    impl_->fail_here("expected a checkpoint folder with ", kManifestName, ", got none");
  }
  constexpr std::uint64_t kManifestLimit = std::uint64_t{1} << 28;
  impl_->manifest = manifest_from_json(read_text(path, kManifestLimit), path);
  impl_->open_files();
}

CheckpointReader::~CheckpointReader() = default;
CheckpointReader::CheckpointReader(CheckpointReader&&) noexcept = default;
CheckpointReader& CheckpointReader::operator=(CheckpointReader&&) noexcept = default;

const fs::path& CheckpointReader::path() const {
  return impl_->folder;
}

const CheckpointInfo& CheckpointReader::info() const {
  return impl_->manifest.info;
}

DType CheckpointReader::dtype() const {
  const auto& weights = impl_->manifest.weights;
  return weights.empty() ? DType::kF32 : weights.begin()->second.dtype;
}

const ModelConfig& CheckpointReader::config() const {
  return impl_->manifest.info.model;
}

std::size_t CheckpointReader::weight_count() const {
  return impl_->manifest.weights.size();
}

StoredWeight CheckpointReader::weight(const std::string& name, DType wanted) {
  const auto [stored_name, tensor] = impl_->weights_of(name, wanted);
  return impl_->stored(stored_name, *tensor);
}

void CheckpointReader::read_all(Stream& stream, const ParameterSet& parameters,
                                Optimizer& optimizer, StepBlock* block) {
  const CheckpointInfo& info = impl_->manifest.info;
  if (info.optimizer.empty()) {
    fail(ErrorKind::kConfig, "checkpoint", impl_->folder.string(),
         ": expected the state of an optimizer, got a checkpoint that holds weights alone");
  }
  if (optimizer.name() != info.optimizer) {
    fail(ErrorKind::kConfig, "checkpoint", impl_->folder.string(), ": expected the optimizer ",
         info.optimizer, ", got ", optimizer.name());
  }
  impl_->need_all_files();
  read_weights(stream, parameters);
  optimizer.start(stream);
  optimizer.visit_state([&](const StatePiece& piece) { impl_->load_state(stream, piece); });
  impl_->check_all_used(optimizer);
  optimizer.write_guard(stream, info.guard);

  const Tensor bytes(block, DType::kU8, {static_cast<std::int64_t>(sizeof(StepBlock))});
  StepBlock host;
  copy_to_host(stream, &host, bytes);
  host.updates = info.updates;
  copy_from_host(stream, bytes, &host);
}

void CheckpointReader::verify() {
  impl_->need_all_files();
  std::vector<char> piece;
  for (const auto* tensors : {&impl_->manifest.weights, &impl_->manifest.state}) {
    for (const auto& [name, tensor] : *tensors) {
      PieceReader pieces(name, tensor, impl_->files);
      for (std::int64_t begin = 0; begin < tensor.shape.numel(); begin += kVerifyElements) {
        const std::int64_t count = std::min(kVerifyElements, tensor.shape.numel() - begin);
        piece.resize(static_cast<std::size_t>(count) * size_of(tensor.dtype));
        pieces.read(count, piece.data());
      }
    }
  }
}

void verify_checkpoint(const fs::path& folder) {
  CheckpointReader(folder).verify();
}

}  // namespace llmc
