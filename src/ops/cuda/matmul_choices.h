#pragma once

#include <array>
#include <cstddef>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>

namespace llmc::cuda {

/// cuBLASLt's algorithm for a kind of product: opaque bytes that mean the same as long as the
/// library's version does.
struct MatmulChoice {
  std::array<unsigned char, 64> algorithm;
  double microseconds;  ///< as timed; 0: it was not
};

/// The algorithms chosen for one GPU model and library version, and their text: one line a choice,
/// of tab-separated fields: GPU, library version, product, algorithm (hexadecimal), microseconds,
/// and the XXH64 of the line so far, which guards the opaque bytes against damage.
class MatmulChoices {
 public:
  MatmulChoices(std::string gpu, std::size_t library);

  /// Null if there is none. `product` names a kind of product; it holds no tabs.
  const MatmulChoice* find(const std::string& product) const;
  void set(const std::string& product, const MatmulChoice& choice);

  std::string text() const;

  /// What became of the lines of a text.
  struct Merged {
    std::size_t taken = 0;
    std::size_t foreign = 0;  ///< of another GPU or library version
    std::size_t damaged = 0;
  };
  /// Takes the choices of the text that are for this GPU and library, in place of its own.
  Merged merge(std::string_view text);

  /// Reads a file that `save` wrote, if it is there. A damaged or unreadable one costs a warning.
  void load(const std::filesystem::path& path);
  /// Adds the timed choices to a file, which keeps its other lines. Throws io errors.
  void save(const std::filesystem::path& path) const;

 private:
  std::string gpu_;
  std::size_t library_;
  std::map<std::string, MatmulChoice> choices_;  // by product
};

}  // namespace llmc::cuda
