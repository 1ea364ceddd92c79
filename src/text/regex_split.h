// Cuts text into the matches of a regular expression and the gaps between them, in bounded work.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace sluice::text {

/// A compiled PCRE2 pattern (UTF and Unicode properties on, JIT where there is one). Immutable: several
/// threads may split with it at once.
class RegexSplit {
 public:
  /// `literal` takes the pattern as plain text. Errors name `what`. `\s` and `\S` mean White_Space, as in
  /// the library that tokenizer files are written for; PCRE2 alone would count U+180E too.
  static Result<RegexSplit> compile(std::string_view pattern, bool literal, std::string_view what);

  RegexSplit(RegexSplit&&) noexcept;
  RegexSplit& operator=(RegexSplit&&) noexcept;
  ~RegexSplit();

  /// Appends the pieces of `text` (valid UTF-8) in order: matches and gaps, none empty, together the text.
  /// kLimit when a pattern needs more than about a thousand steps a byte.
  Result<void> split(std::string_view text, std::vector<std::string_view>& pieces) const;

 private:
  struct Code;
  explicit RegexSplit(std::unique_ptr<Code> code);
  std::unique_ptr<Code> code_;
};

}  // namespace sluice::text
