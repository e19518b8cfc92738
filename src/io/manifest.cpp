#include "io/manifest.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "io/checkpoint_folder.h"
#include "llmc/core/checksum.h"
#include "llmc/core/error.h"

namespace llmc {
namespace {

using nlohmann::json;

constexpr std::string_view kFormat = "llmc checkpoint";
constexpr std::int64_t kVersion = 1;
constexpr std::array kDTypes{DType::kF32, DType::kBF16, DType::kI32, DType::kU16, DType::kU8};

std::string hex_of(std::uint64_t value) {
  std::array<char, 16> digits;
  digits.fill('0');
  std::array<char, 16> text{};
  const auto end = std::to_chars(text.data(), text.data() + text.size(), value, 16).ptr;
  const auto length = static_cast<std::size_t>(end - text.data());
  std::copy(text.data(), end, digits.end() - static_cast<std::ptrdiff_t>(length));
  return {digits.data(), digits.size()};
}

/// One JSON value of the manifest and where it stands, for messages.
class Node {
 public:
  Node(const json& value, const std::filesystem::path& file, std::string where)
      : value_(value), file_(file), where_(std::move(where)) {}

  template <class... Parts>
  [[noreturn]] void fail_here(const Parts&... parts) const {
    fail(ErrorKind::kInput, "checkpoint", file_.string(), ": ",
         where_.empty() ? "the manifest" : where_, ": ", parts...);
  }

  const std::string& where() const { return where_; }

  Node operator[](const std::string& key) const {
    if (!value_.is_object() || !value_.contains(key)) fail_here("expected a member '", key, "'");
    return {value_.at(key), file_, where_.empty() ? key : concat(where_, ".", key)};
  }
  bool has(const std::string& key) const { return value_.is_object() && value_.contains(key); }

  std::string text() const {
    if (!value_.is_string()) fail_here("expected a string");
    return value_.get<std::string>();
  }
  std::int64_t integer(std::int64_t min = INT64_MIN) const {
    const bool fits = value_.is_number_integer() &&
                      (!value_.is_number_unsigned() || value_.get<std::uint64_t>() <= INT64_MAX);
    if (!fits || value_.get<std::int64_t>() < min) {
      fail_here("expected a whole number", min == INT64_MIN ? "" : concat(" of at least ", min));
    }
    return value_.get<std::int64_t>();
  }
  std::uint64_t unsigned_integer() const {
    if (!value_.is_number_unsigned()) fail_here("expected a whole number of at least 0");
    return value_.get<std::uint64_t>();
  }
  double number() const {
    if (!value_.is_number()) fail_here("expected a number");
    return value_.get<double>();
  }
  bool boolean() const {
    if (!value_.is_boolean()) fail_here("expected true or false");
    return value_.get<bool>();
  }
  std::uint64_t hex() const {
    const std::string digits = text();
    std::uint64_t parsed = 0;
    const char* end = digits.data() + digits.size();
    const auto result = std::from_chars(digits.data(), end, parsed, 16);
    if (result.ec != std::errc() || result.ptr != end) fail_here("expected hexadecimal digits");
    return parsed;
  }
  std::vector<Node> list() const {
    if (!value_.is_array()) fail_here("expected a list");
    std::vector<Node> nodes;
    for (const json& value : value_) nodes.emplace_back(value, file_, where_);
    return nodes;
  }
  template <class Visit>
  void members(Visit visit) const {
    if (!value_.is_object()) fail_here("expected an object");
    for (auto it = value_.begin(); it != value_.end(); ++it) {
      visit(it.key(), Node(it.value(), file_, concat(where_, ".", it.key())));
    }
  }
  /// The enumerator whose name_of is this text.
  template <class Enum>
  Enum one_of(std::initializer_list<Enum> choices) const {
    const std::string name = text();
    for (const Enum choice : choices) {
      if (name == name_of(choice)) return choice;
    }
    fail_here("'", name, "' is not known");
  }

 private:
  const json& value_;
  const std::filesystem::path& file_;
  std::string where_;
};

json json_of(const ModelConfig& c) {
  return {{"n_layer", c.n_layer},
          {"n_head", c.n_head},
          {"n_kv_head", c.n_kv_head},
          {"head_dim", c.head_dim},
          {"n_embd", c.n_embd},
          {"ffn_size", c.ffn_size},
          {"vocab_size", c.vocab_size},
          {"block_size", c.block_size},
          {"norm", name_of(c.norm)},
          {"norm_eps", c.norm_eps},
          {"position", name_of(c.position)},
          {"rope_theta", c.rope_theta},
          {"rope_scaling", c.rope_scaling},
          {"mlp", name_of(c.mlp)},
          {"bias", c.bias},
          {"tied_head", c.tied_head}};
}

ModelConfig model_of(const Node& node) {
  ModelConfig c;
  c.n_layer = node["n_layer"].integer();
  c.n_head = node["n_head"].integer();
  c.n_kv_head = node["n_kv_head"].integer();
  c.head_dim = node["head_dim"].integer();
  c.n_embd = node["n_embd"].integer();
  c.ffn_size = node["ffn_size"].integer();
  c.vocab_size = node["vocab_size"].integer();
  c.block_size = node["block_size"].integer();
  c.norm = node["norm"].one_of({NormKind::kLayerNorm, NormKind::kRmsNorm});
  c.norm_eps = static_cast<float>(node["norm_eps"].number());
  c.position = node["position"].one_of({PositionKind::kLearned, PositionKind::kRope});
  c.rope_theta = static_cast<float>(node["rope_theta"].number());
  c.rope_scaling = static_cast<float>(node["rope_scaling"].number());
  c.mlp = node["mlp"].one_of({MlpKind::kGelu, MlpKind::kSwiGlu});
  c.bias = node["bias"].boolean();
  c.tied_head = node["tied_head"].boolean();
  return c;
}

json json_of(const OutlierWindow& window) {
  json values = json::array();
  for (std::int32_t i = 0; i < window.count; ++i) values.push_back(window.values[i]);
  return {{"values", std::move(values)}, {"next", window.next}};
}

OutlierWindow window_of(const Node& node) {
  OutlierWindow window;
  for (const Node& value : node["values"].list()) {
    if (window.count == OutlierWindow::kSize) {
      node.fail_here("expected at most ", OutlierWindow::kSize, " values");
    }
    window.values[window.count++] = static_cast<float>(value.number());
  }
  const std::int64_t next = node["next"].integer(0);
  if (next >= OutlierWindow::kSize) node.fail_here("next: expected below ", OutlierWindow::kSize);
  window.next = static_cast<std::int32_t>(next);
  return window;
}

json json_of(const std::map<std::string, ManifestTensor>& tensors) {
  json out = json::object();
  for (const auto& [name, tensor] : tensors) {
    json shape = json::array();
    for (int i = 0; i < tensor.shape.rank(); ++i) shape.push_back(tensor.shape.dim(i));
    json pieces = json::array();
    for (const ManifestPiece& piece : tensor.pieces) {
      pieces.push_back({{"file", piece.file},
                        {"begin", piece.begin},
                        {"end", piece.end},
                        {"checksum", hex_of(piece.checksum)}});
    }
    out[name] = {{"dtype", name_of(tensor.dtype)}, {"shape", shape}, {"pieces", pieces}};
  }
  return out;
}

Shape shape_of(const Node& node) {
  std::vector<std::int64_t> dims;
  for (const Node& dim : node.list()) dims.push_back(dim.integer(0));
  try {
    switch (dims.size()) {
      case 0:
        return {};
      case 1:
        return {dims[0]};
      case 2:
        return {dims[0], dims[1]};
      case 3:
        return {dims[0], dims[1], dims[2]};
      case 4:
        return {dims[0], dims[1], dims[2], dims[3]};
      default:
        node.fail_here("expected at most ", Shape::kMaxRank, " sizes, got ", dims.size());
    }
  } catch (const Error&) {
    node.fail_here("expected a shape of at most ", Shape::kMaxRank,
                   " sizes whose product fits 63 bits");
  }
}

DType dtype_of(const Node& node) {
  const std::string name = node.text();
  for (const DType dtype : kDTypes) {
    if (name_of(dtype) == name) return dtype;
  }
  node.fail_here("'", name, "' is not known");
}

/// Refuses pieces with gaps between them, by fail_here(what).
template <class Fail>
void check_whole(const ManifestTensor& tensor, const Fail& fail_here) {
  std::int64_t expected = 0;
  for (const ManifestPiece& p : tensor.pieces) {
    if (p.begin != expected || p.end <= p.begin) {
      fail_here(
          concat("expected a piece from element ", expected, " on, got ", p.begin, " to ", p.end));
    }
    expected = p.end;
  }
  if (expected != tensor.shape.numel()) {
    fail_here(concat("expected pieces of ", tensor.shape.numel(), " elements, got ", expected));
  }
}

ManifestTensor tensor_of(const Node& node, const std::map<std::string, ManifestFile>& files) {
  ManifestTensor tensor;
  tensor.dtype = dtype_of(node["dtype"]);
  tensor.shape = shape_of(node["shape"]);
  for (const Node& piece : node["pieces"].list()) {
    tensor.pieces.push_back({piece["file"].text(), piece["begin"].integer(0),
                             piece["end"].integer(0), piece["checksum"].hex()});
    const std::string& file = tensor.pieces.back().file;
    if (!files.contains(file)) node.fail_here("file '", file, "' is not listed");
  }
  return tensor;
}

std::map<std::string, ManifestTensor> tensors_of(const Node& node,
                                                 const std::map<std::string, ManifestFile>& files) {
  std::map<std::string, ManifestTensor> tensors;
  node.members([&](const std::string& name, const Node& member) {
    const ManifestTensor& tensor = tensors[name] = tensor_of(member, files);
    check_whole(tensor, [&](const std::string& what) { member.fail_here(what); });
  });
  return tensors;
}

json json_of(const std::map<std::string, ManifestFile>& files) {
  json out = json::object();
  for (const auto& [name, file] : files) {
    out[name] = {{"bytes", file.bytes}, {"header_checksum", hex_of(file.header_checksum)}};
  }
  return out;
}

std::map<std::string, ManifestFile> files_of(const Node& node) {
  std::map<std::string, ManifestFile> files;
  node.members([&](const std::string& name, const Node& member) {
    if (name.empty() || name.find('/') != std::string::npos || name.front() == '.') {
      member.fail_here("expected a plain file name");
    }
    files[name] = {member["bytes"].unsigned_integer(), member["header_checksum"].hex()};
  });
  return files;
}

json json_of(const CheckpointInfo& info) {
  json out{
      {"step", info.step},
      {"model", json_of(info.model)},
      {"train_config", info.train_config},
      {"seeds", info.seeds},
      {"loader", info.loader},
      {"updates", info.updates},
      {"guard", {{"loss", json_of(info.guard.loss)}, {"grad_norm", json_of(info.guard.grad_norm)}}},
      {"gemm_choices", info.gemm_choices},
      {"tokenizer_hash", info.tokenizer_hash},
      {"optimizer", info.optimizer},
      {"world_size", info.world_size},
      {"extra", info.extra}};
  if (info.val_loss) out["val_loss"] = *info.val_loss;
  return out;
}

CheckpointInfo info_of(const Node& node) {
  CheckpointInfo info;
  info.step = node["step"].integer(0);
  info.model = model_of(node["model"]);
  info.train_config = node["train_config"].text();
  node["seeds"].members(
      [&](const std::string& key, const Node& n) { info.seeds[key] = n.unsigned_integer(); });
  node["loader"].members(
      [&](const std::string& key, const Node& n) { info.loader[key] = n.integer(); });
  info.updates = node["updates"].integer(0);
  info.guard.loss = window_of(node["guard"]["loss"]);
  info.guard.grad_norm = window_of(node["guard"]["grad_norm"]);
  info.gemm_choices = node["gemm_choices"].text();
  info.tokenizer_hash = node["tokenizer_hash"].text();
  info.optimizer = node["optimizer"].text();
  const std::int64_t world_size = node["world_size"].integer(1);
  if (world_size > INT32_MAX) node["world_size"].fail_here("too large");
  info.world_size = static_cast<int>(world_size);
  if (node.has("val_loss")) info.val_loss = node["val_loss"].number();
  node["extra"].members([&](const std::string& key, const Node& n) { info.extra[key] = n.text(); });
  return info;
}

std::string checksum_of(const json& manifest) {
  const std::string text = manifest.dump();
  return hex_of(checksum64(text.data(), text.size()));
}

}  // namespace

std::string to_json(const Manifest& manifest) {
  try {
    json out = json_of(manifest.info);
    out["format"] = kFormat;
    out["version"] = kVersion;
    out["files"] = json_of(manifest.files);
    out["weights"] = json_of(manifest.weights);
    out["state"] = json_of(manifest.state);
    out["manifest_checksum"] = checksum_of(out);
    return out.dump(1) + "\n";
  } catch (const json::exception&) {
    fail(ErrorKind::kInput, "checkpoint", "expected all text of the manifest in UTF-8");
  }
}

std::string part_to_json(const Manifest& part) {
  return json{{"files", json_of(part.files)}, {"state", json_of(part.state)}}.dump() + "\n";
}

void add_part(Manifest& manifest, const std::string& text, const std::filesystem::path& path) {
  const json value = json::parse(text, nullptr, false);
  const Node root(value, path, "");
  const std::map<std::string, ManifestFile> files = files_of(root["files"]);
  manifest.files.insert(files.begin(), files.end());
  root["state"].members([&](const std::string& name, const Node& member) {
    const ManifestTensor part = tensor_of(member, files);
    ManifestTensor& whole = manifest.state[name];
    whole.dtype = part.dtype;
    whole.shape = part.shape;
    whole.pieces.insert(whole.pieces.end(), part.pieces.begin(), part.pieces.end());
  });
}

void check_state_whole(Manifest& manifest, const std::filesystem::path& path) {
  for (auto& [name, tensor] : manifest.state) {
    std::sort(tensor.pieces.begin(), tensor.pieces.end(),
              [](const ManifestPiece& a, const ManifestPiece& b) { return a.begin < b.begin; });
    check_whole(tensor, [&name = name, &path](const std::string& what) {
      fail(ErrorKind::kInput, "checkpoint", path.string(), ": state of '", name, "': ", what);
    });
  }
}

Manifest manifest_from_json(const std::string& text, const std::filesystem::path& path) {
  json value;
  const Node root(value, path, "");
  try {
    value = json::parse(text, [&](int depth, json::parse_event_t, json&) {
      if (depth > 8) root.fail_here("expected at most 8 levels");
      return true;
    });
  } catch (const json::exception&) {
    root.fail_here("expected JSON", advice_on_damage(path.parent_path()));
  }
  if (!root.has("format") || root["format"].text() != kFormat) {
    root.fail_here("expected format '", kFormat, "'; this is no checkpoint");
  }
  const std::int64_t version = root["version"].integer(1);
  if (version > kVersion) {
    root.fail_here("expected version ", kVersion, " or older, got ", version,
                   "; it was written by a newer llmc");
  }
  const std::string recorded = root["manifest_checksum"].text();
  value.erase("manifest_checksum");
  if (recorded != checksum_of(value)) {
    root.fail_here("its checksum differs", advice_on_damage(path.parent_path()));
  }

  Manifest manifest;
  manifest.info = info_of(root);
  manifest.files = files_of(root["files"]);
  manifest.weights = tensors_of(root["weights"], manifest.files);
  manifest.state = tensors_of(root["state"], manifest.files);
  return manifest;
}

}  // namespace llmc
