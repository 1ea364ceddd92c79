// Ends generated text where a stop string appears, without ever showing a part of it.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sluice::text {

/// Feed it text in pieces of any size; it releases what cannot belong to a stop string any more and keeps the
/// rest. The outcome does not depend on how the text is split: it ends at the stop string that is complete
/// first and, of several complete at the same byte, the longest.
///
/// With reasoning models, split reasoning from the answer first (reasoning.h) and look for stop strings in
/// the answer: a stop string found while thinking would end the text without an answer, and text held back
/// here could hide the tag that ends the thinking.
class StopStrings {
 public:
  /// Empty strings in `stops` never match.
  explicit StopStrings(std::vector<std::string> stops);

  /// Takes more text and returns what is safe to show. After a stop was found everything is swallowed.
  std::string push(std::string_view text);

  /// Ends the text and returns what was still held back: the start of a stop string that never came.
  std::string finish();

  [[nodiscard]] bool stopped() const { return matched_.has_value(); }

  /// The stop string that was found.
  [[nodiscard]] std::optional<std::string> matched() const;

 private:
  struct Pattern {
    std::string text;
    // fallback[n]: the longest proper prefix of the first n bytes that also ends them.
    std::vector<std::size_t> fallback;
    std::size_t matched = 0;  // bytes of `text` that the stream ends with
  };
  std::vector<Pattern> patterns_;
  std::string held_;  // the end of the stream, as long as the longest partial match
  std::optional<std::size_t> matched_;
};

}  // namespace sluice::text
