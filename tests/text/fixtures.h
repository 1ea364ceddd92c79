// Files the text tests share.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "base/file.h"
#include "base/json.h"
#include "text/tokenizer.h"

namespace sluice::text {

inline Json read_json(const std::string& path) {
  auto text = read_text_file(path, 64 << 20);
  if (!text.ok()) throw std::runtime_error(text.error().message);
  auto json = parse_json(*text, path);
  if (!json.ok()) throw std::runtime_error(json.error().message);
  return *json;
}

/// The demo model's tokenizer, loaded once.
inline const Tokenizer& demo_tokenizer() {
  static const std::unique_ptr<Tokenizer> kTokenizer = [] {
    auto loaded = Tokenizer::load(SLUICE_MODELS "/demo");
    if (!loaded.ok()) throw std::runtime_error(loaded.error().message);
    return std::move(*loaded);
  }();
  return *kTokenizer;
}

inline std::vector<std::int32_t> encode_or_throw(const Tokenizer& tokenizer, std::string_view text,
                                                 bool parse_added = true) {
  auto ids = tokenizer.encode(text, parse_added);
  if (!ids.ok()) throw std::runtime_error(ids.error().message);
  return *ids;
}

}  // namespace sluice::text
