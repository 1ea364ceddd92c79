// Tokens that are matched in the text itself, before any splitting: control tokens and tags.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace sluice::text {

struct AddedToken {
  std::string content;
  std::int32_t id = 0;
  bool special = false;      // left out when decoding without special tokens
  bool lstrip = false;       // takes the white space before it along
  bool rstrip = false;       // takes the white space after it along
  bool single_word = false;  // only where no word character touches it
  bool normalized = false;   // looked for after normalisation rather than before
};

/// A stretch of the text: an added token, or (id absent) text between them.
struct TextSpan {
  std::optional<std::int32_t> id;
  std::string_view text;
};

/// Finds added tokens: leftmost first, the longest at one place.
class AddedTokenMatcher {
 public:
  /// Contents are not empty and differ from each other.
  explicit AddedTokenMatcher(const std::vector<AddedToken>& tokens);

  /// Cuts valid UTF-8 into spans. Cost: bytes times the longest token at worst.
  void split(std::string_view text, std::vector<TextSpan>& spans) const;

 private:
  [[nodiscard]] const AddedToken* longest_at(std::string_view text) const;

  std::vector<AddedToken> tokens_;
  // A trie: (node, byte) to node; the token that ends at a node, or -1.
  std::unordered_map<std::uint64_t, std::uint32_t> edges_;
  std::vector<std::int32_t> ends_;
  bool starts_[256] = {};
};

}  // namespace sluice::text
