#include "sample/printer.h"

#include <ostream>

namespace llmc::cli {

Printer::Printer(std::ostream& out, const Tokenizer& tokenizer,
                 const std::vector<std::string>& stops, const std::vector<std::string>& prompts)
    : out_(out) {
  texts_.reserve(prompts.size());
  for (const std::string& prompt : prompts) {
    texts_.push_back({TextStream(tokenizer, stops), texts_.empty() ? prompt : "\n---\n" + prompt});
  }
  print();
}

bool Printer::push(std::size_t text, std::int32_t id) {
  Text& t = texts_[text];
  t.waiting += t.stream.push(id);
  print();
  return !t.stream.ended() && static_cast<bool>(out_);
}

void Printer::finish(std::size_t end) {
  for (std::size_t i = 0; i < end; ++i) texts_[i].waiting += texts_[i].stream.finish();
  print();
}

void Printer::print() {
  for (; live_ < texts_.size(); ++live_) {
    Text& text = texts_[live_];
    out_ << text.waiting << std::flush;
    text.waiting.clear();
    if (!text.stream.ended()) return;
  }
}

}  // namespace llmc::cli
