#include "engine/generation_config.h"

#include "base/file.h"

namespace sluice::engine {
namespace {

constexpr std::uint64_t kMostBytes = 1 << 20;

Result<void> read_number(const Json& root, const char* key, std::string_view what, double& out) {
  const auto found = root.find(key);
  if (found == root.end() || found->is_null()) return {};
  if (!found->is_number()) {
    return make_error(ErrorCode::kCorrupt, "{}: {} is {}, needed a number", what, key, dump_json(*found));
  }
  out = found->get<double>();
  return {};
}

Result<void> add_stop_token(const Json& value, std::string_view what, std::vector<std::int32_t>& out) {
  if (!value.is_number_integer() || value.get<double>() < 0 || value.get<double>() > INT32_MAX) {
    return make_error(ErrorCode::kCorrupt, "{}: eos_token_id {}, needed a token id", what, dump_json(value));
  }
  out.push_back(value.get<std::int32_t>());
  return {};
}

}  // namespace

Result<GenerationConfig> parse_generation_config(const Json& root, std::string_view what,
                                                 std::optional<std::int64_t> eos) {
  if (!root.is_object()) return make_error(ErrorCode::kCorrupt, "{}: needed a JSON object", what);
  GenerationConfig config;
  double top_k = 0;
  SLUICE_TRY(read_number(root, "temperature", what, config.sampling.temperature));
  SLUICE_TRY(read_number(root, "top_p", what, config.sampling.top_p));
  SLUICE_TRY(read_number(root, "min_p", what, config.sampling.min_p));
  SLUICE_TRY(read_number(root, "top_k", what, top_k));
  if (!(top_k >= 0 && top_k < 1e9))
    return make_error(ErrorCode::kCorrupt, "{}: top_k {}, needed 0 or more", what, top_k);
  config.sampling.top_k = static_cast<std::int64_t>(top_k);
  // Without do_sample the authors mean greedy decoding, whatever the other values are.
  const auto sample = root.find("do_sample");
  if (sample == root.end() || *sample != Json(true)) config.sampling.temperature = 0;
  if (const auto checked = config.sampling.check(); !checked.ok()) {
    return make_error(ErrorCode::kCorrupt, "{}: {}", what, checked.error().message);
  }
  const auto stop = root.find("eos_token_id");
  if (stop != root.end() && stop->is_array()) {
    for (const Json& value : *stop) SLUICE_TRY(add_stop_token(value, what, config.stop_tokens));
  } else if (stop != root.end() && !stop->is_null()) {
    SLUICE_TRY(add_stop_token(*stop, what, config.stop_tokens));
  } else if (eos) {
    config.stop_tokens.push_back(static_cast<std::int32_t>(*eos));
  }
  return config;
}

Result<GenerationConfig> load_generation_config(const std::filesystem::path& folder,
                                                std::optional<std::int64_t> eos) {
  const auto path = folder / "generation_config.json";
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored))
    return parse_generation_config(Json::object(), path.string(), eos);
  SLUICE_ASSIGN(const auto text, read_text_file(path, kMostBytes));
  SLUICE_ASSIGN(const auto root, parse_json(text, path.string()));
  return parse_generation_config(root, path.string(), eos);
}

}  // namespace sluice::engine
