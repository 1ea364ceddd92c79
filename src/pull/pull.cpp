#include "pull/pull.h"

#include <sys/stat.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <numeric>
#include <set>
#include <system_error>
#include <vector>

#include "base/units.h"
#include "hub/shard_window.h"
#include "pack/layout.h"
#include "pack/workspace.h"
#include "pull/work_folder.h"
#include "spec/config.h"

namespace sluice::pull {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kIndex = "model.safetensors.index.json";
constexpr std::string_view kSingle = "model.safetensors";
constexpr std::uint64_t kMostConfig = 1 << 20;
constexpr std::uint64_t kMostIndex = 100'000'000;
constexpr std::size_t kShardsOnDisk = 3;

/// Bytes of disk that a file takes; 0 where there is none.
std::uint64_t allocated(const fs::path& path) {
  constexpr std::uint64_t kBlock = 512;  // the unit of st_blocks
  struct stat st {};
  return ::stat(path.c_str(), &st) == 0 ? static_cast<std::uint64_t>(st.st_blocks) * kBlock : 0;
}

/// Of a shard, whole or in part.
std::uint64_t there_of(const fs::path& folder, const hub::RepoFile& shard) {
  return std::min(shard.size,
                  allocated(folder / shard.path) + allocated((folder / shard.path).string() + ".part"));
}

bool on_one_disk(const fs::path& a, fs::path b) {
  struct stat of_a {};
  struct stat of_b {};
  std::error_code ignored;
  while (!fs::exists(b, ignored) && b.has_parent_path() && b != b.parent_path()) b = b.parent_path();
  if (!fs::exists(b, ignored)) b = ".";  // a name in the current folder
  return ::stat(a.c_str(), &of_a) == 0 && ::stat(b.c_str(), &of_b) == 0 && of_a.st_dev == of_b.st_dev;
}

Result<void> check_config(const hub::Repository& repository, hub::HttpClient& client) {
  SLUICE_ASSIGN(const std::string text, repository.read_small(client, "config.json", kMostConfig));
  const std::string what = repository.name().shown() + ": config.json";
  SLUICE_ASSIGN(const Json json, parse_json(text, what));
  const auto config = spec::parse_config(json, what);
  return config.ok() ? Result<void>() : Result<void>(config.error());
}

class Puller {
 public:
  Puller(const hub::Repository& repository, fs::path target, WorkFolder& work, const PullOptions& options)
      : repository_(repository), target_(std::move(target)), work_(work), options_(options) {
    download_ = options.download;
    download_.progress = nullptr;
    pack_ = options.pack;
    pack_.source_name = repository.name().owner + "/" + repository.name().name;
    pack_.source_revision = repository.commit();
    pack_.keep_on_error = true;
    pack_.cancelled = options.download.http.connection.cancelled;
    pack_.on_progress = [this](std::uint64_t done, std::uint64_t total) {
      tell([&](PullProgress& progress) {
        progress.packed = done;
        progress.to_pack = total;
      });
    };
    pack_.on_file_done = [this](std::size_t file) { release(file); };
    pack_.on_failure = [this] { window_->stop(); };
  }

  Result<PullReport> run();
  /// Whether weights may have been downloaded, so that what is there is worth keeping.
  [[nodiscard]] bool begun() const { return begun_; }

 private:
  [[nodiscard]] bool kept() const { return !options_.keep_source.empty(); }

  Result<void> fetch_metadata();
  Result<void> find_shards();
  Result<void> open_source();
  Result<PullPlan> make_plan(const pack::Outlook& outlook);
  Result<void> check_space(const PullPlan& plan, const pack::Outlook& outlook) const;
  Result<pack::PackReport> run_pack(const PullPlan& plan, const pack::Outlook& outlook);
  Result<std::uint64_t> fetch_rest();

  void tell(const std::function<void(PullProgress&)>& change);
  void arriving(const hub::RepoFile& shard, std::uint64_t done);
  void release(std::size_t file);

  const hub::Repository& repository_;
  const fs::path target_;
  WorkFolder& work_;
  const PullOptions& options_;
  hub::DownloadOptions download_;
  pack::PackOptions pack_;

  std::vector<const hub::RepoFile*> shards_;  // in the order of the source's files
  std::vector<bool> needed_;                  // of them
  bool begun_ = false;

  std::mutex mutex_;  // of what follows, and on_progress
  PullProgress progress_;
  std::map<std::string, std::uint64_t> arrived_;  // bytes of each shard
  std::optional<Error> release_error_;

  std::unique_ptr<hub::ShardWindow> window_;  // its thread calls arriving(): to be destroyed before the above
  std::unique_ptr<store::WeightSource> source_;
};

Result<PullReport> Puller::run() {
  PullReport report;
  report.commit = repository_.commit();
  SLUICE_TRY(fetch_metadata());
  SLUICE_TRY(find_shards());
  SLUICE_TRY(open_source());
  SLUICE_ASSIGN(const pack::Outlook outlook, pack::look_ahead(*source_, target_, pack_));
  needed_ = outlook.needed;
  SLUICE_ASSIGN(const PullPlan plan, make_plan(outlook));
  SLUICE_TRY(check_space(plan, outlook));
  if (outlook.was_there) {
    report.pack.was_there = true;
    report.pack.bytes = outlook.bytes;
  } else {
    if (options_.on_plan) SLUICE_TRY(options_.on_plan(plan));
    SLUICE_ASSIGN(report.pack, run_pack(plan, outlook));
  }
  report.fetched = window_->fetched();
  source_.reset();
  window_.reset();
  if (kept()) {
    SLUICE_ASSIGN(const std::uint64_t rest, fetch_rest());
    report.fetched += rest;
  }
  return report;
}

/// All that belongs to the checkpoint but its weights.
Result<void> Puller::fetch_metadata() {
  const auto fetch = [this](std::string_view name, std::uint64_t limit) -> Result<void> {
    const hub::RepoFile* file = repository_.find(name);
    if (file == nullptr) {
      std::error_code ec;
      fs::remove(work_.path() / name, ec);
      return {};
    }
    if (file->size > limit) {
      return make_error(ErrorCode::kLimit, "{}: {}: {} bytes, at most {} are read",
                        repository_.name().shown(), name, file->size, limit);
    }
    const auto done = hub::download_file(repository_, *file, work_.path(), download_);
    return done.ok() ? Result<void>() : Result<void>(done.error());
  };
  for (const std::string_view name : pack::copied_files()) SLUICE_TRY(fetch(name, pack::kMostCopied));
  return fetch(kIndex, kMostIndex);
}

Result<void> Puller::find_shards() {
  const std::string what = repository_.name().shown();
  if (repository_.find(kIndex) == nullptr && repository_.find(kSingle) == nullptr) {
    return make_error(ErrorCode::kNotFound, "{}: no weights found; {} or {} needed", what, kSingle, kIndex);
  }
  SLUICE_ASSIGN(const store::WeightFiles files, store::find_weight_files(work_.path(), true));
  for (const fs::path& path : files.paths) {
    const std::string name = path.lexically_relative(work_.path()).string();
    const hub::RepoFile* shard = repository_.find(name);
    if (shard == nullptr) {
      return make_error(ErrorCode::kNotFound, "{}: shard {} is missing ({} shards needed)", what,
                        hub::printable(name), files.paths.size());
    }
    if (!name.ends_with(".safetensors")) {
      return make_error(ErrorCode::kUnsupported, "{}: weights in {}; *.safetensors needed", what,
                        hub::printable(name));
    }
    shards_.push_back(shard);
  }
  return {};
}

Result<void> Puller::open_source() {
  hub::ShardWindowOptions options;
  options.download = download_;
  options.keep_source = kept();
  options.hold = true;
  options.progress = [this](const hub::RepoFile& shard, std::uint64_t done, std::uint64_t) {
    arriving(shard, done);
  };
  std::vector<std::string> names;
  for (const hub::RepoFile* shard : shards_) names.push_back(shard->path);
  SLUICE_ASSIGN(window_, hub::ShardWindow::start(repository_, names, work_.path(), options));
  const auto opener = [this](const fs::path& path) {
    return window_->open(path.lexically_relative(work_.path()).string());
  };
  SLUICE_ASSIGN(source_, store::open_checkpoint(work_.path(), opener));
  return {};
}

Result<PullPlan> Puller::make_plan(const pack::Outlook& outlook) {
  PullPlan plan{repository_, *source_};
  plan.store_bytes = outlook.bytes;
  plan.made_bytes = outlook.made;
  plan.shards = shards_.size();
  plan.shards_on_disk =
      options_.shards_on_disk > 0 ? options_.shards_on_disk : std::max(kShardsOnDisk, outlook.files_at_once);
  if (plan.shards_on_disk < outlook.files_at_once) {
    return make_error(ErrorCode::kInvalidArgument,
                      "{}: {} shards on disk allowed, {} needed at once: its tensors are spread so",
                      repository_.name().shown(), plan.shards_on_disk, outlook.files_at_once);
  }
  std::vector<std::uint64_t> sizes;
  for (std::size_t i = 0; i < shards_.size(); ++i) {
    if (needed_[i]) plan.download_bytes += shards_[i]->size;
    if (needed_[i]) ++plan.needed;
    if (needed_[i] || kept()) sizes.push_back(shards_[i]->size);
  }
  std::sort(sizes.begin(), sizes.end(), std::greater<>());
  if (!kept()) sizes.resize(std::min(sizes.size(), plan.shards_on_disk));
  plan.on_disk_bytes = std::accumulate(sizes.begin(), sizes.end(), std::uint64_t{0});
  progress_.to_download = plan.download_bytes;
  progress_.to_pack = plan.store_bytes;
  progress_.shards = plan.needed;
  return plan;
}

Result<void> Puller::check_space(const PullPlan& plan, const pack::Outlook& outlook) const {
  std::uint64_t there = 0;
  for (std::size_t i = 0; i < shards_.size(); ++i) {
    if (needed_[i] || kept()) there += there_of(work_.path(), *shards_[i]);
  }
  const auto less = [](std::uint64_t a, std::uint64_t b) { return a - std::min(a, b); };
  const std::uint64_t shards = less(plan.on_disk_bytes, there);
  const std::uint64_t store = outlook.was_there ? 0 : less(outlook.bytes, outlook.made);
  const auto check = [this](const fs::path& folder, std::uint64_t for_store,
                            std::uint64_t for_shards) -> Result<void> {
    if (for_store + for_shards == 0) return {};
    SLUICE_ASSIGN(const std::uint64_t free, options_.free_space(folder));
    if (for_store + for_shards <= free) return {};
    return make_error(ErrorCode::kIo, "{}: {} of disk free, {} needed: {} for the store, {} for shards",
                      folder.string(), format_size(free), format_size(for_store + for_shards),
                      format_size(for_store), format_size(for_shards));
  };
  if (on_one_disk(work_.path(), target_)) return check(target_, store, shards);
  SLUICE_TRY(check(target_, store, 0));
  return check(work_.path(), 0, shards);
}

Result<pack::PackReport> Puller::run_pack(const PullPlan& plan, const pack::Outlook& outlook) {
  std::set<std::string, std::less<>> packed;
  for (std::size_t i = 0; i < shards_.size(); ++i) {
    if (!outlook.needed[i]) packed.insert(shards_[i]->path);
  }
  begun_ = true;
  SLUICE_TRY(window_->begin(packed, plan.shards_on_disk));
  auto report = pack::pack(*source_, target_, pack_);
  window_->stop();
  if (report.ok()) return report;
  const std::lock_guard lock(mutex_);
  if (release_error_) return *release_error_;
  const auto failure = window_->failure();
  if (report.error().code == ErrorCode::kCancelled && failure) return *failure;
  return report.error();
}

/// Shards of a kept checkpoint that packing had no use for, or in an earlier run.
Result<std::uint64_t> Puller::fetch_rest() {
  std::uint64_t fetched = 0;
  for (const hub::RepoFile* shard : shards_) {
    std::error_code ec;
    if (fs::exists(work_.path() / shard->path, ec)) continue;
    begun_ = true;
    hub::DownloadOptions download = download_;
    tell([&](PullProgress& progress) { progress.to_download += shard->size; });
    download.progress = [this, shard](std::uint64_t done, std::uint64_t) { arriving(*shard, done); };
    SLUICE_ASSIGN(const auto done, hub::download_file(repository_, *shard, work_.path(), download));
    fetched += done.fetched;
  }
  return fetched;
}

void Puller::tell(const std::function<void(PullProgress&)>& change) {
  const std::lock_guard lock(mutex_);
  change(progress_);
  if (options_.on_progress) options_.on_progress(progress_);
}

void Puller::arriving(const hub::RepoFile& shard, std::uint64_t done) {
  tell([&](PullProgress& progress) {
    std::uint64_t& before = arrived_[shard.path];
    progress.downloaded += done - before;  // less, when a shard is fetched anew
    before = done;
  });
}

void Puller::release(std::size_t file) {
  const hub::RepoFile& shard = *shards_[file];
  const auto released = window_->release(shard.path);
  if (!released.ok()) {
    {
      const std::lock_guard lock(mutex_);
      if (!release_error_) release_error_ = released.error();
    }
    window_->stop();
    return;
  }
  if (!needed_[file]) return;
  arriving(shard, shard.size);
  tell([](PullProgress& progress) { ++progress.shards_done; });
}

}  // namespace

Result<PullReport> pull(const hub::Endpoint& endpoint, const hub::RepoName& repo, const fs::path& target,
                        const PullOptions& options) {
  hub::HttpClient client(endpoint, options.download.http);
  SLUICE_ASSIGN(const hub::Repository repository, hub::Repository::open(endpoint, repo, client));
  SLUICE_TRY(check_config(repository, client));
  SLUICE_TRY(pack::check_target(target));
  const bool kept = !options.keep_source.empty();
  std::error_code ignored;
  if (kept && fs::weakly_canonical(options.keep_source, ignored) == fs::weakly_canonical(target, ignored)) {
    return make_error(ErrorCode::kInvalidArgument, "{}: cannot hold both the store and the source",
                      target.string());
  }
  SLUICE_ASSIGN(const auto work, kept ? WorkFolder::open_kept(options.keep_source, repository)
                                      : WorkFolder::open_hidden(target / pack::kPullFolder, repository));
  Puller puller(repository, target, *work, options);
  auto report = puller.run();
  if (report.ok() ? !kept : work->fresh() && !puller.begun()) work->discard();
  return report;
}

}  // namespace sluice::pull
