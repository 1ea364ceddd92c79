// A hostile tokenizer.json and hostile text. The input is the file, a zero byte, and the text to encode;
// without a zero byte, the text alone, for a small tokenizer that is known to be good.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/json.h"
#include "text/byte_level.h"
#include "text/normalize.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

namespace {

using sluice::Json;
using sluice::text::Tokenizer;

void check(bool holds) {
  if (!holds) std::abort();
}

std::string spelled(std::string_view bytes) {
  std::string out;
  for (const char c : bytes) {
    sluice::text::append_utf8(out, sluice::text::byte_level_char(static_cast<std::uint8_t>(c)));
  }
  return out;
}

std::string good_file() {
  Json vocab = Json::object();
  for (int byte = 0; byte < 256; ++byte) vocab[spelled(std::string(1, static_cast<char>(byte)))] = byte;
  Json merges = Json::array();
  for (const auto& [left, right] : {std::pair("a", "a"), std::pair("aa", "aa"), std::pair("a", "b"),
                                    std::pair("\xc3", "\xa9"), std::pair(" ", " ")}) {
    merges.push_back({spelled(left), spelled(right)});
    vocab[spelled(std::string(left) + right)] = vocab.size();
  }
  const Json split = {
      {"type", "Split"},
      {"pattern",
       {{"Regex", R"((?i:'s|'t)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}|\s*[\r\n]+|\s+(?!\S)|\s+)"}}},
      {"behavior", "Isolated"}};
  const Json bytes = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
  const Json added = {{{"id", 300}, {"content", "<x>"}, {"special", true}},
                      {{"id", 301}, {"content", "<xy"}, {"lstrip", true}, {"rstrip", true}},
                      {{"id", 302}, {"content", "abc"}, {"single_word", true}}};
  const Json file = {{"normalizer", {{"type", "NFC"}}},
                     {"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", {split, bytes}}}},
                     {"added_tokens", added},
                     {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", merges}}}};
  return sluice::dump_json(file);
}

void use(const Tokenizer& tokenizer, std::string_view text) {
  for (const bool parse_added : {true, false}) {
    const auto ids = tokenizer.encode(text, parse_added);
    if (!ids.ok()) continue;
    for (const std::int32_t id : *ids) check(id >= 0 && id < tokenizer.vocab_size());
    const std::string decoded = tokenizer.decode(*ids);
    check(sluice::text::is_valid_utf8(decoded));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const std::size_t zero = input.find('\0');
  if (zero != std::string_view::npos) {
    const auto parsed = Tokenizer::parse(input.substr(0, zero), "fuzz");
    if (parsed.ok()) use(**parsed, input.substr(zero + 1));
    return 0;
  }
  static const auto kGood = Tokenizer::parse(good_file(), "good");
  check(kGood.ok());
  use(**kGood, input);
  // Taken as plain text, everything comes back, normalised.
  const auto ids = (*kGood)->encode(input, false);
  check(ids.ok());
  check((*kGood)->decode(*ids) == sluice::text::to_nfc(sluice::text::replace_invalid_utf8(input)));
  return 0;
}
