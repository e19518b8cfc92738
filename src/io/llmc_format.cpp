#include "llmc/io/llmc_format.h"

#include <array>
#include <map>
#include <string_view>

#include "io/tensor_stream.h"
#include "io/weight_table.h"
#include "llmc/core/error.h"
#include "llmc/core/file.h"

namespace llmc {
namespace {

constexpr std::int32_t kModelMagic = 20240326;
constexpr std::int32_t kDebugMagic = 20240327;
constexpr std::int32_t kDebugVersion = 2;
constexpr std::int32_t kVersionF32 = 3;
constexpr std::int32_t kVersionBf16 = 5;
// Limits that keep every size below 2^63 bytes.
constexpr std::int32_t kMaxLayers = 1 << 16;
constexpr std::int32_t kMaxChannels = 1 << 20;
constexpr std::int32_t kMaxCount = 0x7fffffff;

using Header = std::array<std::int32_t, 256>;

enum HeaderField { kMagic, kVersion, kBlockSize, kVocab, kLayers, kHeads, kChannels, kPaddedVocab };

template <class... Parts>
[[noreturn]] void fail_file(const std::filesystem::path& path, const Parts&... parts) {
  fail(ErrorKind::kInput, "llmc_format", path.string(), ": ", parts...);
}

/// Elements of all weights, with `vocab_rows` rows in wte.
std::uint64_t elements_of_all(const ModelConfig& config, std::int64_t vocab_rows) {
  std::int64_t sum = 0;
  for (const WeightKind& kind : kWeightKinds) {
    sum += kind.shape(config, vocab_rows).numel() * (kind.in_block ? config.n_layer : 1);
  }
  return static_cast<std::uint64_t>(sum);
}

Header read_header(FileReader& file, std::int32_t magic, std::string_view what) {
  if (file.size() < sizeof(Header)) {
    fail_file(file.path(), "expected a header of ", sizeof(Header), " bytes, got a file of ",
              file.size());
  }
  const auto header = file.read_value<Header>();
  if (header[kMagic] != magic) {
    fail_file(file.path(), "expected ", what, " (magic ", magic, "), got magic ", header[kMagic]);
  }
  return header;
}

void check_size(const FileReader& file, std::uint64_t expected) {
  if (file.size() != expected) {
    fail_file(file.path(), "expected ", expected, " bytes, got ", file.size(), "; the file is ",
              file.size() < expected ? "truncated" : "too long");
  }
}

DType dtype_of_version(const FileReader& file, std::int32_t version) {
  switch (version) {
    case kVersionF32:
      return DType::kF32;
    case kVersionBf16:
      return DType::kBF16;
    case 1:
      fail_file(file.path(),
                "expected version 3 or 5, got 1 (fp32 with an unpadded vocabulary); "
                "write it again with a current llm.c");
    case 2:
      fail_file(file.path(),
                "expected version 3 or 5, got 2 (bf16 with an unpadded vocabulary); "
                "write it again with a current llm.c");
    case 4:
      fail_file(file.path(),
                "expected version 3 or 5, got 4 (bf16 with fp32 norms); write it "
                "again with a current llm.c");
    default:
      fail_file(file.path(), "expected version 3 or 5, got ", version);
  }
}

/// The config of a header whose fields are checked one by one.
ModelConfig config_of(const FileReader& file, const Header& header) {
  const auto field = [&](HeaderField index, std::string_view name, std::int32_t max) {
    const std::int32_t value = header[index];
    if (value < 1 || value > max) {
      fail_file(file.path(), name, ": expected 1 to ", max, ", got ", value);
    }
    return value;
  };
  const std::int32_t layers = field(kLayers, "layers", kMaxLayers);
  const std::int32_t channels = field(kChannels, "channels", kMaxChannels);
  const std::int32_t heads = field(kHeads, "heads", channels);
  const std::int32_t vocab = field(kVocab, "vocabulary", kMaxCount);
  const std::int32_t padded = field(kPaddedVocab, "padded vocabulary", kMaxCount);
  const std::int32_t positions = field(kBlockSize, "positions", kMaxCount);
  if (padded < vocab) {
    fail_file(file.path(), "padded vocabulary: expected at least ", vocab, ", got ", padded);
  }
  if (channels % heads != 0) {
    fail_file(file.path(), "channels: expected a multiple of the ", heads, " heads, got ",
              channels);
  }
  return ModelConfig::gpt2(layers, heads, channels, positions, vocab);
}

std::vector<float> read_floats(FileReader& file, std::int64_t count) {
  std::vector<float> values(static_cast<std::size_t>(count));
  file.read(values.data(), values.size() * sizeof(float));
  return values;
}

}  // namespace

struct LlmcModelReader::Impl {
  explicit Impl(const std::filesystem::path& path) : file(path) {}

  FileReader file;
  ModelConfig config;
  DType dtype = DType::kF32;
  std::int64_t padded_vocab = 0;                 // rows of wte in the file
  std::map<std::string, std::uint64_t> offsets;  // of the weights, in bytes

  void place_weights() {
    std::uint64_t offset = sizeof(Header);
    for (const WeightId& id : weights_by_kind(config.n_layer)) {
      offsets[id.kind->full_name(id.layer)] = offset;
      offset +=
          static_cast<std::uint64_t>(id.kind->shape(config, padded_vocab).numel()) * size_of(dtype);
    }
  }
};

LlmcModelReader::LlmcModelReader(const std::filesystem::path& path)
    : impl_(std::make_unique<Impl>(path)) {
  FileReader& file = impl_->file;
  const Header header = read_header(file, kModelMagic, "an llm.c model");
  impl_->dtype = dtype_of_version(file, header[kVersion]);
  impl_->config = config_of(file, header);
  impl_->padded_vocab = header[kPaddedVocab];
  check_size(file, sizeof(Header) +
                       elements_of_all(impl_->config, impl_->padded_vocab) * size_of(impl_->dtype));
  impl_->place_weights();
}

LlmcModelReader::~LlmcModelReader() = default;
LlmcModelReader::LlmcModelReader(LlmcModelReader&&) noexcept = default;
LlmcModelReader& LlmcModelReader::operator=(LlmcModelReader&&) noexcept = default;

bool LlmcModelReader::recognises(const std::filesystem::path& path) {
  FileReader file(path);
  return file.size() >= sizeof(std::int32_t) && file.read_value<std::int32_t>() == kModelMagic;
}

const std::filesystem::path& LlmcModelReader::path() const {
  return impl_->file.path();
}

const ModelConfig& LlmcModelReader::config() const {
  return impl_->config;
}

DType LlmcModelReader::dtype() const {
  return impl_->dtype;
}

std::size_t LlmcModelReader::weight_count() const {
  return impl_->offsets.size();
}

StoredWeight LlmcModelReader::weight(const std::string& name, DType /*wanted*/) {
  const auto found = impl_->offsets.find(name);
  if (found == impl_->offsets.end()) {
    fail_file(path(), "expected a weight '", name, "', got none");
  }
  const ModelConfig& config = impl_->config;
  const Shape shape = kind_of(name).shape(config, config.padded_vocab_size());
  const ReadElements read = [impl = impl_.get(), offset = found->second](
                                std::int64_t begin, std::int64_t count, void* out) {
    const std::size_t size = size_of(impl->dtype);
    impl->file.seek(offset + static_cast<std::uint64_t>(begin) * size);
    impl->file.read(out, static_cast<std::size_t>(count) * size);
  };
  if (name != "wte") return {impl_->dtype, shape, read};
  return {impl_->dtype, shape,
          padded_with_zeros(config.vocab_size * config.n_embd, impl_->dtype, read)};
}

void write_llmc_model(const std::filesystem::path& path, WeightSource& source, DType dtype) {
  const ModelConfig& config = source.config();
  require_gpt2(config, path.string(), /*any_eps=*/false);
  if (dtype != DType::kF32 && dtype != DType::kBF16) {
    fail(ErrorKind::kConfig, "llmc_format", "cannot write ", path.string(),
         ": expected f32 or bf16, got ", name_of(dtype));
  }
  Header header{};
  header[kMagic] = kModelMagic;
  header[kVersion] = dtype == DType::kF32 ? kVersionF32 : kVersionBf16;
  header[kBlockSize] = static_cast<std::int32_t>(config.block_size);
  header[kVocab] = static_cast<std::int32_t>(config.vocab_size);
  header[kLayers] = static_cast<std::int32_t>(config.n_layer);
  header[kHeads] = static_cast<std::int32_t>(config.n_head);
  header[kChannels] = static_cast<std::int32_t>(config.n_embd);
  header[kPaddedVocab] = static_cast<std::int32_t>(config.padded_vocab_size());

  FileWriter file(path);
  file.write_value(header);
  for (const WeightId& id : weights_by_kind(config.n_layer)) {
    const StoredWeight stored = source.weight(id.kind->full_name(id.layer), dtype);
    convert_elements(stored.shape.numel(), stored.dtype, stored.read, dtype,
                     [&](const void* data, std::int64_t count) {
                       file.write(data, static_cast<std::size_t>(count) * size_of(dtype));
                     });
  }
  file.commit();
}

LlmcDebugState read_llmc_debug_state(const std::filesystem::path& path, const ModelConfig& config) {
  FileReader file(path);
  const Header header = read_header(file, kDebugMagic, "an llm.c debug state");
  if (header[1] != kDebugVersion) {
    fail_file(path, "expected version ", kDebugVersion, ", got ", header[1]);
  }
  LlmcDebugState state;
  state.B = header[2];
  state.T = header[3];
  if (state.B < 1 || state.T < 1 || state.T > config.block_size) {
    fail_file(path, "expected B of at least 1 and T of 1 to ", config.block_size, ", got ", state.B,
              " and ", state.T);
  }
  const std::int64_t tokens = state.B * state.T;
  // Divided, not multiplied: B·T·V of a damaged header may not fit.
  if (static_cast<std::uint64_t>(tokens) > file.size() / sizeof(float)) {
    fail_file(path, "expected ", tokens, " tokens, got a file of ", file.size(),
              " bytes; the file is truncated");
  }
  const std::int64_t padded = config.padded_vocab_size();
  const std::uint64_t words =
      static_cast<std::uint64_t>(tokens) * (2 + static_cast<std::uint64_t>(config.vocab_size)) + 1 +
      elements_of_all(config, padded);
  check_size(file, sizeof(Header) + words * sizeof(float));

  for (std::vector<std::int32_t>* ids : {&state.tokens, &state.targets}) {
    ids->resize(static_cast<std::size_t>(tokens));
    file.read(ids->data(), ids->size() * sizeof(std::int32_t));
    for (const std::int32_t id : *ids) {
      if (id < 0 || id >= config.vocab_size) {
        fail_file(path, "expected token ids of 0 to ", config.vocab_size - 1, ", got ", id);
      }
    }
  }
  state.logits = read_floats(file, tokens * config.vocab_size);
  state.loss = file.read_value<float>();
  for (const WeightId& id : weights_by_kind(config.n_layer)) {
    state.gradients[id.kind->full_name(id.layer)] =
        read_floats(file, id.kind->shape(config, padded).numel());
  }
  return state;
}

}  // namespace llmc
