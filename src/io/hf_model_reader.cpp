#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "io/hf_config.h"
#include "io/hf_files.h"
#include "io/transpose.h"
#include "io/weight_table.h"
#include "llmc/core/error.h"
#include "llmc/core/file.h"
#include "llmc/io/hf_model.h"
#include "llmc/io/safetensors.h"

namespace llmc {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::uint64_t kConfigLimit = std::uint64_t{1} << 24;
constexpr std::uint64_t kIndexLimit = std::uint64_t{1} << 28;

template <class... Parts>
[[noreturn]] void fail_file(const fs::path& path, const Parts&... parts) {
  fail(ErrorKind::kInput, "hf_model", path.string(), ": ", parts...);
}

bool is_file(const fs::path& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored);
}

/// Tensors that are no weights: causal masks that older versions saved.
bool is_ignored(std::string_view name) {
  return name.starts_with("h.") &&
         (name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias"));
}

/// Tensor to file, as the index tells.
std::map<std::string, std::string> read_index(const fs::path& path) {
  json index;
  const auto check = [&](int depth, json::parse_event_t, const json&) {
    if (depth > 4) fail_file(path, "expected at most 4 levels");
    return true;
  };
  try {
    index = json::parse(read_text(path, kIndexLimit), check);
  } catch (const json::exception&) {
    fail_file(path, "expected JSON");
  }
  const auto map = index.is_object() ? index.find("weight_map") : index.end();
  if (!index.is_object() || map == index.end() || !map->is_object() || map->empty()) {
    fail_file(path, "expected a weight_map with the file of each tensor");
  }
  std::map<std::string, std::string> files;
  for (const auto& [tensor, value] : map->items()) {
    const std::string file = value.is_string() ? value.get<std::string>() : "";
    if (file.empty() || file.front() == '.' || file.find('/') != std::string::npos) {
      fail_file(path, "tensor '", tensor, "': expected the plain name of a file");
    }
    files[tensor] = file;
  }
  return files;
}

}  // namespace

struct HfModelReader::Impl {
  /// Where a tensor lies.
  struct Place {
    SafetensorsReader* file;
    const SafetensorsEntry* entry;
  };

  fs::path folder;
  ModelConfig config;
  DType dtype = DType::kBF16;
  std::map<std::string, SafetensorsReader> files;
  std::map<std::string, Place> tensors;  // by Hugging Face's name, without "transformer."
  std::size_t weights = 0;

  void open() {
    if (is_file(folder / kHfWeightsFile)) {
      add_file(std::string(kHfWeightsFile));
    } else if (is_file(folder / kHfIndexFile)) {
      const fs::path path = folder / kHfIndexFile;
      const std::map<std::string, std::string> index = read_index(path);
      std::set<std::string> names;
      for (const auto& [tensor, file] : index) names.insert(file);
      for (const std::string& name : names) {
        if (!is_file(folder / name)) fail_file(path, "expected the file ", name, ", got none");
        add_file(name);
      }
      check_index(path, index);
    } else {
      const bool pickled =
          is_file(folder / "pytorch_model.bin") || is_file(folder / "pytorch_model.bin.index.json");
      fail_file(folder, "expected ", kHfWeightsFile, " or ", kHfIndexFile, ", got ",
                pickled ? "pytorch_model.bin only; load the folder with transformers and save it "
                          "again with save_pretrained"
                        : "neither");
    }
    strip_prefix();
    check_weights();
    check_rest();
  }

  void add_file(const std::string& name) {
    SafetensorsReader& file = files.emplace(name, SafetensorsReader(folder / name)).first->second;
    for (const SafetensorsEntry& entry : file.entries()) {
      const auto [it, is_new] = tensors.insert({entry.name, {&file, &entry}});
      if (!is_new) {
        fail_file(file.path(), "tensor '", entry.name, "' is in ",
                  it->second.file->path().filename().string(), " too");
      }
    }
  }

  void check_index(const fs::path& path, const std::map<std::string, std::string>& index) const {
    for (const auto& [name, file] : index) {
      const auto found = tensors.find(name);
      if (found == tensors.end() || found->second.file != &files.at(file)) {
        fail_file(path, "expected tensor '", name, "' in ", file, ", got none there");
      }
    }
    for (const auto& [name, place] : tensors) {
      if (!index.contains(name)) {
        fail_file(place.file->path(), "tensor '", name, "' is not in the index");
      }
    }
  }

  /// GPT2LMHeadModel calls its weights "transformer.wte.weight" and so on, GPT2Model "wte.weight".
  void strip_prefix() {
    if (!tensors.contains(concat(kHfPrefix, "wte.weight"))) return;
    std::map<std::string, Place> stripped;
    for (const auto& [name, place] : tensors) {
      const bool has_prefix = name.starts_with(kHfPrefix);
      stripped[has_prefix ? name.substr(kHfPrefix.size()) : name] = place;
    }
    if (stripped.size() != tensors.size()) {
      fail_file(folder, "expected each tensor once, got one with and without '", kHfPrefix, "'");
    }
    tensors = std::move(stripped);
  }

  void check_weights() {
    if (static_cast<std::uint64_t>(config.n_layer) > tensors.size()) {
      fail_file(folder, "expected the tensors of ", config.n_layer, " layers, got ", tensors.size(),
                " tensors in all");
    }
    for (const WeightId& id : weights_by_kind(config.n_layer)) {
      const std::string name = id.kind->full_hf_name(id.layer);
      const auto found = tensors.find(name);
      if (found == tensors.end()) fail_file(folder, "expected a tensor '", name, "', got none");
      check_weight(*id.kind, found->second);
      ++weights;
    }
  }

  void check_weight(const WeightKind& kind, const Place& place) {
    const SafetensorsEntry& entry = *place.entry;
    if (entry.dtype != DType::kF32 && entry.dtype != DType::kBF16) {
      fail_file(place.file->path(), "tensor '", entry.name, "': expected F32 or BF16, got ",
                entry.dtype_name);
    }
    if (entry.dtype == DType::kF32) dtype = DType::kF32;
    const Shape ours = kind.shape(config, config.vocab_size);
    const Shape expected = kind.transposed ? Shape{ours.dim(1), ours.dim(0)} : ours;
    if (entry.shape() != expected) {
      fail_file(place.file->path(), "tensor '", entry.name, "': expected shape ", expected,
                " as in config.json, got ", entry.shape());
    }
  }

  /// Refuses tensors without a place in the model.
  void check_rest() {
    std::set<std::string> known;
    for (const WeightId& id : weights_by_kind(config.n_layer)) {
      known.insert(id.kind->full_hf_name(id.layer));
    }
    for (const auto& [name, place] : tensors) {
      if (known.contains(name) || is_ignored(name)) continue;
      if (name != kHfHead) {
        fail_file(place.file->path(), "tensor '", place.entry->name,
                  "': expected only the weights of a GPT-2 of ", config.n_layer,
                  " layers, got one more");
      }
      check_head(place);
    }
  }

  /// The head is the token embedding; a folder may hold it once more, but not another one.
  void check_head(const Place& head) const {
    const Place& wte = tensors.at("wte.weight");
    bool equal = head.entry->dtype == wte.entry->dtype && head.entry->dims == wte.entry->dims;
    constexpr std::int64_t kPiece = std::int64_t{1} << 18;
    std::vector<char> a(equal ? kPiece * sizeof(float) : 0), b(a.size());
    const std::int64_t numel = wte.entry->numel();
    for (std::int64_t begin = 0; equal && begin < numel; begin += kPiece) {
      const std::int64_t count = std::min(kPiece, numel - begin);
      wte.file->read(*wte.entry, begin, count, a.data());
      head.file->read(*head.entry, begin, count, b.data());
      const auto bytes =
          static_cast<std::ptrdiff_t>(static_cast<std::size_t>(count) * size_of(*wte.entry->dtype));
      equal = std::equal(a.begin(), a.begin() + bytes, b.begin());
    }
    if (!equal) {
      fail_file(head.file->path(), "tensor '", kHfHead,
                "': expected the same as the token embedding, got another head, which is not "
                "built");
    }
  }
};

HfModelReader::HfModelReader(const fs::path& folder) : impl_(std::make_unique<Impl>()) {
  impl_->folder = folder;
  const fs::path config = folder / kHfConfigFile;
  impl_->config = model_from_hf_config(read_text(config, kConfigLimit), config);
  impl_->open();
}

HfModelReader::~HfModelReader() = default;
HfModelReader::HfModelReader(HfModelReader&&) noexcept = default;
HfModelReader& HfModelReader::operator=(HfModelReader&&) noexcept = default;

bool HfModelReader::recognises(const fs::path& folder) {
  return is_file(folder / kHfConfigFile);
}

const fs::path& HfModelReader::path() const {
  return impl_->folder;
}

const ModelConfig& HfModelReader::config() const {
  return impl_->config;
}

DType HfModelReader::dtype() const {
  return impl_->dtype;
}

std::size_t HfModelReader::weight_count() const {
  return impl_->weights;
}

StoredWeight HfModelReader::weight(const std::string& name, DType /*wanted*/) {
  const ModelConfig& config = impl_->config;
  const WeightKind& kind = kind_of(name);
  const auto found = impl_->tensors.find(hf_name_of(name));
  if (found == impl_->tensors.end()) {
    fail_file(path(), "expected a weight '", name, "', got none");
  }
  const Impl::Place place = found->second;
  const DType dtype = *place.entry->dtype;
  ReadElements read = [place](std::int64_t begin, std::int64_t count, void* out) {
    place.file->read(*place.entry, begin, count, out);
  };
  const Shape shape = kind.shape(config, config.padded_vocab_size());
  if (kind.transposed) {
    read = transposed_reader(shape.dim(0), shape.dim(1), size_of(dtype), std::move(read));
  } else if (name == "wte") {
    read = padded_with_zeros(config.vocab_size * config.n_embd, dtype, std::move(read));
  }
  return {dtype, shape, std::move(read)};
}

}  // namespace llmc
