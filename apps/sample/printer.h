#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>
#include <vector>

#include "llmc/infer/text_stream.h"

namespace llmc::cli {

/// Prints texts that are drawn side by side one after the other, as they come: the first one that
/// has not ended is printed live, those behind it wait. A line of --- stands between two.
class Printer {
 public:
  /// prompts: what each text begins with.
  Printer(std::ostream& out, const Tokenizer& tokenizer, const std::vector<std::string>& stops,
          const std::vector<std::string>& prompts);

  /// A token of a text; false once the text has ended or nobody can read it.
  bool push(std::size_t text, std::int32_t id);
  /// No more tokens come for the texts before `end`.
  void finish(std::size_t end);

 private:
  struct Text {
    TextStream stream;
    std::string waiting;  // to be printed
  };
  void print();

  std::ostream& out_;
  std::vector<Text> texts_;
  std::size_t live_ = 0;
};

}  // namespace llmc::cli
