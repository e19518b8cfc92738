#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace llmc {

/// Turns bytes into token ids and back. Every implementation encodes any sequence of bytes, valid
/// UTF-8 or not, and decode(encode(x)) == x. Const members may be called from several threads.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  /// "byte", "gpt2", "llama3", or "bpe" for other vocabularies.
  virtual std::string name() const = 0;
  /// Ids are 0 to vocab_size() - 1.
  virtual std::int64_t vocab_size() const = 0;
  /// The id that ends a text. No text encodes to it.
  virtual std::int32_t end_of_text() const = 0;
  /// The id that stands before each document of training data, so that a model trained on them ends
  /// its texts with it: Llama 3's begin-of-text, for all others end_of_text.
  virtual std::int32_t begin_of_text() const { return end_of_text(); }
  /// The bytes of a token; those of a special token are its printed name. An id outside the
  /// vocabulary is an input error.
  virtual std::string_view token_bytes(std::int32_t id) const = 0;

  /// Appends the ids of a text to `ids`. Special tokens are never produced.
  virtual void encode(std::vector<std::int32_t>& ids, std::string_view text) const = 0;
  std::vector<std::int32_t> encode(std::string_view text) const;
  /// The bytes of the ids, one after the other; special tokens yield their printed names.
  std::string decode(const std::vector<std::int32_t>& ids) const;

  /// Identifies what the ids mean: equal for tokenizers that have the same tokens under the same
  /// ids, however they were loaded. 16 hexadecimal digits.
  std::string hash() const;
  /// Writes the tokenizer's files into a folder, from which load_tokenizer loads it again.
  virtual void save(const std::filesystem::path& folder) const = 0;
};

/// Bytes as ids 0 to 255, end-of-text as 256.
std::unique_ptr<Tokenizer> make_byte_tokenizer();

/// GPT-2's byte-pair encoding from its two files: `vocab.json` (token to id) and `merges.txt`
/// (pairs, most frequent first), under any names. Bytes that are not valid UTF-8 count as
/// characters that are neither letters, digits nor spaces.
std::unique_ptr<Tokenizer> load_gpt2_tokenizer(const std::filesystem::path& vocab_json,
                                               const std::filesystem::path& merges_txt);

/// Hugging Face's tokenizer.json. It must describe byte-level BPE that splits as GPT-2 or Llama 3
/// do and changes nothing else about a text; any other kind is an input error that names what it
/// is. Added tokens must be special, one of them <|endoftext|>, <|end_of_text|> or </s>.
std::unique_ptr<Tokenizer> load_tokenizer_json(const std::filesystem::path& path);

/// A rank file of tiktoken, which says nothing but tokens: 50,256 ranks are GPT-2's, 128,000 are
/// Llama 3's, to which its 256 special tokens are added. Any other number is an input error.
std::unique_ptr<Tokenizer> load_tiktoken(const std::filesystem::path& path);

/// llm.c's tokenizer file (docs/formats.md), which holds tokens but no merges. Where its ids
/// include the 256 single bytes and follow the order in which merges were learned, as GPT-2's do,
/// the merges are derived from them. Otherwise the tokenizer decodes only: encode is an input error
/// that names the first id that contradicts this.
std::unique_ptr<Tokenizer> load_llmc_tokenizer(const std::filesystem::path& path);
void save_llmc_tokenizer(const Tokenizer& tokenizer, const std::filesystem::path& path);

/// Loads a tokenizer: "byte"; a folder that `save` wrote, or that holds tokenizer.json, GPT-2's two
/// files (vocab.json and merges.txt, encoder.json and vocab.bpe, or either with gpt2_ in front),
/// tokenizer.tiktoken, a rank file called tokenizer.model, or tokenizer.bin, in this order; or a
/// file: a tokenizer.json, one of GPT-2's two (the other is found beside it), a rank file, or
/// llm.c's tokenizer file.
std::unique_ptr<Tokenizer> load_tokenizer(const std::filesystem::path& name);

/// Prints ids one at a time without ever splitting a UTF-8 character.
class StreamDecoder {
 public:
  /// The tokenizer must outlive the decoder.
  explicit StreamDecoder(const Tokenizer& tokenizer) : tokenizer_(&tokenizer) {}

  /// Takes one id and returns the bytes that are now complete: every character whose last byte has
  /// arrived, and bytes that cannot belong to one as they are.
  std::string push(std::int32_t id);
  /// Returns what is still held back, as it is.
  std::string finish();

 private:
  const Tokenizer* tokenizer_;
  std::string pending_;
};

}  // namespace llmc
