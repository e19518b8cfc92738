#include "ops/cuda/matmul_choices.h"

#include <charconv>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <utility>
#include <vector>

#include "llmc/core/checksum.h"
#include "llmc/core/error.h"
#include "llmc/core/file.h"
#include "llmc/core/log.h"

namespace llmc::cuda {
namespace {

/// Far more than all choices for all GPUs there are.
constexpr std::uint64_t kMaxFileBytes = std::uint64_t{16} << 20;

/// As std::from_chars reads it, whatever the process's locale.
template <class T>
std::string digits(T value) {
  char text[32];
  return {text, std::to_chars(text, text + sizeof text, value).ptr};
}

struct Line {
  std::string gpu;
  std::size_t library = 0;
  std::string product;
  MatmulChoice choice{};

  /// What tells it from other lines.
  std::string key() const { return concat(gpu, "\t", digits(library), "\t", product); }
};

std::string hex(const std::array<unsigned char, 64>& bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const unsigned char byte : bytes) {
    text += kDigits[byte / 16];
    text += kDigits[byte % 16];
  }
  return text;
}

/// Reads the whole field as a number.
template <class T, class... Base>
bool parse(std::string_view field, T& value, Base... base) {
  const char* end = field.data() + field.size();
  const auto [stop, error] = std::from_chars(field.data(), end, value, base...);
  return error == std::errc() && stop == end;
}

std::string checksum_of(std::string_view text) {
  char digits[17];
  std::snprintf(digits, sizeof digits, "%016llx",
                static_cast<unsigned long long>(checksum64(text.data(), text.size())));
  return digits;
}

std::string text_of(const Line& line) {
  const std::string text = concat(line.key(), "\t", hex(line.choice.algorithm), "\t",
                                  digits(line.choice.microseconds), "\t");
  return concat(text, checksum_of(text), "\n");
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (true) {
    const std::size_t end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

/// None if the line is damaged.
std::optional<Line> parse_line(std::string_view text) {
  const std::vector<std::string_view> fields = split(text, '\t');
  if (fields.size() != 6) return {};
  const std::string_view guarded = text.substr(0, text.size() - fields[5].size());
  if (fields[5] != checksum_of(guarded)) return {};
  Line line{.gpu = std::string(fields[0]), .product = std::string(fields[2])};
  auto& algorithm = line.choice.algorithm;
  if (!parse(fields[1], line.library) || fields[3].size() != 2 * algorithm.size() ||
      !parse(fields[4], line.choice.microseconds)) {
    return {};
  }
  for (std::size_t i = 0; i < algorithm.size(); ++i) {
    if (!parse(fields[3].substr(2 * i, 2), algorithm[i], 16)) return {};
  }
  return line;
}

/// Calls take(line) for every line that can be read; returns how many cannot.
template <class Take>
std::size_t for_lines(std::string_view text, const Take& take) {
  std::size_t damaged = 0;
  for (const std::string_view line : split(text, '\n')) {
    if (line.empty()) continue;
    if (const std::optional<Line> parsed = parse_line(line)) {
      take(*parsed);
    } else {
      ++damaged;
    }
  }
  return damaged;
}

}  // namespace

MatmulChoices::MatmulChoices(std::string gpu, std::size_t library)
    : gpu_(std::move(gpu)), library_(library) {}

const MatmulChoice* MatmulChoices::find(const std::string& product) const {
  const auto it = choices_.find(product);
  return it == choices_.end() ? nullptr : &it->second;
}

void MatmulChoices::set(const std::string& product, const MatmulChoice& choice) {
  choices_[product] = choice;
}

std::string MatmulChoices::text() const {
  std::string text;
  for (const auto& [product, choice] : choices_) text += text_of({gpu_, library_, product, choice});
  return text;
}

MatmulChoices::Merged MatmulChoices::merge(std::string_view text) {
  Merged merged;
  merged.damaged = for_lines(text, [&](const Line& line) {
    if (line.gpu != gpu_ || line.library != library_) {
      ++merged.foreign;
      return;
    }
    ++merged.taken;
    set(line.product, line.choice);
  });
  return merged;
}

void MatmulChoices::load(const std::filesystem::path& path) {
  std::error_code unknown;
  if (!std::filesystem::exists(path, unknown)) return;
  try {
    const std::size_t damaged = merge(read_text(path, kMaxFileBytes)).damaged;
    if (damaged > 0) {
      log(LogLevel::kWarning, concat("[matmul] ", path.string(), ": damaged lines: ", damaged,
                                     "; they are ignored, new choices replace them"));
    }
  } catch (const Error& error) {
    log(LogLevel::kWarning, concat("[matmul] the timed choices are not used: ", error.what()));
  }
}

void MatmulChoices::save(const std::filesystem::path& path) const {
  std::map<std::string, std::string> lines;  // by key
  const auto add = [&](const Line& line) { lines[line.key()] = text_of(line); };
  std::error_code unknown;
  if (std::filesystem::exists(path, unknown)) for_lines(read_text(path, kMaxFileBytes), add);
  for (const auto& [product, choice] : choices_) {
    if (choice.microseconds > 0) add({gpu_, library_, product, choice});
  }
  std::string text;
  for (const auto& [key, line] : lines) text += line;
  if (path.has_parent_path()) make_folders(path.parent_path());
  write_text(path, text);
}

}  // namespace llmc::cuda
