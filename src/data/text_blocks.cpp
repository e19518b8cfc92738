#include "data/text_blocks.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "data/text_cut.h"
#include "llmc/core/error.h"
#include "llmc/data/corpus.h"

namespace llmc {
namespace {

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

/// Newlines. Lines are long, so the C library's search is faster than a look at each byte.
std::int64_t count_lines(std::string_view text) {
  std::int64_t lines = 0;
  for (std::size_t at = text.find('\n'); at != text.npos; at = text.find('\n', at + 1)) ++lines;
  return lines;
}

}  // namespace

std::string separator_of(const PrepareOptions& options) {
  switch (options.split) {
    case DocumentSplit::kBlankLine:
      return "\n\n";
    case DocumentSplit::kLine:
      return "\n";
    case DocumentSplit::kDelimiter:
      return options.delimiter;
    default:
      return "";
  }
}

bool FileBlocks::next(TextBlock& block) {
  do {
    if (!stream_ && !open_next()) return false;
    block = TextBlock();
    block.continues = continues_;
    continues_ = false;
    std::size_t end = 0;
    for (std::size_t wanted = kBlockBytes; end == 0; wanted += kBlockBytes) {
      fill(wanted);
      if (ended_) break;
      end = find_border();
      if (end > 0) break;
      if (input().json_lines) {
        check_line_length();
      } else {
        end = find_cut();
        continues_ = end > 0;
      }
    }
    take(block, ended_ ? buffer_.size() : end);
  } while (block.text.empty());
  return true;
}

bool FileBlocks::open_next() {
  if (next_input_ == inputs_.size()) return false;
  const InputFile& file = inputs_[next_input_++];
  stream_ = file.is_standard_input() ? InputStream::standard_input(go_on_) : InputStream(file.path);
  ended_ = continues_ = false;
  buffer_.clear();
  scanned_ = 0;
  line_ = 1;
  fill(kByteOrderMark.size());
  if (file.json_lines && buffer_.starts_with(kByteOrderMark)) {
    buffer_.erase(0, kByteOrderMark.size());
  }
  return true;
}

/// Reads until the buffer holds more than `wanted` bytes or the input has ended.
void FileBlocks::fill(std::size_t wanted) {
  while (buffer_.size() <= wanted && !ended_) {
    const std::size_t size = buffer_.size();
    buffer_.resize(wanted + 1);
    std::size_t got = 0;
    try {
      got = stream_->read_some(buffer_.data() + size, buffer_.size() - size);
    } catch (...) {
      buffer_.resize(size);
      throw;
    }
    buffer_.resize(size + got);
    ended_ = got == 0;
  }
}

void FileBlocks::check_line_length() const {
  if (buffer_.size() < kLongestJsonLine) return;
  fail(ErrorKind::kInput, "prepare", input().path.string(), ": line ", line_,
       ": expected a line of at most ", kLongestJsonLine, " bytes, got a longer one");
}

std::string_view FileBlocks::separator() const {
  return input().json_lines ? "\n" : std::string_view(separator_);
}

/// The end of the last separator in the buffer; 0 if there is none. They are found from left to
/// right and do not overlap.
std::size_t FileBlocks::find_border() {
  const std::string_view wanted = separator();
  if (wanted.empty()) return 0;
  std::size_t border = 0;
  if (wanted.size() == 1) {
    const std::size_t found = std::string_view(buffer_).substr(scanned_).rfind(wanted[0]);
    if (found != std::string_view::npos) border = scanned_ + found + 1;
  } else {
    while (const void* found = ::memmem(buffer_.data() + scanned_, buffer_.size() - scanned_,
                                        wanted.data(), wanted.size())) {
      border = static_cast<std::size_t>(static_cast<const char*>(found) - buffer_.data()) +
               wanted.size();
      scanned_ = border;
    }
  }
  scanned_ = std::max(scanned_, buffer_.size() - std::min(buffer_.size(), wanted.size() - 1));
  return border;
}

/// Where to cut a document that is longer than the buffer; 0 to read more of it first. A separator
/// of which the buffer has only the beginning stays whole.
std::size_t FileBlocks::find_cut() const {
  const std::size_t kept = separator().empty() ? 0 : separator().size() - 1;
  const auto text = std::string_view(buffer_).substr(0, buffer_.size() - kept);
  const std::size_t cut = last_safe_cut(text);
  return cut == 0 && buffer_.size() >= kLongestStretch ? last_character_border(text) : cut;
}

/// Moves the first bytes of the buffer into the block, and closes the input where it has ended.
void FileBlocks::take(TextBlock& block, std::size_t bytes) {
  block.input = &input();
  block.first_line = line_;
  if (bytes == buffer_.size()) {
    block.text = std::exchange(buffer_, std::string());
  } else {
    block.text = buffer_.substr(0, bytes);
    buffer_.erase(0, bytes);
  }
  scanned_ -= std::min(scanned_, bytes);
  if (input().json_lines) line_ += count_lines(block.text);
  block.consumed = earlier_bytes_ + stream_->consumed();
  if (ended_) {
    earlier_bytes_ = block.consumed;
    stream_.reset();
  }
}

bool TaleBlocks::next(TextBlock& block) {
  block = TextBlock();
  while (drawn_ < wanted_ && block.text.size() < kBlockBytes) {
    const Tale tale = make_tale(seed_, next_tale_++);
    block.text += tale.text;
    block.documents.push_back({tale.text.size(), tale.bits});
    drawn_ += static_cast<std::int64_t>(tale.text.size());
  }
  block.consumed = static_cast<std::uint64_t>(std::min(drawn_, wanted_));
  return !block.text.empty();
}

}  // namespace llmc
