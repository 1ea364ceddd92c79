// Turns the bytes of generated tokens into text that is whole at every moment.
#pragma once

#include <string>
#include <string_view>

namespace sluice::text {

/// Tokens may end inside a character; such bytes wait here until the character is complete. The pieces
/// released, in order, are what decoding all bytes at once would give, but for a tail cut by finish().
class Utf8Stream {
 public:
  /// Takes the next bytes and returns the text they complete. Bytes that cannot become a character any more
  /// are released as U+FFFD, one for each maximal subpart.
  std::string push(std::string_view bytes);

  /// Ends the text: drops a character that was cut in the middle (no more than three bytes). Returns whether
  /// there was one. The stream can then be used again.
  bool finish();

  /// Bytes that wait for the rest of their character.
  [[nodiscard]] std::string_view pending() const { return pending_; }

 private:
  std::string pending_;
};

}  // namespace sluice::text
