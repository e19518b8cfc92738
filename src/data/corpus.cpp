#include "llmc/data/corpus.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <unordered_map>

#include "data/tale_grammar.h"
#include "llmc/core/error.h"
#include "llmc/core/rng.h"

namespace llmc {
namespace {

constexpr std::int32_t kEndOfText = 256;

std::int64_t total_weight(const std::vector<TaleOption>& options) {
  std::int64_t total = 0;
  for (const TaleOption& option : options) total += option.weight;
  return total;
}

double bits_of(const TaleOption& option, std::int64_t total) {
  return std::log2(static_cast<double>(total) / static_cast<double>(option.weight));
}

/// The random words of one tale, in order.
class Draws {
 public:
  Draws(std::uint64_t seed, std::int64_t index)
      : seed_(seed), index_(static_cast<std::uint64_t>(index)) {}

  std::uint32_t next() {
    if (used_ % words_.size() == 0) {
      // The high bit keeps these numbers apart from others that are drawn from the same seed.
      words_ = philox4x32(seed_, index_, (std::uint64_t{1} << 63) | used_);
    }
    return words_[used_++ % words_.size()];
  }

 private:
  std::uint64_t seed_;
  std::uint64_t index_;
  std::size_t used_ = 0;
  std::array<std::uint32_t, 4> words_{};
};

/// Expected values and the maximum over the ways to go on from a state.
struct Outlook {
  double bits = 0;
  double bytes = 0;
  std::int64_t most_bytes = 0;
};

using Outlooks = std::unordered_map<std::uint64_t, Outlook>;

Outlook outlook_from(const TaleState& state, Outlooks& known) {
  if (const auto found = known.find(state.key()); found != known.end()) return found->second;
  std::vector<TaleOption> options;
  tale_options(options, state);
  const std::int64_t total = total_weight(options);
  Outlook outlook;
  for (const TaleOption& option : options) {
    const Outlook rest = outlook_from(option.next, known);
    const double p = static_cast<double>(option.weight) / static_cast<double>(total);
    const auto bytes = static_cast<std::int64_t>(option.text.size());
    outlook.bits += p * (bits_of(option, total) + rest.bits);
    outlook.bytes += p * (static_cast<double>(bytes) + rest.bytes);
    outlook.most_bytes = std::max(outlook.most_bytes, bytes + rest.most_bytes);
  }
  known.emplace(state.key(), outlook);
  return outlook;
}

const Outlook& outlook() {
  static const Outlook whole = [] {
    Outlooks known;
    return outlook_from({}, known);
  }();
  return whole;
}

}  // namespace

Tale make_tale(std::uint64_t seed, std::int64_t index) {
  Draws draws(seed, index);
  Tale tale;
  TaleState state;
  std::vector<TaleOption> options;
  for (tale_options(options, state); !options.empty(); tale_options(options, state)) {
    const std::int64_t total = total_weight(options);
    auto point = static_cast<std::int64_t>(
        (std::uint64_t{draws.next()} * static_cast<std::uint64_t>(total)) >> 32);
    std::size_t chosen = 0;
    while (point >= options[chosen].weight) point -= options[chosen++].weight;
    tale.text += options[chosen].text;
    tale.bits += bits_of(options[chosen], total);
    state = options[chosen].next;
  }
  return tale;
}

double tale_bits(std::string_view text) {
  double bits = 0;
  std::size_t at = 0;
  TaleState state;
  std::vector<TaleOption> options;
  for (tale_options(options, state); !options.empty(); tale_options(options, state)) {
    const auto match = std::find_if(options.begin(), options.end(), [&](const TaleOption& option) {
      return text.substr(at).starts_with(option.text);
    });
    if (match == options.end()) {
      fail(ErrorKind::kInput, "corpus",
           "expected a tale, got a text that goes on otherwise at byte ", at, ": '",
           text.substr(at, 20), "'");
    }
    bits += bits_of(*match, total_weight(options));
    at += match->text.size();
    state = match->next;
  }
  if (at != text.size()) {
    fail(ErrorKind::kInput, "corpus", "expected one tale, got ", text.size() - at,
         " bytes after its end at byte ", at);
  }
  return bits;
}

TaleStatistics tale_statistics() {
  return {outlook().bits, outlook().bytes};
}

std::int64_t longest_tale() {
  return outlook().most_bytes;
}

TaleSource::TaleSource(std::int64_t B, std::int64_t T, std::uint64_t seed, int rank, int world_size)
    : B_(B), T_(T), seed_(seed), rank_(rank), world_size_(world_size) {
  if (B < 1 || world_size < 1 || rank < 0 || rank >= world_size) {
    fail(ErrorKind::kConfig, "corpus",
         "expected 1 row or more and a rank below world_size, got B = ", B, ", rank ", rank, " of ",
         world_size);
  }
  if (T < longest_tale() + 1) {
    fail(ErrorKind::kConfig, "corpus", "expected rows of ", longest_tale() + 1,
         " tokens or more, which hold any tale, got T = ", T);
  }
}

void TaleSource::next(Batch& batch) {
  batch.inputs.resize(static_cast<std::size_t>(B_ * T_));
  batch.targets.resize(static_cast<std::size_t>(B_ * T_));
  bits_ = 0;
  for (std::int64_t b = 0; b < B_; ++b) {
    fill_row(batch.inputs.data() + b * T_, batch.targets.data() + b * T_,
             next_row_ + rank_ * B_ + b);
  }
  next_row_ += world_size_ * B_;
}

void TaleSource::fill_row(std::int32_t* inputs, std::int32_t* targets, std::int64_t row) {
  std::fill(inputs, inputs + T_, kEndOfText);
  std::fill(targets, targets + T_, kIgnoredTarget);
  std::int64_t at = 0;                    // of the last end-of-text in the inputs
  const std::int64_t tales_per_row = T_;  // more than fit, so that rows share no tale
  for (std::int64_t i = 0; at + longest_tale() + 1 <= T_; ++i) {
    const Tale tale = make_tale(seed_, row * tales_per_row + i);
    bits_ += tale.bits;
    for (const char c : tale.text) {
      targets[at++] = static_cast<unsigned char>(c);
      if (at < T_) inputs[at] = static_cast<unsigned char>(c);
    }
    targets[at++] = kEndOfText;
  }
}

SourceState TaleSource::state() const {
  return {{"row", next_row_}, {"seed", static_cast<std::int64_t>(seed_)}, {"T", T_}};
}

void TaleSource::restore(const SourceState& saved) {
  SourceState here = state();
  const auto row = saved.find("row");
  if (row != saved.end() && row->second >= 0) here["row"] = row->second;
  if (saved != here) {
    fail(ErrorKind::kInput, "corpus",
         "expected a position in tales of the same seed and T, got one of another source");
  }
  next_row_ = row->second;
}

}  // namespace llmc
