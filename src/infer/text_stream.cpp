#include "llmc/infer/text_stream.h"

#include <algorithm>

#include "llmc/core/error.h"

namespace llmc {
namespace {

/// Length of the longest end of `text` with which `stop` begins.
std::size_t overlap(std::string_view text, std::string_view stop) {
  for (std::size_t n = std::min(text.size(), stop.size()); n > 0; --n) {
    if (text.ends_with(stop.substr(0, n))) return n;
  }
  return 0;
}

}  // namespace

TextStream::TextStream(const Tokenizer& tokenizer, std::vector<std::string> stops)
    : tokenizer_(tokenizer), decoder_(tokenizer), stops_(std::move(stops)) {
  for (const std::string& stop : stops_) {
    if (stop.empty()) {
      fail(ErrorKind::kConfig, "sampler", "stop: expected a text, got an empty one");
    }
  }
}

std::string TextStream::push(std::int32_t id) {
  if (ended_) return {};
  if (id == tokenizer_.begin_of_text()) return finish();
  return release(decoder_.push(id));
}

std::string TextStream::finish() {
  if (ended_) return {};
  std::string out = release(decoder_.finish());
  if (!ended_) out += held_;
  held_.clear();
  ended_ = true;
  return out;
}

/// Adds text and returns what no stop string can claim any more.
std::string TextStream::release(std::string_view more) {
  held_ += more;
  std::size_t end = std::string::npos, kept = 0;
  for (const std::string& stop : stops_) {
    end = std::min(end, held_.find(stop));
    kept = std::max(kept, overlap(held_, stop));
  }
  ended_ = end != std::string::npos;
  std::string out = held_.substr(0, ended_ ? end : held_.size() - kept);
  held_.erase(0, ended_ ? held_.size() : out.size());
  return out;
}

}  // namespace llmc
