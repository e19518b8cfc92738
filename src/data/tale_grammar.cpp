#include "data/tale_grammar.h"

#include <cstddef>
#include <initializer_list>
#include <iterator>
#include <span>
#include <string_view>

namespace llmc {
namespace {

using Phase = TaleState::Phase;

struct Character {
  std::string_view name;
  std::string_view pronoun;
};

constexpr Character kCharacters[] = {
    {"Ann", "she"},  {"Ben", "he"},  {"Cleo", "she"}, {"Dan", "he"},
    {"Emma", "she"}, {"Finn", "he"}, {"Gina", "she"}, {"Hugo", "he"},
    {"Iris", "she"}, {"Jack", "he"}, {"Kate", "she"}, {"Leo", "he"},
};
constexpr std::string_view kManners[] = {"tiny", "old",  "bold",  "shy",
                                         "kind", "wild", "proud", "clever"};
constexpr std::string_view kAnimals[] = {"fox",  "owl",  "bear", "hen",  "mouse",
                                         "goat", "duck", "cat",  "wolf", "pig"};
constexpr std::string_view kOwning[] = {"had", "found", "made", "liked"};
constexpr std::string_view kColours[] = {"a red",  "a blue", "a green",   "a white",
                                         "a pink", "a gold", "an orange", "an ugly"};
constexpr std::string_view kThings[] = {"kite", "drum",  "ball", "hat",  "lamp", "spoon",
                                        "cup",  "flute", "rope", "vase", "mask", "ring"};
constexpr std::string_view kConnectives[] = {" Then ", " Soon ", " Now ",
                                             " But ",  " Yet ",  " And "};
constexpr std::string_view kMoving[] = {"ran", "swam", "flew", "rode", "hopped", "crept"};
constexpr std::string_view kPlaces[] = {"hill", "river", "farm", "lake",   "cave",
                                        "sea",  "tower", "mill", "garden", "beach"};
constexpr std::string_view kHandling[] = {"lost", "hid",  "shook",  "washed",
                                          "sold", "drew", "kissed", "broke"};
constexpr std::string_view kFeelings[] = {"happy", "sad",  "tired", "glad",
                                          "cold",  "warm", "angry", "lost"};
constexpr std::string_view kEndings[] = {"slept",  "sang",   "smiled", "danced",
                                         "rested", "jumped", "wept",   "ate"};

constexpr std::uint8_t kMostMiddleSentences = 4;

using Parts = std::initializer_list<std::string_view>;

/// Collects the options of one state.
class Collector {
 public:
  Collector(std::vector<TaleOption>& options, const TaleState& state)
      : options_(options), state_(state) {}

  void add(const TaleState& next, std::int64_t weight, Parts parts) {
    TaleOption& option = options_.emplace_back();
    for (const std::string_view part : parts) option.text += part;
    option.weight = weight;
    option.next = next;
  }
  /// An option after which only the phase differs.
  void add(Phase next, std::int64_t weight, Parts parts) {
    TaleState state = state_;
    state.phase = next;
    add(state, weight, parts);
  }
  /// Each word as an option of weight 1.
  void add_all(Phase next, std::span<const std::string_view> words, std::string_view end = "") {
    for (const std::string_view word : words) add(next, 1, {word, end});
  }

 private:
  std::vector<TaleOption>& options_;
  const TaleState state_;
};

void add_heroes(Collector& collector, TaleState state) {
  state.phase = Phase::kManner;
  for (std::size_t i = 0; i < std::size(kCharacters); ++i) {
    state.hero = static_cast<std::uint8_t>(i);
    collector.add(state, 1, {kCharacters[i].name, " the "});
  }
}

void add_things(Collector& collector, TaleState state) {
  state.phase = Phase::kNextSentence;
  for (std::size_t i = 0; i < std::size(kThings); ++i) {
    state.thing = static_cast<std::uint8_t>(i);
    collector.add(state, 1, {kThings[i], "."});
  }
}

void add_friends(Collector& collector, TaleState state) {
  state.phase = Phase::kNextSentence;
  for (std::size_t i = 0; i < std::size(kCharacters); ++i) {
    if (i == state.hero) continue;
    state.companion = static_cast<std::uint8_t>(i);
    collector.add(state, 1, {kCharacters[i].name, "."});
  }
}

/// One sentence at least comes between the first and the last one, kMostMiddleSentences at most.
void add_next_sentences(Collector& collector, TaleState state) {
  const std::uint8_t before = state.middle_sentences++;
  state.phase = Phase::kSubject;
  if (before < kMostMiddleSentences) {
    for (const std::string_view word : kConnectives) collector.add(state, 1, {word});
  }
  if (before > 0) {
    collector.add(Phase::kLastSubject, 1, {" So "});
    collector.add(Phase::kLastSubject, 1, {" At last "});
  }
}

void add_verbs(Collector& collector, const TaleState& state) {
  for (const std::string_view verb : kMoving) collector.add(Phase::kPlace, 2, {verb, " to the "});
  for (const std::string_view verb : kHandling) {
    collector.add(Phase::kNextSentence, 2, {verb, " the ", kThings[state.thing], "."});
  }
  collector.add(Phase::kFeeling, 8, {"felt "});
  if (state.companion == TaleState::kNobody) collector.add(Phase::kFriend, 8, {"met "});
}

}  // namespace

std::uint64_t TaleState::key() const {
  std::uint64_t key = static_cast<std::uint64_t>(phase);
  for (const std::uint8_t part : {hero, companion, thing, middle_sentences}) key = key << 8 | part;
  return key;
}

void tale_options(std::vector<TaleOption>& options, const TaleState& state) {
  options.clear();
  Collector collector(options, state);
  const Character& hero = kCharacters[state.hero];
  const bool has_friend = state.companion != TaleState::kNobody;
  const std::string_view companion = has_friend ? kCharacters[state.companion].name : "";
  switch (state.phase) {
    case Phase::kHero:
      return add_heroes(collector, state);
    case Phase::kManner:
      return collector.add_all(Phase::kAnimal, kManners, " ");
    case Phase::kAnimal:
      return collector.add_all(Phase::kOwning, kAnimals, " ");
    case Phase::kOwning:
      return collector.add_all(Phase::kColour, kOwning, " ");
    case Phase::kColour:
      return collector.add_all(Phase::kThing, kColours, " ");
    case Phase::kThing:
      return add_things(collector, state);
    case Phase::kNextSentence:
      return add_next_sentences(collector, state);
    case Phase::kSubject:
      collector.add(Phase::kVerb, 3, {hero.pronoun, " "});
      collector.add(Phase::kVerb, 2, {hero.name, " "});
      if (has_friend) collector.add(Phase::kVerb, 2, {companion, " "});
      return;
    case Phase::kVerb:
      return add_verbs(collector, state);
    case Phase::kPlace:
      return collector.add_all(Phase::kNextSentence, kPlaces, ".");
    case Phase::kFeeling:
      return collector.add_all(Phase::kNextSentence, kFeelings, ".");
    case Phase::kFriend:
      return add_friends(collector, state);
    case Phase::kLastSubject:
      collector.add(Phase::kLastVerb, 2, {hero.pronoun, " "});
      collector.add(Phase::kLastVerb, 2, {hero.name, " "});
      return;
    case Phase::kLastVerb:
      return collector.add_all(Phase::kLastWords, kEndings);
    case Phase::kLastWords:
      collector.add(Phase::kEnd, 2, {".\n"});
      collector.add(Phase::kEnd, 1, {" all day.\n"});
      collector.add(Phase::kEnd, 1, {" all night.\n"});
      collector.add(Phase::kEnd, 2, {" by the ", kThings[state.thing], ".\n"});
      if (has_friend) collector.add(Phase::kEnd, 2, {" with ", companion, ".\n"});
      return;
    case Phase::kEnd:
      return;
  }
}

}  // namespace llmc
