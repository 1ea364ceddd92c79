#include "text/tokenizer.h"

#include <limits>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "base/file.h"
#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/normalize.h"
#include "text/piece_cache.h"
#include "text/regex_split.h"
#include "text/tokenizer_spec.h"
#include "text/utf8.h"

namespace sluice::text {
namespace {

constexpr std::uint64_t kMaxFile = 256ULL << 20;
constexpr std::size_t kMaxText =
    std::numeric_limits<std::int32_t>::max();  // positions in a piece are 32 bits

std::vector<AddedToken> with_normalized(const std::vector<AddedToken>& tokens, bool normalized, bool nfc) {
  std::vector<AddedToken> chosen;
  for (AddedToken token : tokens) {
    if (token.normalized != normalized) continue;
    if (normalized && nfc) token.content = to_nfc(replace_invalid_utf8(token.content));
    chosen.push_back(std::move(token));
  }
  return chosen;
}

}  // namespace

struct Tokenizer::State {
  State(TokenizerSpec from, std::vector<RegexSplit> patterns)
      : spec(std::move(from)),
        splits(std::move(patterns)),
        bpe(spec.byte_ids, spec.merges),
        raw(with_normalized(spec.added, false, spec.nfc)),
        normalized(with_normalized(spec.added, true, spec.nfc)),
        special(spec.bytes.size(), false) {
    for (const AddedToken& token : spec.added) {
      added_ids.emplace(token.content, token.id);
      if (token.special) special[static_cast<std::size_t>(token.id)] = true;
    }
    if (spec.ignore_merges) {
      for (const std::int32_t id : spec.vocabulary)
        whole.emplace(spec.bytes[static_cast<std::size_t>(id)], id);
    }
    spec.merges = {};  // the BPE table holds them now
    spec.vocabulary = {};
  }

  Result<void> encode_plain(std::string_view text, PieceCache& cache, std::vector<std::int32_t>& out) const;
  void encode_piece(std::string_view piece, PieceCache& cache, std::vector<std::int32_t>& out) const;

  TokenizerSpec spec;
  std::vector<RegexSplit> splits;
  Bpe bpe;
  AddedTokenMatcher raw;
  AddedTokenMatcher normalized;
  std::vector<bool> special;  // (vocab_size)
  std::unordered_map<std::string, std::int32_t> added_ids;
  std::unordered_map<std::string, std::int32_t> whole;  // only with ignore_merges: token bytes to id
  std::mutex cache_mutex;
  PieceCache cache;
};

Tokenizer::Tokenizer(std::unique_ptr<State> state) : state_(std::move(state)) {}
Tokenizer::~Tokenizer() = default;

Result<std::unique_ptr<Tokenizer>> Tokenizer::load(const std::filesystem::path& path) {
  std::error_code ignored;
  const auto file = std::filesystem::is_directory(path, ignored) ? path / "tokenizer.json" : path;
  SLUICE_ASSIGN(const std::string text, read_text_file(file, kMaxFile));
  return parse(text, file.string());
}

Result<std::unique_ptr<Tokenizer>> Tokenizer::parse(std::string_view json_text, std::string_view what) {
  SLUICE_ASSIGN(TokenizerSpec spec, parse_tokenizer_spec(json_text, what));
  std::vector<RegexSplit> splits;
  for (const SplitStep& step : spec.splits) {
    SLUICE_ASSIGN(RegexSplit split, RegexSplit::compile(step.pattern, step.literal, what));
    splits.push_back(std::move(split));
  }
  return std::unique_ptr<Tokenizer>(
      new Tokenizer(std::make_unique<State>(std::move(spec), std::move(splits))));
}

void Tokenizer::State::encode_piece(std::string_view piece, PieceCache& pieces,
                                    std::vector<std::int32_t>& out) const {
  if (piece.size() > PieceCache::kMaxPieceBytes) {
    if (spec.ignore_merges) {
      if (const auto it = whole.find(std::string(piece)); it != whole.end()) return out.push_back(it->second);
    }
    return bpe.encode(piece, out);
  }
  if (const auto* known = pieces.find(piece)) {
    out.insert(out.end(), known->begin(), known->end());
    return;
  }
  std::vector<std::int32_t> ids;
  const auto it = spec.ignore_merges ? whole.find(std::string(piece)) : whole.end();
  if (it != whole.end()) {
    ids.push_back(it->second);
  } else {
    bpe.encode(piece, ids);
  }
  out.insert(out.end(), ids.begin(), ids.end());
  pieces.insert(piece, std::move(ids));
}

Result<void> Tokenizer::State::encode_plain(std::string_view text, PieceCache& pieces,
                                            std::vector<std::int32_t>& out) const {
  std::vector<std::string_view> parts{text};
  std::vector<std::string_view> next;
  for (const RegexSplit& split : splits) {
    next.clear();
    for (const std::string_view part : parts) SLUICE_TRY(split.split(part, next));
    std::swap(parts, next);
  }
  for (const std::string_view part : parts) encode_piece(part, pieces, out);
  return {};
}

Result<std::vector<std::int32_t>> Tokenizer::encode(std::string_view text, bool parse_added) const {
  if (text.size() > kMaxText / 4) {  // replacing or composing can lengthen it
    return make_error(ErrorCode::kLimit, "text of {} bytes to tokenize, at most {}", text.size(),
                      kMaxText / 4);
  }
  std::string clean;
  if (!is_valid_utf8(text)) {
    clean = replace_invalid_utf8(text);
    text = clean;
  }
  // One thread at a time uses the shared cache; another that comes meanwhile uses a cache of its own.
  const std::unique_lock lock(state_->cache_mutex, std::try_to_lock);
  PieceCache own;
  PieceCache& cache = lock.owns_lock() ? state_->cache : own;

  std::vector<std::int32_t> ids;
  std::vector<TextSpan> spans;
  if (parse_added) {
    state_->raw.split(text, spans);
  } else if (!text.empty()) {
    spans.push_back({std::nullopt, text});
  }
  std::vector<TextSpan> inner;
  for (const TextSpan& span : spans) {
    if (span.id) {
      ids.push_back(*span.id);
      continue;
    }
    const std::string composed = state_->spec.nfc ? to_nfc(span.text) : std::string();
    const std::string_view plain = state_->spec.nfc ? std::string_view(composed) : span.text;
    inner.clear();
    if (parse_added) {
      state_->normalized.split(plain, inner);
    } else {
      inner.push_back({std::nullopt, plain});
    }
    for (const TextSpan& part : inner) {
      if (part.id) {
        ids.push_back(*part.id);
      } else {
        SLUICE_TRY(state_->encode_plain(part.text, cache, ids));
      }
    }
  }
  return ids;
}

std::string Tokenizer::decode(std::span<const std::int32_t> ids, bool skip_special) const {
  std::string bytes;
  for (const std::int32_t id : ids) {
    if (!(skip_special && is_special(id))) bytes += token_bytes(id);
  }
  return is_valid_utf8(bytes) ? bytes : replace_invalid_utf8(bytes);
}

const std::string& Tokenizer::token_bytes(std::int32_t id) const {
  static const std::string kNothing;
  const bool known = id >= 0 && static_cast<std::size_t>(id) < state_->spec.bytes.size();
  return known ? state_->spec.bytes[static_cast<std::size_t>(id)] : kNothing;
}

std::optional<std::int32_t> Tokenizer::id_of(std::string_view added_token) const {
  const auto it = state_->added_ids.find(std::string(added_token));
  if (it == state_->added_ids.end()) return std::nullopt;
  return it->second;
}

bool Tokenizer::is_special(std::int32_t id) const {
  return id >= 0 && static_cast<std::size_t>(id) < state_->special.size() &&
         state_->special[static_cast<std::size_t>(id)];
}

std::int64_t Tokenizer::vocab_size() const {
  return static_cast<std::int64_t>(state_->spec.bytes.size());
}

}  // namespace sluice::text
