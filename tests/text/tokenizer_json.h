// Builds small tokenizer.json texts for tests.
#pragma once

#include <string>

#include "base/json.h"
#include "text/byte_level.h"
#include "text/utf8.h"

namespace sluice::text {

/// `bytes` as vocabularies spell them.
inline std::string spelled(std::string_view bytes) {
  std::string out;
  for (const char c : bytes) append_utf8(out, byte_level_char(static_cast<std::uint8_t>(c)));
  return out;
}

/// A byte-level BPE file with ids 0..255 for the bytes and one more for each merge; no normaliser, no added
/// tokens, the GPT-2 split.
inline Json small_tokenizer(const std::vector<std::pair<std::string, std::string>>& merges = {}) {
  Json vocab = Json::object();
  for (int byte = 0; byte < 256; ++byte) vocab[spelled(std::string(1, static_cast<char>(byte)))] = byte;
  Json rules = Json::array();
  for (const auto& [left, right] : merges) {
    rules.push_back({spelled(left), spelled(right)});
    vocab[spelled(left + right)] = vocab.size();
  }
  return {{"normalizer", nullptr},
          {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}}},
          {"decoder", {{"type", "ByteLevel"}}},
          {"added_tokens", Json::array()},
          {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", rules}}}};
}

inline Json added_token(int id, std::string content, bool special = false) {
  return {{"id", id}, {"content", std::move(content)}, {"special", special}, {"normalized", false}};
}

}  // namespace sluice::text
