#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace llmc {

/// Where a tale stands: what comes next, and what of the tale so far the rest depends on.
struct TaleState {
  enum class Phase : std::uint8_t {
    kHero,
    kManner,
    kAnimal,
    kOwning,
    kColour,
    kThing,
    kNextSentence,
    kSubject,
    kVerb,
    kPlace,
    kFeeling,
    kFriend,
    kLastSubject,
    kLastVerb,
    kLastWords,
    kEnd,
  };
  static constexpr std::uint8_t kNobody = 255;

  Phase phase = Phase::kHero;
  std::uint8_t hero = 0;
  std::uint8_t companion = kNobody;
  std::uint8_t thing = 0;
  std::uint8_t middle_sentences = 0;

  bool operator==(const TaleState&) const = default;
  /// Different for different states.
  std::uint64_t key() const;
};

/// One way to go on: its text, its probability as weight / sum of the weights, and what follows.
struct TaleOption {
  std::string text;
  std::int64_t weight = 1;
  TaleState next;
};

/// Fills `options` with all ways to go on; none at the end. No option's text is empty or begins
/// with the text of another one, and no state comes again after its options, so a text can be taken
/// apart in one way only, from left to right.
void tale_options(std::vector<TaleOption>& options, const TaleState& state);

}  // namespace llmc
