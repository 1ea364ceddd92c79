#include "pack/cache.h"

#include <cstdlib>
#include <system_error>

#include "base/checksum.h"
#include "base/file.h"
#include "pack/pack.h"
#include "pack/workspace.h"

namespace sluice::pack {
namespace {

namespace fs = std::filesystem;

fs::path environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? fs::path() : fs::path(value);
}

/// Names, sizes, headers and times of the checkpoint's files: what has changed when they have.
std::string stamp_of(const store::WeightSource& source) {
  std::string text;
  for (const store::SourceFile& file : source.files()) {
    text += fmt::format("{} {} {} {}\n", file.name, file.bytes, checksum_text(file.header_checksum),
                        file.modified);
  }
  for (const char* name : {"config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja",
                           "generation_config.json"}) {
    constexpr std::uint64_t kMost = std::uint64_t{256} << 20;
    const auto content = read_text_file(source.folder() / name, kMost);
    if (!content.ok()) continue;
    text += fmt::format("{} {}\n", name, checksum_text(checksum(std::as_bytes(std::span(content.value())))));
  }
  return text;
}

}  // namespace

fs::path default_store_dir() {
  if (auto folder = environment("SLUICE_STORE_DIR"); !folder.empty()) return folder;
  if (auto cache = environment("XDG_CACHE_HOME"); cache.is_absolute()) return cache / "sluice" / "stores";
  if (auto home = environment("HOME"); !home.empty()) return home / ".cache" / "sluice" / "stores";
  return {};
}

fs::path cached_store(const fs::path& checkpoint, const fs::path& store_dir) {
  std::error_code ignored;
  fs::path real = fs::weakly_canonical(checkpoint, ignored);
  if (!real.has_filename()) real = real.parent_path();
  const std::string path = real.string();
  return store_dir / fmt::format("{}-{}", real.filename().string(),
                                 checksum_text(checksum(std::as_bytes(std::span(path)))));
}

Error mendable(const Error& error, const fs::path& model, const fs::path& store) {
  if (error.code != ErrorCode::kCorrupt && error.code != ErrorCode::kNotFound) return error;
  return make_error(error.code, "{}; remove the folder {}, and the next use of {} packs it again",
                    error.message, store.string(), model.string());
}

Result<std::unique_ptr<store::WeightSource>> open_model(const fs::path& model, const fs::path& store_dir,
                                                        const PackOptions& options, const PackCheck& check) {
  if (store::is_store(model)) return store::open_store(model);
  SLUICE_ASSIGN(const auto checkpoint, store::open_checkpoint(model));
  const fs::path base = store_dir.empty() ? default_store_dir() : store_dir;
  if (base.empty()) {
    return make_error(ErrorCode::kInvalidArgument,
                      "{}: no folder to pack it into: HOME is not set; --store-dir names one, --no-pack does "
                      "without",
                      model.string());
  }
  const fs::path target = cached_store(model, base);
  const std::string stamp = stamp_of(*checkpoint);
  if (has_stamp(target, stamp)) {
    auto opened = store::open_store(target);
    if (opened.ok()) return opened;
    // A store of an older version of the format is made again; a damaged one is the user's to look at.
    if (opened.error().code != ErrorCode::kUnsupported) return mendable(opened.error(), model, target);
  }
  if (check) SLUICE_TRY(check(*checkpoint, options));
  PackOptions replacing = options;
  replacing.force = true;
  replacing.wait = true;
  replacing.stamp = stamp;
  auto packed = pack(*checkpoint, target, replacing);
  if (!packed.ok()) {
    return make_error(
        packed.error().code,
        "{} (packing {} on first use; --store-dir names another folder, --no-pack does without)",
        packed.error().message, model.string());
  }
  return store::open_store(target);
}

}  // namespace sluice::pack
