#include "text/tokenizer_spec.h"

#include <algorithm>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "text/byte_level.h"
#include "text/model_json.h"

namespace sluice::text {
namespace {

constexpr std::int64_t kMaxId = (1 << 21) - 1;  // eight times the largest vocabulary known
constexpr std::size_t kMaxAddedToken = 512;

// The split that a ByteLevel step with use_regex brings along (the GPT-2 pattern).
constexpr std::string_view kByteLevelPattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

class SpecReader {
 public:
  SpecReader(const ModelJson& root, std::string_view what) : root_(root), what_(what) {}

  Result<TokenizerSpec> read() {
    if (!root_.is_object()) {
      return make_error(ErrorCode::kCorrupt, "{}: a {}, need an object", what_, root_.type_name());
    }
    SLUICE_TRY(read_normalizer(member(root_, "normalizer")));
    SLUICE_TRY(read_pre_tokenizer());
    SLUICE_TRY(read_decoder());
    SLUICE_TRY(read_added_tokens());
    const ModelJson* model = member(root_, "model");
    if (model == nullptr || !model->is_object()) {
      return make_error(ErrorCode::kCorrupt, "{}: no model object", what_);
    }
    SLUICE_TRY(check_model(*model));
    SLUICE_TRY(read_vocabulary(*model));
    SLUICE_TRY(place_added_tokens());
    SLUICE_TRY(read_merges(*model));
    return std::move(spec_);
  }

 private:
  Result<std::string> type_of(const ModelJson& part, const char* name) const {
    SLUICE_ASSIGN(std::string type, string_member(part, "type", what_));
    if (type.empty()) return make_error(ErrorCode::kCorrupt, "{}: {} without a type", what_, name);
    return type;
  }

  Error unsupported(const char* part, std::string_view value) const {
    return make_error(ErrorCode::kUnsupported, "{}: {} {} is not supported", what_, part, value);
  }

  Result<void> read_normalizer(const ModelJson* normalizer) {
    if (normalizer == nullptr) return {};
    SLUICE_ASSIGN(const std::string type, type_of(*normalizer, "normalizer"));
    if (type == "NFC") {
      spec_.nfc = true;
      return {};
    }
    if (type == "Sequence") {
      const ModelJson* parts = member(*normalizer, "normalizers");
      if (parts != nullptr && parts->is_array() &&
          std::all_of(parts->begin(), parts->end(), [](const ModelJson& p) { return p.is_object(); })) {
        for (const ModelJson& part : *parts) {
          SLUICE_ASSIGN(const std::string inner, type_of(part, "normalizer"));
          if (inner != "NFC") return unsupported("normalizer", inner);
          spec_.nfc = true;
        }
        return {};
      }
      return make_error(ErrorCode::kCorrupt, "{}: normalizer Sequence without a list of objects", what_);
    }
    return unsupported("normalizer", type);
  }

  Result<void> read_pre_tokenizer() {
    const ModelJson* part = member(root_, "pre_tokenizer");
    if (part == nullptr) return make_error(ErrorCode::kUnsupported, "{}: no pre_tokenizer", what_);
    SLUICE_ASSIGN(const std::string type, type_of(*part, "pre_tokenizer"));
    if (type != "Sequence") {
      SLUICE_TRY(read_pre_tokenizer_step(*part));
    } else {
      const ModelJson* steps = member(*part, "pretokenizers");
      if (steps == nullptr || !steps->is_array()) {
        return make_error(ErrorCode::kCorrupt, "{}: pre_tokenizer Sequence without a list", what_);
      }
      if (steps->size() > 16) return unsupported("pre_tokenizer", "of more than 16 steps");
      for (const ModelJson& step : *steps) {
        if (byte_level_) return unsupported("pre_tokenizer", "with a step after ByteLevel");
        SLUICE_TRY(read_pre_tokenizer_step(step));
      }
    }
    if (!byte_level_) return unsupported("pre_tokenizer", "without ByteLevel");
    return {};
  }

  Result<void> read_pre_tokenizer_step(const ModelJson& step) {
    SLUICE_ASSIGN(const std::string type, type_of(step, "pre_tokenizer"));
    if (type == "Split") return read_split(step);
    if (type != "ByteLevel") return unsupported("pre_tokenizer", type);
    SLUICE_ASSIGN(const bool prefix_space, bool_member(step, "add_prefix_space", true, what_));
    if (prefix_space) return unsupported("pre_tokenizer", "ByteLevel with add_prefix_space");
    SLUICE_ASSIGN(const bool use_regex, bool_member(step, "use_regex", true, what_));
    if (use_regex) spec_.splits.push_back({std::string(kByteLevelPattern), false});
    byte_level_ = true;
    return {};
  }

  Result<void> read_split(const ModelJson& step) {
    SLUICE_ASSIGN(const std::string behavior, string_member(step, "behavior", what_));
    if (behavior != "Isolated") return unsupported("Split behavior", behavior);
    SLUICE_ASSIGN(const bool invert, bool_member(step, "invert", false, what_));
    // With isolated matches, inverting swaps which pieces are called matches and changes none.
    static_cast<void>(invert);
    const ModelJson* pattern = member(step, "pattern");
    if (pattern == nullptr || !pattern->is_object()) {
      return make_error(ErrorCode::kCorrupt, "{}: Split without a pattern", what_);
    }
    SLUICE_ASSIGN(std::string regex, string_member(*pattern, "Regex", what_));
    SLUICE_ASSIGN(std::string literal, string_member(*pattern, "String", what_));
    if (regex.empty() == literal.empty()) {
      return make_error(ErrorCode::kCorrupt, "{}: a Split pattern needs either Regex or String", what_);
    }
    const bool is_literal = regex.empty();
    spec_.splits.push_back({is_literal ? std::move(literal) : std::move(regex), is_literal});
    return {};
  }

  Result<void> read_decoder() {
    const ModelJson* decoder = member(root_, "decoder");
    if (decoder == nullptr) return {};
    SLUICE_ASSIGN(const std::string type, type_of(*decoder, "decoder"));
    if (type != "ByteLevel") return unsupported("decoder", type);
    return {};
  }

  Result<std::int32_t> checked_id(const ModelJson& value, std::string_view token) const {
    const bool fits = value.is_number_unsigned()
                          ? value.get<std::uint64_t>() <= std::uint64_t{kMaxId}
                          : value.is_number_integer() && value.get<std::int64_t>() >= 0 &&
                                value.get<std::int64_t>() <= kMaxId;
    if (!fits) {
      return make_error(ErrorCode::kCorrupt, "{}: id of token '{}' is not an integer in 0..{}", what_, token,
                        kMaxId);
    }
    return value.get<std::int32_t>();
  }

  Result<void> read_added_tokens() {
    const ModelJson* list = member(root_, "added_tokens");
    if (list == nullptr) return {};
    if (!list->is_array()) return make_error(ErrorCode::kCorrupt, "{}: added_tokens is no list", what_);
    for (const ModelJson& entry : *list) {
      AddedToken token;
      SLUICE_ASSIGN(token.content, string_member(entry, "content", what_));
      if (token.content.empty() || token.content.size() > kMaxAddedToken) {
        return make_error(ErrorCode::kCorrupt, "{}: an added token of {} bytes, need 1 to {}", what_,
                          token.content.size(), kMaxAddedToken);
      }
      const ModelJson* id = member(entry, "id");
      SLUICE_ASSIGN(token.id, checked_id(id == nullptr ? ModelJson() : *id, token.content));
      SLUICE_ASSIGN(token.special, bool_member(entry, "special", false, what_));
      SLUICE_ASSIGN(token.lstrip, bool_member(entry, "lstrip", false, what_));
      SLUICE_ASSIGN(token.rstrip, bool_member(entry, "rstrip", false, what_));
      SLUICE_ASSIGN(token.single_word, bool_member(entry, "single_word", false, what_));
      SLUICE_ASSIGN(token.normalized, bool_member(entry, "normalized", !token.special, what_));
      if (!added_ids_.emplace(token.content, token.id).second) {
        return make_error(ErrorCode::kCorrupt, "{}: added token '{}' twice", what_, token.content);
      }
      spec_.added.push_back(std::move(token));
    }
    return {};
  }

  Result<void> check_model(const ModelJson& model) {
    SLUICE_ASSIGN(const std::string type, string_member(model, "type", what_));
    if (!type.empty() && type != "BPE") return unsupported("model", type);
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      SLUICE_ASSIGN(const std::string value, string_member(model, key, what_));
      if (!value.empty()) return unsupported("model option", key);
    }
    const ModelJson* dropout = member(model, "dropout");
    if (dropout != nullptr && !(dropout->is_number() && dropout->get<double>() == 0.0)) {
      return unsupported("model option", "dropout");
    }
    SLUICE_ASSIGN(spec_.ignore_merges, bool_member(model, "ignore_merges", false, what_));
    return {};
  }

  // Gives `id` to a token; false when another token has it.
  bool claim(std::int32_t id, std::string bytes) {
    const auto at = static_cast<std::size_t>(id);
    if (at >= spec_.bytes.size()) {
      spec_.bytes.resize(at + 1);
      taken_.resize(at + 1, false);
    }
    if (taken_[at]) return false;
    taken_[at] = true;
    spec_.bytes[at] = std::move(bytes);
    return true;
  }

  Result<void> read_vocabulary(const ModelJson& model) {
    const ModelJson* vocab = member(model, "vocab");
    if (vocab == nullptr || !vocab->is_object()) {
      return make_error(ErrorCode::kCorrupt, "{}: model.vocab is no object", what_);
    }
    ids_.reserve(vocab->size());
    for (const auto& [token, value] : vocab->items()) {
      SLUICE_ASSIGN(const std::int32_t id, checked_id(value, token));
      std::optional<std::string> bytes = byte_level_decode(token);
      const auto added = added_ids_.find(token);
      if (!bytes && added == added_ids_.end()) {
        return make_error(ErrorCode::kCorrupt,
                          "{}: token '{}' has characters outside the byte-level alphabet", what_, token);
      }
      if (added != added_ids_.end() && added->second != id) {
        return make_error(ErrorCode::kCorrupt, "{}: token '{}' has id {} in the vocabulary and {} as added",
                          what_, token, id, added->second);
      }
      if (!claim(id, added != added_ids_.end() ? token : *bytes)) {
        return make_error(ErrorCode::kCorrupt, "{}: id {} belongs to two tokens, one is '{}'", what_, id,
                          token);
      }
      if (bytes) {
        spec_.vocabulary.push_back(id);
        ids_.emplace(std::move(*bytes), id);
      }
    }
    for (std::size_t byte = 0; byte < 256; ++byte) {
      const auto it = ids_.find(std::string(1, static_cast<char>(static_cast<unsigned char>(byte))));
      if (it == ids_.end()) {
        return make_error(ErrorCode::kUnsupported, "{}: the vocabulary has no token for byte {:#04x}", what_,
                          byte);
      }
      spec_.byte_ids[byte] = it->second;
    }
    return {};
  }

  Result<void> place_added_tokens() {
    for (const AddedToken& token : spec_.added) {
      const auto at = static_cast<std::size_t>(token.id);
      const bool same = at < spec_.bytes.size() && taken_[at] && spec_.bytes[at] == token.content;
      if (!same && !claim(token.id, token.content)) {
        return make_error(ErrorCode::kCorrupt, "{}: id {} belongs to two tokens, one is '{}'", what_,
                          token.id, token.content);
      }
    }
    return {};
  }

  // The two sides of a merge, written as a pair or as "a b".
  static std::optional<std::pair<std::string, std::string>> sides(const ModelJson& merge) {
    if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      return std::pair(merge[0].get<std::string>(), merge[1].get<std::string>());
    }
    if (!merge.is_string()) return std::nullopt;
    const auto& text = merge.get_ref<const std::string&>();
    const std::size_t space = text.find(' ');
    if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos) return std::nullopt;
    return std::pair(text.substr(0, space), text.substr(space + 1));
  }

  Result<void> read_merges(const ModelJson& model) {
    const ModelJson* merges = member(model, "merges");
    if (merges == nullptr || !merges->is_array()) {
      return make_error(ErrorCode::kCorrupt, "{}: model.merges is no list", what_);
    }
    spec_.merges.reserve(merges->size());
    const auto id_of = [this](const std::optional<std::string>& bytes) {
      const auto it = bytes ? ids_.find(*bytes) : ids_.end();
      return it == ids_.end() ? -1 : it->second;
    };
    for (const ModelJson& merge : *merges) {
      const auto pair = sides(merge);
      if (!pair) {
        return make_error(ErrorCode::kCorrupt, "{}: merge {} is neither a pair nor 'a b'", what_,
                          spec_.merges.size());
      }
      const auto left = byte_level_decode(pair->first);
      const auto right = byte_level_decode(pair->second);
      MergeRule rule{id_of(left), id_of(right), -1};
      if (left && right) rule.result = id_of(*left + *right);
      if (rule.left < 0 || rule.right < 0 || rule.result < 0) {
        return make_error(ErrorCode::kCorrupt,
                          "{}: merge {} of '{}' and '{}' names a token not in the vocabulary", what_,
                          spec_.merges.size(), pair->first, pair->second);
      }
      spec_.merges.push_back(rule);
    }
    return {};
  }

  const ModelJson& root_;
  std::string_view what_;
  TokenizerSpec spec_;
  bool byte_level_ = false;
  std::unordered_map<std::string, std::int32_t> added_ids_;
  std::unordered_map<std::string, std::int32_t> ids_;  // by raw bytes
  std::vector<bool> taken_;
};

}  // namespace

Result<TokenizerSpec> parse_tokenizer_spec(std::string_view json_text, std::string_view what) {
  SLUICE_ASSIGN(const ModelJson root, parse_model_json(json_text, what));
  return SpecReader(root, what).read();
}

}  // namespace sluice::text
