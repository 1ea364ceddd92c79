// Text to token ids and back: byte-level BPE as tokenizer.json describes it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace sluice::text {

/// Immutable once loaded; every method may be called from several threads.
class Tokenizer {
 public:
  /// Reads `path`, or `path`/tokenizer.json when it is a folder.
  static Result<std::unique_ptr<Tokenizer>> load(const std::filesystem::path& path);

  /// Reads the text of a tokenizer.json; errors name `what`.
  static Result<std::unique_ptr<Tokenizer>> parse(std::string_view json_text, std::string_view what);

  ~Tokenizer();
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  /// Token ids of `text`. No begin or end token is added. Invalid UTF-8 counts as U+FFFD. With `parse_added`
  /// off, text that spells an added token is ordinary text: for input that is not trusted. kLimit when the
  /// split pattern of the file needs more work than text of this size should.
  [[nodiscard]] Result<std::vector<std::int32_t>> encode(std::string_view text,
                                                         bool parse_added = true) const;

  /// Text of `ids`, invalid UTF-8 replaced by U+FFFD; special tokens left out if asked. Ids without a token
  /// (the padded end of the vocabulary, negative ids) decode to nothing.
  [[nodiscard]] std::string decode(std::span<const std::int32_t> ids, bool skip_special = false) const;

  /// Raw bytes of one token, maybe a part of a character; empty for an id without a token.
  [[nodiscard]] const std::string& token_bytes(std::int32_t id) const;

  /// The id of an added token such as "<|im_end|>".
  [[nodiscard]] std::optional<std::int32_t> id_of(std::string_view added_token) const;

  /// Whether `id` is an added token flagged special.
  [[nodiscard]] bool is_special(std::int32_t id) const;

  /// Whether a token has this id.
  [[nodiscard]] bool is_token(std::int32_t id) const { return !token_bytes(id).empty(); }

  /// One more than the largest id of a token. A model may pad its vocabulary beyond it.
  [[nodiscard]] std::int64_t vocab_size() const;

 private:
  struct State;
  explicit Tokenizer(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace sluice::text
