#include "engine/plan_model.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "base/file.h"
#include "base/json.h"
#include "spec/geometries.h"

namespace sluice::engine {
namespace {

namespace fs = std::filesystem;

bool has_weights(const fs::path& folder) {
  std::error_code ec;
  for (fs::directory_iterator it(folder, ec), end; !ec && it != end; it.increment(ec)) {
    if (it->path().extension() == ".safetensors") return true;
  }
  return false;
}

Result<PlannedModel> from_config(const std::string& what, const Json& json, std::string_view file) {
  SLUICE_ASSIGN(auto config, spec::parse_config(json, file));
  return PlannedModel{what, "config", std::move(config), nullptr};
}

Result<PlannedModel> from_file(const std::string& what, const fs::path& path) {
  constexpr std::uint64_t kMostConfig = 1 << 20;
  SLUICE_ASSIGN(const std::string text, read_text_file(path, kMostConfig));
  SLUICE_ASSIGN(const Json json, parse_json(text, path.string()));
  return from_config(what, json, path.string());
}

}  // namespace

Result<PlannedModel> open_planned(const std::string& what) {
  const fs::path path(what);
  std::error_code ec;
  if (fs::is_regular_file(path, ec)) return from_file(what, path);
  if (fs::exists(path, ec)) {
    if (fs::is_regular_file(path / "config.json", ec) && !store::is_store(path) && !has_weights(path)) {
      return from_file(what, path / "config.json");
    }
    SLUICE_ASSIGN(auto source, store::open_source(path));
    spec::ModelConfig config = source->config();
    std::string form = source->form();
    return PlannedModel{what, std::move(form), std::move(config), std::move(source)};
  }
  if (const auto named = spec::named_geometry(what)) return from_config(what, *named, what);
  std::string names;
  for (const auto name : spec::geometry_names())
    names += fmt::format("{}{}", names.empty() ? "" : ", ", name);
  return make_error(ErrorCode::kNotFound,
                    "{}: no such folder, config file or known model; known by name: {} (qwen3.8-flash-next)",
                    what, names);
}

}  // namespace sluice::engine
