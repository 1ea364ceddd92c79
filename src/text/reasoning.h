// Separates generated text into the model's reasoning and its answer while it streams.
#pragma once

#include <string>
#include <string_view>

namespace sluice::text {

/// Whether a rendered prompt leaves a think block open, so that generated text begins as reasoning: it ends
/// in
/// `<think>`, white space aside.
bool ends_in_open_think(std::string_view prompt);

/// Text newly known to be one or the other; either may be empty.
struct SplitText {
  std::string reasoning;
  std::string answer;
};

/// The first `</think>` ends the reasoning; the newlines directly before and after the tag belong to neither
/// part. Text may come in pieces of any size: the parts, joined, are the same for every split.
class ReasoningSplitter {
 public:
  /// `inside`: whether the text begins as reasoning. If not, all of it is answer, tags included.
  explicit ReasoningSplitter(bool inside) : state_(inside ? State::kReasoning : State::kAnswer) {}

  SplitText push(std::string_view text);

  /// Ends the text; returns what was held back. Without a `</think>` everything was reasoning.
  SplitText finish();

  /// Whether the reasoning is still open.
  [[nodiscard]] bool inside() const { return state_ == State::kReasoning; }

 private:
  enum class State { kReasoning, kAfterTag, kAnswer };
  State state_;
  std::string held_;  // reasoning that may turn out to be newlines before the tag, and a part of the tag
};

}  // namespace sluice::text
