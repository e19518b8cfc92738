#include "llmc/io/llmc_format.h"

#include <array>
#include <string_view>

#include "io/tensor_stream.h"
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

/// Tensors in file order. Those of blocks are stored for all layers one after the other.
struct FileTensor {
  std::string_view name;
  bool in_block;
};
constexpr std::array<FileTensor, 16> kFileOrder{{{"wte", false},
                                                 {"wpe", false},
                                                 {"ln1.weight", true},
                                                 {"ln1.bias", true},
                                                 {"attn.qkv.weight", true},
                                                 {"attn.qkv.bias", true},
                                                 {"attn.proj.weight", true},
                                                 {"attn.proj.bias", true},
                                                 {"ln2.weight", true},
                                                 {"ln2.bias", true},
                                                 {"mlp.fc.weight", true},
                                                 {"mlp.fc.bias", true},
                                                 {"mlp.proj.weight", true},
                                                 {"mlp.proj.bias", true},
                                                 {"ln_f.weight", false},
                                                 {"ln_f.bias", false}}};

template <class... Parts>
[[noreturn]] void fail_file(const std::filesystem::path& path, const Parts&... parts) {
  fail(ErrorKind::kInput, "llmc_format", path.string(), ": ", parts...);
}

/// Names of all parameters in file order.
std::vector<std::string> names_in_file_order(std::int64_t n_layer) {
  std::vector<std::string> names;
  for (const FileTensor& tensor : kFileOrder) {
    if (!tensor.in_block) names.emplace_back(tensor.name);
    for (std::int64_t l = 0; tensor.in_block && l < n_layer; ++l) {
      names.push_back(concat("blocks.", l, ".", tensor.name));
    }
  }
  return names;
}

/// Elements of a parameter of this config, with `vocab_rows` rows in wte.
std::int64_t elements_of(std::string_view name, const ModelConfig& config,
                         std::int64_t vocab_rows) {
  const std::int64_t C = config.n_embd;
  if (name == "wte") return vocab_rows * C;
  if (name == "wpe") return config.block_size * C;
  if (name.ends_with("attn.qkv.weight")) return 3 * C * C;
  if (name.ends_with("attn.qkv.bias")) return 3 * C;
  if (name.ends_with("attn.proj.weight")) return C * C;
  if (name.ends_with("mlp.fc.weight") || name.ends_with("mlp.proj.weight")) return 4 * C * C;
  if (name.ends_with("mlp.fc.bias")) return 4 * C;
  return C;
}

std::uint64_t elements_of_all(const ModelConfig& config, std::int64_t vocab_rows) {
  std::int64_t sum = 0;
  for (const FileTensor& tensor : kFileOrder) {
    sum += elements_of(tensor.name, config, vocab_rows) * (tensor.in_block ? config.n_layer : 1);
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

/// The rows of wte that are in use; other parameters are whole.
Tensor used_rows(const Tensor& value, std::string_view name, const ModelConfig& config) {
  return name == "wte" ? value.rows(0, config.vocab_size) : value;
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
  std::int64_t padded_vocab = 0;  // rows of wte in the file
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
}

LlmcModelReader::~LlmcModelReader() = default;
LlmcModelReader::LlmcModelReader(LlmcModelReader&&) noexcept = default;
LlmcModelReader& LlmcModelReader::operator=(LlmcModelReader&&) noexcept = default;

bool LlmcModelReader::recognises(const std::filesystem::path& path) {
  FileReader file(path);
  return file.size() >= sizeof(std::int32_t) && file.read_value<std::int32_t>() == kModelMagic;
}

const ModelConfig& LlmcModelReader::config() const {
  return impl_->config;
}

DType LlmcModelReader::dtype() const {
  return impl_->dtype;
}

void LlmcModelReader::read_weights(Stream& stream, const ParameterSet& parameters) {
  FileReader& file = impl_->file;
  const ModelConfig& config = impl_->config;
  const std::vector<std::string> names = names_in_file_order(config.n_layer);
  if (names.size() != parameters.table().size()) {
    fail_file(file.path(), "expected a model of ", names.size(), " parameters, got ",
              parameters.table().size());
  }
  std::uint64_t offset = sizeof(Header);
  for (const std::string& name : names) {
    const Tensor value = parameters.value(name);
    const Tensor used = used_rows(value, name, config);
    if (used.numel() != elements_of(name, config, config.vocab_size)) {
      fail_file(file.path(), "parameter ", name, ": expected ",
                elements_of(name, config, config.vocab_size), " elements, got shape ",
                value.shape());
    }
    if (used.numel() < value.numel()) zero(stream, value.rows(config.vocab_size, value.dim(0)));
    file.seek(offset);
    load_tensor(stream, used, impl_->dtype, [&](std::int64_t, std::int64_t count, void* out) {
      file.read(out, static_cast<std::size_t>(count) * size_of(impl_->dtype));
    });
    offset += static_cast<std::uint64_t>(elements_of(name, config, impl_->padded_vocab)) *
              size_of(impl_->dtype);
  }
}

void write_llmc_model(const std::filesystem::path& path, Stream& stream, const ModelConfig& config,
                      const ParameterSet& parameters, DType dtype) {
  if (config != ModelConfig::gpt2(config.n_layer, config.n_head, config.n_embd, config.block_size,
                                  config.vocab_size)) {
    fail(ErrorKind::kConfig, "llmc_format", "cannot write ", path.string(),
         ": expected a plain GPT-2, the only model that llm.c files describe");
  }
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
  for (const std::string& name : names_in_file_order(config.n_layer)) {
    store_tensor(stream, parameters.value(name), dtype,
                 [&](const void* data, std::size_t bytes) { file.write(data, bytes); });
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
  for (const std::string& name : names_in_file_order(config.n_layer)) {
    state.gradients[name] = read_floats(file, elements_of(name, config, padded));
  }
  return state;
}

}  // namespace llmc
