#include "llmc/io/safetensors.h"

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "io/tensor_stream.h"
#include "llmc/core/checksum.h"
#include "llmc/core/error.h"
#include "llmc/core/file.h"

namespace llmc {
namespace {

using nlohmann::json;

constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;  // the format's own limit
constexpr std::size_t kLengthBytes = 8;

struct ElementType {
  std::string_view name;
  std::uint64_t bytes;
  std::optional<DType> dtype;
};

// All whole-byte element types of the format.
constexpr std::array<ElementType, 15> kElementTypes{{{"F32", 4, DType::kF32},
                                                     {"BF16", 2, DType::kBF16},
                                                     {"I32", 4, DType::kI32},
                                                     {"U16", 2, DType::kU16},
                                                     {"U8", 1, DType::kU8},
                                                     {"F64", 8, std::nullopt},
                                                     {"F16", 2, std::nullopt},
                                                     {"I64", 8, std::nullopt},
                                                     {"U64", 8, std::nullopt},
                                                     {"U32", 4, std::nullopt},
                                                     {"I16", 2, std::nullopt},
                                                     {"I8", 1, std::nullopt},
                                                     {"BOOL", 1, std::nullopt},
                                                     {"F8_E4M3", 1, std::nullopt},
                                                     {"F8_E5M2", 1, std::nullopt}}};

std::string_view file_name_of(DType dtype) {
  for (const ElementType& type : kElementTypes) {
    if (type.dtype == dtype) return type.name;
  }
  fail(ErrorKind::kInput, "safetensors", "cannot write elements of type ", name_of(dtype));
}

template <class... Parts>
[[noreturn]] void fail_file(const std::filesystem::path& path, const Parts&... parts) {
  fail(ErrorKind::kInput, "safetensors", path.string(), ": ", parts...);
}

/// Parses the header. Names that occur twice and values nested deeper than any valid header are
/// refused while parsing, so that memory stays in proportion to the header.
json parse_header(const std::filesystem::path& path, const std::string& text) {
  std::set<std::string> names;
  const auto check = [&](int depth, json::parse_event_t event, json& value) {
    if (depth > 3) fail_file(path, "expected a header at most 3 levels deep");
    if (event == json::parse_event_t::key && depth == 1) {
      const auto name = value.get<std::string>();
      if (!names.insert(name).second) fail_file(path, "tensor '", name, "' occurs twice");
    }
    return true;
  };
  try {
    json header = json::parse(text, check);
    if (!header.is_object()) fail_file(path, "expected the header to be a JSON object");
    return header;
  } catch (const json::parse_error& error) {
    fail_file(path, "expected a JSON header, got a syntax error at byte ",
              kLengthBytes + error.byte);
  } catch (const json::exception&) {
    fail_file(path, "expected a JSON header, got a number out of range");
  }
}

std::uint64_t unsigned_of(const std::filesystem::path& path, const std::string& name,
                          const json& value) {
  constexpr auto kMax = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  if (!value.is_number_unsigned() || value.get<std::uint64_t>() > kMax) {
    fail_file(path, "tensor '", name,
              "': expected whole numbers of 0 or more in its shape and "
              "data_offsets");
  }
  return value.get<std::uint64_t>();
}

/// Reads one tensor's description; `data_begin` and `data_bytes` say where all data lie.
SafetensorsEntry parse_entry(const std::filesystem::path& path, const std::string& name,
                             const json& value, std::uint64_t data_begin,
                             std::uint64_t data_bytes) {
  const auto member = [&](const char* key) -> const json& {
    const auto found = value.is_object() ? value.find(key) : value.end();
    if (!value.is_object() || found == value.end()) {
      fail_file(path, "tensor '", name, "': expected dtype, shape and data_offsets");
    }
    return *found;
  };
  SafetensorsEntry entry;
  entry.name = name;
  const json& dtype = member("dtype");
  const ElementType* type = nullptr;
  for (const ElementType& candidate : kElementTypes) {
    if (dtype.is_string() && dtype.get_ref<const std::string&>() == candidate.name) {
      type = &candidate;
    }
  }
  if (type == nullptr) fail_file(path, "tensor '", name, "': its dtype is not known");
  entry.dtype_name = type->name;
  entry.dtype = type->dtype;

  const json& shape = member("shape");
  const json& offsets = member("data_offsets");
  if (!shape.is_array() || !offsets.is_array() || offsets.size() != 2) {
    fail_file(path, "tensor '", name, "': expected a list as shape and two data_offsets");
  }
  std::uint64_t bytes = type->bytes;
  bool overflow = false;
  bool no_elements = false;
  for (const json& dim : shape) {
    const std::uint64_t size = unsigned_of(path, name, dim);
    entry.dims.push_back(static_cast<std::int64_t>(size));
    no_elements = no_elements || size == 0;
    if (size != 0) {
      overflow = overflow || bytes > std::numeric_limits<std::int64_t>::max() / size;
      bytes = overflow ? bytes : bytes * size;
    }
  }
  if (overflow) fail_file(path, "tensor '", name, "': its shape has too many elements");
  if (no_elements) bytes = 0;
  const std::uint64_t begin = unsigned_of(path, name, offsets[0]);
  const std::uint64_t end = unsigned_of(path, name, offsets[1]);
  if (begin > end || end - begin != bytes) {
    fail_file(path, "tensor '", name, "': expected data_offsets ", bytes,
              " bytes apart for its shape, got ", begin, " and ", end);
  }
  if (end > data_bytes) {
    fail_file(path, "tensor '", name, "': ends at byte ", end, " of the data, but there are ",
              data_bytes, "; the file is truncated");
  }
  entry.offset = data_begin + begin;
  entry.bytes = bytes;
  return entry;
}

SafetensorsMetadata parse_metadata(const std::filesystem::path& path, const json& value) {
  SafetensorsMetadata metadata;
  if (!value.is_object()) fail_file(path, "expected __metadata__ to be an object");
  for (const auto& [key, text] : value.items()) {
    if (!text.is_string()) fail_file(path, "expected __metadata__ '", key, "' to be a string");
    metadata[key] = text.get<std::string>();
  }
  return metadata;
}

/// Sorts by offset and refuses holes, overlaps and bytes that belong to no tensor.
void check_layout(const std::filesystem::path& path, std::vector<SafetensorsEntry>& entries,
                  std::uint64_t data_begin, std::uint64_t file_bytes) {
  std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) {
    return std::pair(a.offset, a.bytes) < std::pair(b.offset, b.bytes);
  });
  std::uint64_t expected = data_begin;
  for (const SafetensorsEntry& entry : entries) {
    if (entry.offset != expected) {
      fail_file(path, "tensor '", entry.name, "': expected its data at byte ", expected, ", got ",
                entry.offset, "; there is a hole or an overlap");
    }
    expected += entry.bytes;
  }
  if (expected != file_bytes) {
    fail_file(path, "expected the file to end at byte ", expected, ", got ", file_bytes, " bytes");
  }
}

std::size_t index_of(const std::map<std::string, std::size_t, std::less<>>& index,
                     const std::filesystem::path& path, std::string_view name) {
  const auto found = index.find(name);
  if (found == index.end()) fail_file(path, "there is no tensor '", name, "'");
  return found->second;
}

std::map<std::string, std::size_t, std::less<>> index_names(
    const std::vector<SafetensorsEntry>& entries) {
  std::map<std::string, std::size_t, std::less<>> index;
  for (std::size_t i = 0; i < entries.size(); ++i) index[entries[i].name] = i;
  return index;
}

}  // namespace

std::int64_t SafetensorsEntry::numel() const {
  std::int64_t product = 1;
  for (const std::int64_t dim : dims) {
    if (dim == 0) return 0;
    product *= dim;
  }
  return product;
}

Shape SafetensorsEntry::shape() const {
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
      fail(ErrorKind::kInput, "safetensors", "tensor '", name, "': expected at most ",
           Shape::kMaxRank, " dimensions, got ", dims.size());
  }
}

struct SafetensorsReader::Impl {
  explicit Impl(const std::filesystem::path& path) : file(path) {}

  FileReader file;
  std::vector<SafetensorsEntry> entries;
  std::map<std::string, std::size_t, std::less<>> index;
  SafetensorsMetadata metadata;
  std::uint64_t header_checksum = 0;
};

SafetensorsReader::SafetensorsReader(const std::filesystem::path& path)
    : impl_(std::make_unique<Impl>(path)) {
  FileReader& file = impl_->file;
  if (file.size() < kLengthBytes) {
    fail_file(path, "expected at least ", kLengthBytes, " bytes, got ", file.size(),
              "; this is no safetensors file");
  }
  const auto length = file.read_value<std::uint64_t>();
  if (length > kMaxHeaderBytes || length > file.size() - kLengthBytes) {
    fail_file(path, "expected a header of at most ",
              std::min(kMaxHeaderBytes, file.size() - kLengthBytes), " bytes, got ", length,
              "; the file is truncated or no safetensors file");
  }
  std::string text(static_cast<std::size_t>(length), '\0');
  file.read(text.data(), text.size());
  Checksum64 checksum;
  checksum.update(&length, sizeof length);
  checksum.update(text.data(), text.size());
  impl_->header_checksum = checksum.value();

  const std::uint64_t data_begin = kLengthBytes + length;
  const json header = parse_header(path, text);
  for (const auto& [name, value] : header.items()) {
    if (name == "__metadata__") {
      impl_->metadata = parse_metadata(path, value);
    } else {
      impl_->entries.push_back(
          parse_entry(path, name, value, data_begin, file.size() - data_begin));
    }
  }
  check_layout(path, impl_->entries, data_begin, file.size());
  impl_->index = index_names(impl_->entries);
}

SafetensorsReader::~SafetensorsReader() = default;
SafetensorsReader::SafetensorsReader(SafetensorsReader&&) noexcept = default;
SafetensorsReader& SafetensorsReader::operator=(SafetensorsReader&&) noexcept = default;

const std::filesystem::path& SafetensorsReader::path() const {
  return impl_->file.path();
}

const std::vector<SafetensorsEntry>& SafetensorsReader::entries() const {
  return impl_->entries;
}

const SafetensorsMetadata& SafetensorsReader::metadata() const {
  return impl_->metadata;
}

std::uint64_t SafetensorsReader::header_checksum() const {
  return impl_->header_checksum;
}

const SafetensorsEntry* SafetensorsReader::find(std::string_view name) const {
  const auto found = impl_->index.find(name);
  return found == impl_->index.end() ? nullptr : &impl_->entries[found->second];
}

const SafetensorsEntry& SafetensorsReader::at(std::string_view name) const {
  return impl_->entries[index_of(impl_->index, path(), name)];
}

void SafetensorsReader::check_dtype(const SafetensorsEntry& entry, DType expected) const {
  if (entry.dtype != expected) {
    fail_file(path(), "tensor '", entry.name, "': expected ", file_name_of(expected), ", got ",
              entry.dtype_name);
  }
}

void SafetensorsReader::read(const SafetensorsEntry& entry, std::int64_t begin, std::int64_t count,
                             void* out) {
  const std::int64_t numel = entry.numel();
  if (begin < 0 || count < 0 || begin > numel - count) {
    fail_file(path(), "tensor '", entry.name, "': expected elements within 0..", numel, ", got ",
              begin, " + ", count);
  }
  if (count == 0) return;
  const std::uint64_t element = entry.bytes / static_cast<std::uint64_t>(numel);
  impl_->file.seek(entry.offset + static_cast<std::uint64_t>(begin) * element);
  impl_->file.read(out, static_cast<std::size_t>(static_cast<std::uint64_t>(count) * element));
}

void SafetensorsReader::read(Stream& stream, const Tensor& dst, std::string_view name) {
  const SafetensorsEntry& entry = at(name);
  check_dtype(entry, dst.dtype());
  if (entry.shape() != dst.shape()) {
    fail_file(path(), "tensor '", name, "': expected shape ", dst.shape(), ", got ", entry.shape());
  }
  load_tensor(stream, dst, dst.dtype(), [&](std::int64_t begin, std::int64_t count, void* out) {
    read(entry, begin, count, out);
  });
}

struct SafetensorsWriter::Impl {
  explicit Impl(const std::filesystem::path& target) : path(target), file(target) {}

  std::filesystem::path path;
  FileWriter file;
  std::vector<SafetensorsEntry> entries;
  std::map<std::string, std::size_t, std::less<>> index;
  std::vector<std::uint64_t> written;  // bytes so far of each entry
  std::uint64_t header_checksum = 0;
  std::uint64_t file_bytes = 0;

  void place(const std::vector<SafetensorsSpec>& tensors) {
    std::set<std::string_view> names;
    for (const SafetensorsSpec& spec : tensors) {
      if (spec.name == "__metadata__" || !names.insert(spec.name).second) {
        fail_file(path, "cannot write a tensor named '", spec.name,
                  "': the name is reserved or used twice");
      }
      SafetensorsEntry& entry = entries.emplace_back();
      entry.name = spec.name;
      entry.dtype_name = file_name_of(spec.dtype);
      entry.dtype = spec.dtype;
      for (int i = 0; i < spec.shape.rank(); ++i) entry.dims.push_back(spec.shape.dim(i));
      entry.bytes = static_cast<std::uint64_t>(spec.shape.numel()) * size_of(spec.dtype);
    }
    std::stable_sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) {
      return size_of(*a.dtype) > size_of(*b.dtype);
    });
  }

  void write_header(const SafetensorsMetadata& metadata) {
    json header = json::object();
    json& strings = header["__metadata__"];
    strings["format"] = "pt";
    for (const auto& [key, value] : metadata) strings[key] = value;
    std::uint64_t end = 0;
    for (SafetensorsEntry& entry : entries) {
      entry.offset = end;
      end += entry.bytes;
      header[entry.name] = {{"dtype", entry.dtype_name},
                            {"shape", entry.dims},
                            {"data_offsets", {entry.offset, end}}};
    }
    std::string text;
    try {
      text = header.dump();
    } catch (const json::exception&) {
      fail_file(path, "expected names and metadata in UTF-8");
    }
    text.resize((text.size() + 7) / 8 * 8, ' ');
    const std::uint64_t length = text.size();
    file.write_value(length);
    file.write(text);
    Checksum64 checksum;
    checksum.update(&length, sizeof length);
    checksum.update(text.data(), text.size());
    header_checksum = checksum.value();
    for (SafetensorsEntry& entry : entries) entry.offset += kLengthBytes + length;
    file_bytes = kLengthBytes + length + end;
  }
};

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path,
                                     const std::vector<SafetensorsSpec>& tensors,
                                     const SafetensorsMetadata& metadata)
    : impl_(std::make_unique<Impl>(path)) {
  impl_->place(tensors);
  impl_->write_header(metadata);
  impl_->index = index_names(impl_->entries);
  impl_->written.resize(impl_->entries.size());
}

SafetensorsWriter::~SafetensorsWriter() = default;
SafetensorsWriter::SafetensorsWriter(SafetensorsWriter&&) noexcept = default;
SafetensorsWriter& SafetensorsWriter::operator=(SafetensorsWriter&&) noexcept = default;

const std::vector<SafetensorsEntry>& SafetensorsWriter::entries() const {
  return impl_->entries;
}

std::uint64_t SafetensorsWriter::header_checksum() const {
  return impl_->header_checksum;
}

std::uint64_t SafetensorsWriter::file_bytes() const {
  return impl_->file_bytes;
}

void SafetensorsWriter::write(std::string_view name, const void* data, std::size_t bytes) {
  const std::size_t i = index_of(impl_->index, impl_->path, name);
  write_at(name, impl_->written[i], data, bytes);
}

void SafetensorsWriter::write_at(std::string_view name, std::uint64_t offset, const void* data,
                                 std::size_t bytes) {
  const std::size_t i = index_of(impl_->index, impl_->path, name);
  const SafetensorsEntry& entry = impl_->entries[i];
  if (offset > entry.bytes || bytes > entry.bytes - offset) {
    fail_file(impl_->path, "tensor '", name, "': expected ", entry.bytes, " bytes in all, got ",
              offset + bytes);
  }
  const std::uint64_t position = entry.offset + offset;
  if (impl_->file.position() != position) impl_->file.seek(position);
  impl_->file.write(data, bytes);
  impl_->written[i] += bytes;
}

void SafetensorsWriter::write(Stream& stream, std::string_view name, const Tensor& src) {
  const SafetensorsEntry& entry = impl_->entries[index_of(impl_->index, impl_->path, name)];
  if (entry.dtype != src.dtype() || entry.numel() != src.numel()) {
    fail_file(impl_->path, "tensor '", name, "': expected ", entry.numel(), " elements of ",
              entry.dtype_name, ", got ", src.numel(), " of ", name_of(src.dtype()));
  }
  const auto read = [&](std::int64_t begin, std::int64_t count, void* out) {
    copy_to_host(stream, out, src.flat(begin, count));
  };
  convert_elements(src.numel(), src.dtype(), read, src.dtype(),
                   [&](const void* data, std::int64_t count) {
                     write(name, data, static_cast<std::size_t>(count) * size_of(src.dtype()));
                   });
}

void SafetensorsWriter::commit() {
  for (std::size_t i = 0; i < impl_->entries.size(); ++i) {
    if (impl_->written[i] != impl_->entries[i].bytes) {
      fail_file(impl_->path, "tensor '", impl_->entries[i].name, "': expected ",
                impl_->entries[i].bytes, " bytes, got ", impl_->written[i]);
    }
  }
  impl_->file.commit();
}

}  // namespace llmc
