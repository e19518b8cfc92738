#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/input_stream.h"
#include "data/input_files.h"
#include "llmc/data/prepare.h"

namespace llmc {

/// A document that a source has already found in its text.
struct KnownDocument {
  std::size_t bytes = 0;
  double bits = 0;  ///< of the text, in the distribution it was drawn from
};

/// Some text to encode: whole documents, but for a document that is longer than a block, which
/// goes on in the next ones.
struct TextBlock {
  std::string text;
  const InputFile* input = nullptr;
  std::int64_t first_line = 1;           ///< of JSON Lines: the number of the first one
  bool continues = false;                ///< the first document began in an earlier block
  std::vector<KnownDocument> documents;  ///< where the source knows them: they fill `text`
  std::uint64_t consumed = 0;            ///< bytes of all inputs read up to here
};

/// Text one block after the other.
class BlockSource {
 public:
  virtual ~BlockSource() = default;
  /// Fills in the next block; false at the end.
  virtual bool next(TextBlock& block) = 0;
};

/// About as much text as a block holds.
constexpr std::size_t kBlockBytes = std::size_t{1} << 18;
/// The longest stretch of one document that is searched for a place to cut it.
constexpr std::size_t kLongestStretch = std::size_t{1} << 20;
constexpr std::size_t kLongestJsonLine = std::size_t{1} << 28;

/// What stands between the documents of a text; empty where nothing does.
std::string separator_of(const PrepareOptions& options);

/// The text of the inputs. The first two arguments must outlive the source. While the standard
/// input gives nothing, `go_on` may end it by returning false.
class FileBlocks : public BlockSource {
 public:
  FileBlocks(const std::vector<InputFile>& inputs, const PrepareOptions& options,
             std::function<bool()> go_on = {})
      : inputs_(inputs), separator_(separator_of(options)), go_on_(std::move(go_on)) {}
  bool next(TextBlock& block) override;

 private:
  bool open_next();
  void fill(std::size_t wanted);
  void check_line_length() const;
  std::string_view separator() const;
  std::size_t find_border();
  std::size_t find_cut() const;
  void take(TextBlock& block, std::size_t bytes);
  const InputFile& input() const { return inputs_[next_input_ - 1]; }

  const std::vector<InputFile>& inputs_;
  const std::string separator_;
  const std::function<bool()> go_on_;
  std::size_t next_input_ = 0;
  std::optional<InputStream> stream_;
  bool ended_ = false;       // the stream has no more than `buffer_`
  std::string buffer_;       // read, but in no block yet
  std::size_t scanned_ = 0;  // no separator begins in `buffer_` before this
  bool continues_ = false;
  std::int64_t line_ = 1;
  std::uint64_t earlier_bytes_ = 0;  // of the inputs that have ended
};

/// Tales until there are `bytes` of them.
class TaleBlocks : public BlockSource {
 public:
  TaleBlocks(std::uint64_t seed, std::int64_t bytes) : seed_(seed), wanted_(bytes) {}
  bool next(TextBlock& block) override;

 private:
  std::uint64_t seed_;
  std::int64_t wanted_;
  std::int64_t next_tale_ = 0;
  std::int64_t drawn_ = 0;  // bytes
};

}  // namespace llmc
