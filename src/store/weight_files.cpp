#include <algorithm>
#include <charconv>
#include <map>
#include <system_error>

#include "base/file.h"
#include "store/safetensors_sax.h"
#include "store/tensor_index.h"

namespace sluice::store {
namespace {

namespace fs = std::filesystem;

/// The number in "model-00003-of-00007.safetensors" and the total, or nullopt for other names.
struct ShardNumber {
  std::int64_t index = 0, total = 0;
};

std::optional<ShardNumber> shard_number(std::string_view name) {
  constexpr std::string_view kStart = "model-", kMiddle = "-of-", kEnd = ".safetensors";
  if (!name.starts_with(kStart) || !name.ends_with(kEnd)) return std::nullopt;
  name.remove_prefix(kStart.size());
  name.remove_suffix(kEnd.size());
  const std::size_t middle = name.find(kMiddle);
  if (middle == std::string_view::npos) return std::nullopt;
  const auto number = [](std::string_view text) -> std::optional<std::int64_t> {
    std::int64_t n = 0;
    const auto [end, ec] = std::from_chars(text.data(), text.data() + text.size(), n);
    if (text.empty() || text.size() > 9 || ec != std::errc{} || end != text.data() + text.size() || n < 1) {
      return std::nullopt;
    }
    return n;
  };
  const auto index = number(name.substr(0, middle));
  const auto total = number(name.substr(middle + kMiddle.size()));
  if (!index || !total) return std::nullopt;
  return ShardNumber{*index, *total};
}

Result<WeightFiles> numbered_shards(const fs::path& folder) {
  std::map<std::int64_t, fs::path> shards;
  std::int64_t total = 0;
  bool gguf = false;
  std::error_code ec;
  for (fs::directory_iterator it(folder, ec), end; !ec && it != end; it.increment(ec)) {
    const std::string name = it->path().filename().string();
    gguf = gguf || name.ends_with(".gguf");
    const auto shard = shard_number(name);
    if (!shard) continue;
    if (total != 0 && total != shard->total) {
      return make_error(ErrorCode::kCorrupt, "{}: shards of {} and of {} files found, one set needed",
                        folder.string(), total, shard->total);
    }
    total = shard->total;
    shards[shard->index] = it->path();
  }
  if (ec) return make_error(ErrorCode::kIo, "{}: {}", folder.string(), ec.message());
  if (shards.empty()) {
    return make_error(ErrorCode::kNotFound,
                      "{}: no weights found; model.safetensors or model.safetensors.index.json needed{}",
                      folder.string(), gguf ? " (GGUF files cannot be read)" : "");
  }
  WeightFiles files;
  for (std::int64_t i = 1; const auto& [index, path] : shards) {
    if (index != i) break;
    files.paths.push_back(path);
    ++i;
  }
  const auto complete = static_cast<std::int64_t>(files.paths.size());
  if (complete != total || shards.size() != files.paths.size()) {
    return make_error(ErrorCode::kNotFound, "{}: {} shards found, {} needed: number {} is missing",
                      folder.string(), shards.size(), total, complete + 1);
  }
  return files;
}

/// A shard name from an index must stay inside the folder: the index may come from anywhere.
bool is_inside(const fs::path& name) {
  if (name.empty() || name.is_absolute() || !name.has_filename()) return false;
  return std::none_of(name.begin(), name.end(), [](const fs::path& part) { return part == ".."; });
}

Result<WeightFiles> indexed_shards(const fs::path& folder, const fs::path& index, bool remote) {
  constexpr std::uint64_t kMaxIndex = 100'000'000;
  SLUICE_ASSIGN(const std::string text, read_text_file(index, kMaxIndex));
  bool found = false;
  WeightFiles files;
  files.index = index;
  SLUICE_ASSIGN(files.listed, parse_string_map(text, "weight_map", index.string(), found));
  if (!found || files.listed.empty()) {
    return make_error(ErrorCode::kCorrupt, "{}: no weight_map found", index.string());
  }
  std::map<std::string, fs::path> names;
  for (const auto& [tensor, file] : files.listed) {
    if (file.find('\0') != std::string::npos || !is_inside(file)) {
      return make_error(ErrorCode::kInvalidArgument,
                        "{}: tensor {}: file \"{}\" found, a name inside the folder needed", index.string(),
                        tensor, file);
    }
    names.emplace(file, folder / file);
  }
  for (const auto& [name, path] : names) {
    std::error_code ec;
    if (!remote && !fs::exists(path, ec)) {
      return make_error(ErrorCode::kNotFound, "{}: shard {} is missing ({} shards needed)", index.string(),
                        name, names.size());
    }
    files.paths.push_back(path);
  }
  return files;
}

}  // namespace

Result<WeightFiles> find_weight_files(const fs::path& folder, bool remote) {
  std::error_code ec;
  if (const fs::path index = folder / "model.safetensors.index.json"; fs::exists(index, ec)) {
    return indexed_shards(folder, index, remote);
  }
  if (const fs::path single = folder / "model.safetensors"; remote || fs::exists(single, ec)) {
    return WeightFiles{{single}, {}, {}};
  }
  return numbered_shards(folder);
}

}  // namespace sluice::store
