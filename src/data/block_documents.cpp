#include "data/block_documents.h"

#include <algorithm>
#include <string>

#include "data/json_lines.h"
#include "llmc/core/error.h"

namespace llmc {
namespace {

class DocumentFinder {
 public:
  DocumentFinder(const TextBlock& block, const PrepareOptions& options,
                 const std::function<void(const BlockDocument&)>& take)
      : block_(block), options_(options), take_(take), continues_(block.continues) {}

  void run() {
    if (!block_.documents.empty()) {
      add_known();
    } else if (block_.input->json_lines) {
      add_json_lines();
    } else {
      add_split();
    }
  }

 private:
  void add(std::string_view text, double bits = 0) {
    take_({text, bits, continues_});
    continues_ = false;
  }

  void add_unless_empty(std::string_view text) {
    if (!text.empty() || continues_) add(text);
  }

  void add_known() {
    std::string_view rest = block_.text;
    for (const KnownDocument& document : block_.documents) {
      add(rest.substr(0, document.bytes), document.bits);
      rest.remove_prefix(document.bytes);
    }
  }

  void add_split() {
    const std::string separator = separator_of(options_);
    if (separator.empty()) return add_unless_empty(block_.text);
    std::string_view rest = block_.text;
    while (!rest.empty()) {
      const std::size_t found = rest.find(separator);
      const bool last = found == rest.npos;
      const std::size_t next = last ? rest.size() : found + separator.size();
      std::string_view text = rest.substr(0, found);
      if (options_.split == DocumentSplit::kBlankLine) {
        add(rest.substr(0, next));
      } else {
        const bool is_line = options_.split == DocumentSplit::kLine && !last;
        if (is_line && text.ends_with('\r')) text.remove_suffix(1);
        add_unless_empty(text);
      }
      rest.remove_prefix(next);
    }
  }

  void add_json_lines() {
    std::int64_t line = block_.first_line;
    std::string text, error;
    for (std::string_view rest = block_.text; !rest.empty(); ++line) {
      const std::size_t end = std::min(rest.find('\n'), rest.size());
      const std::string_view json = rest.substr(0, end);
      rest.remove_prefix(std::min(end + 1, rest.size()));
      if (json.find_first_not_of(" \t\r") == json.npos) continue;
      text.clear();
      if (!extract_json_text(text, error, json, options_.field)) {
        fail(ErrorKind::kInput, "prepare", block_.input->path.string(), ": line ", line, ": ",
             error);
      }
      add_unless_empty(text);
    }
  }

  const TextBlock& block_;
  const PrepareOptions& options_;
  const std::function<void(const BlockDocument&)>& take_;
  bool continues_;  // the next document began in an earlier block
};

}  // namespace

void for_each_document(const TextBlock& block, const PrepareOptions& options,
                       const std::function<void(const BlockDocument&)>& take) {
  DocumentFinder(block, options, take).run();
}

}  // namespace llmc
