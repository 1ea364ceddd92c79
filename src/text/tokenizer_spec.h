// What a tokenizer.json says, checked: every id in range, every name resolved.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/added_tokens.h"
#include "text/bpe.h"

namespace sluice::text {

/// One step of cutting text into pieces; later steps cut the pieces of earlier ones.
struct SplitStep {
  std::string pattern;
  bool literal = false;
};

struct TokenizerSpec {
  bool nfc = false;
  std::vector<SplitStep> splits;
  std::vector<AddedToken> added;
  std::vector<std::string> bytes;  // (vocab_size) raw bytes of each token; empty where no token has the id
  std::vector<std::int32_t> vocabulary;  // ids of the tokens that merging can produce
  std::array<std::int32_t, 256> byte_ids{};
  std::vector<MergeRule> merges;
  bool ignore_merges = false;  // a piece that is a token as it stands is never taken apart
};

/// Reads a byte-level BPE tokenizer. kCorrupt for a file that contradicts itself, kUnsupported for parts that
/// nothing here implements (other models, normalisers, splits); messages name `what` and the part.
Result<TokenizerSpec> parse_tokenizer_spec(std::string_view json_text, std::string_view what);

}  // namespace sluice::text
