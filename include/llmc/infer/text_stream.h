#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "llmc/data/tokenizer.h"

namespace llmc {

/// Turns the tokens of a text that is being drawn into what can be printed so far: whole
/// characters, and nothing of a stop string, at which the text ends.
class TextStream {
 public:
  /// The tokenizer must outlive the stream. An empty stop string is a config error.
  explicit TextStream(const Tokenizer& tokenizer, std::vector<std::string> stops = {});

  /// Takes one token and returns the text that it completes. End-of-text ends the text and prints
  /// nothing; what comes after the end is ignored.
  std::string push(std::int32_t id);
  /// Returns what is still held back, in case no more tokens come.
  std::string finish();
  /// Whether the text is at its end.
  bool ended() const { return ended_; }

 private:
  std::string release(std::string_view more);

  const Tokenizer& tokenizer_;
  StreamDecoder decoder_;
  std::vector<std::string> stops_;
  std::string held_;  // might be the beginning of a stop string
  bool ended_ = false;
};

}  // namespace llmc
