#include "pack/pack.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <utility>

#include "base/checksum.h"
#include "base/file.h"
#include "base/threads.h"
#include "base/work_together.h"
#include "pack/importance.h"
#include "pack/journal.h"
#include "pack/layout.h"
#include "pack/tasks.h"
#include "pack/workspace.h"
#include "pack/writer.h"
#include "store/packed_store.h"

namespace sluice::pack {
namespace {

namespace fs = std::filesystem;

/// Finished work is recorded, after a sync, each time that so much was written.
constexpr std::uint64_t kSyncEvery = std::uint64_t{1} << 30;

/// Tells work apart whose parts must not be mixed: another source, other options, another program.
std::uint64_t identity_of(const store::Manifest& plan) {
  std::string text = store::manifest_text(plan);
  for (const store::SourceFile& file : plan.source_files) text += fmt::format("{} ", file.modified);
  return checksum(std::as_bytes(std::span(text)));
}

/// Whether a store is what `plan` would make, checksums aside.
bool is_same(store::Manifest there, const store::Manifest& plan) {
  for (store::StoredDense& tensor : there.dense) {
    for (store::FilePart& part : tensor.parts) part.checksum = 0;
  }
  for (store::StoredTier& tier : there.tiers) tier.sums_checksum = 0;
  std::fill(there.ngram_blocks.begin(), there.ngram_blocks.end(), 0);
  there.ngram_sample = 0;
  return store::manifest_text(there) == store::manifest_text(plan);
}

/// Whether a file of the source changed after the store in a folder was made: headers and sizes do not tell.
bool is_newer(const store::Manifest& plan, const fs::path& folder) {
  const auto manifest = open_file(folder / store::kManifestName);
  if (!manifest.ok()) return true;
  return std::any_of(plan.source_files.begin(), plan.source_files.end(),
                     [&](const store::SourceFile& file) { return file.modified > (*manifest)->modified(); });
}

/// Whether the store is made already. An error where another one must not be replaced.
Result<bool> is_there(const fs::path& target, const store::Manifest& plan, const PackOptions& options) {
  if (options.force || !store::is_store(target)) return false;
  const auto refuse = [&](std::string_view found) {
    return make_error(ErrorCode::kInvalidArgument, "{}: holds {}; --force replaces it", target.string(),
                      found);
  };
  const auto opened = store::PackedStore::open(target);
  if (!opened.ok()) return refuse("a damaged store (" + opened.error().message + ")");
  if (!is_same((*opened)->manifest(), plan)) return refuse("another packed store");
  if (is_newer(plan, target)) return refuse("a store made before files of the source changed");
  return true;
}

/// Whether all data files of interrupted work are there in full: the journal speaks of them.
bool is_complete(const fs::path& folder, const store::Manifest& manifest) {
  const auto has = [&](std::string_view name, std::uint64_t bytes) {
    std::error_code ec;
    return fs::file_size(folder / name, ec) == bytes && !ec;
  };
  if (!has(store::kDenseName, manifest.dense_bytes)) return false;
  if (!manifest.tables.empty() && !has(store::kNgramName, manifest.ngram_bytes)) return false;
  return std::all_of(manifest.tiers.begin(), manifest.tiers.end(), [&](const store::StoredTier& tier) {
    return has(store::records_name(tier.layout.format),
               static_cast<std::uint64_t>(manifest.records() * store::slot_bytes(tier.layout)));
  });
}

class Packer {
 public:
  Packer(const store::WeightSource& source, const PackOptions& options, store::Manifest& manifest,
         Workspace& workspace, Journal& journal, Writer& writer)
      : source_(source),
        options_(options),
        manifest_(manifest),
        workspace_(workspace),
        journal_(journal),
        writer_(writer) {}

  /// All tasks that the journal does not have; returns bytes that it had.
  Result<std::uint64_t> run_tasks(const Importance* importance, std::size_t threads);
  /// Checksums into the manifest; sums, copied files and the manifest into the folder.
  Result<void> finish();

 private:
  void work(const Importance* importance);
  Result<void> step(const Task& task, RecordConverter& converter);
  Result<void> record_pending();
  void call_done(std::span<const std::size_t> files);

  const store::WeightSource& source_;
  const PackOptions& options_;
  store::Manifest& manifest_;
  Workspace& workspace_;
  Journal& journal_;
  Writer& writer_;

  std::vector<Task> tasks_;
  std::atomic<std::size_t> next_{0};
  std::atomic<bool> failed_{false};
  std::mutex journal_mutex_;  // syncing and the journal; taken before the other one
  std::mutex mutex_;          // what follows, and on_progress
  std::vector<Journal::Entry> pending_;
  std::uint64_t pending_bytes_ = 0, done_bytes_ = 0, total_bytes_ = 0;
  std::vector<std::size_t> readers_;  // tasks not done yet that need a file
  std::optional<Error> error_;
};

Result<std::uint64_t> Packer::run_tasks(const Importance* importance, std::size_t threads) {
  std::uint64_t resumed = 0;
  readers_.resize(source_.files().size());
  for (Task& task : list_tasks(manifest_, source_)) {
    total_bytes_ += task.bytes;
    if (journal_.find(task.kind, task.index) != nullptr) {
      resumed += task.bytes;
      continue;
    }
    for (const std::size_t file : task.files) ++readers_[file];
    tasks_.push_back(std::move(task));
  }
  done_bytes_ = resumed;
  std::vector<std::size_t> unread;
  for (std::size_t file = 0; file < readers_.size(); ++file) {
    if (readers_[file] == 0) unread.push_back(file);
  }
  call_done(unread);
  if (options_.on_progress) options_.on_progress(done_bytes_, total_bytes_);
  work_together(threads, [&](std::size_t) { work(importance); });
  if (!error_ || options_.keep_on_error) {
    const auto recorded = record_pending();
    if (!recorded.ok() && !error_) error_ = recorded.error();
  }
  if (error_) return *error_;
  return resumed;
}

void Packer::work(const Importance* importance) {
  const auto fail = [this](Error error) {
    {
      const std::scoped_lock lock(mutex_);
      if (error_) return;
      error_ = std::move(error);
      failed_ = true;
    }
    if (options_.on_failure) options_.on_failure();
  };
  try {
    RecordConverter converter(source_, manifest_.tiers, importance);
    while (!failed_) {
      if (options_.cancelled && options_.cancelled()) {
        return fail(make_error(ErrorCode::kCancelled, "packing: cancelled"));
      }
      const std::size_t i = next_++;
      if (i >= tasks_.size()) return;
      if (auto done = step(tasks_[i], converter); !done.ok()) fail(done.error());
    }
  } catch (const std::bad_alloc&) {
    fail(make_error(ErrorCode::kOutOfMemory, "packing: out of memory"));
  }
}

Result<void> Packer::step(const Task& task, RecordConverter& converter) {
  SLUICE_ASSIGN(TaskSums sums, writer_.run(task, converter));
  std::vector<std::size_t> done;
  bool due = false;
  {
    const std::scoped_lock lock(mutex_);
    pending_.push_back({task.kind, task.index, std::move(sums)});
    pending_bytes_ += task.bytes;
    done_bytes_ += task.bytes;
    if (options_.on_progress) options_.on_progress(done_bytes_, total_bytes_);
    for (const std::size_t file : task.files) {
      if (--readers_[file] == 0) done.push_back(file);
    }
    due = pending_bytes_ >= kSyncEvery || (!done.empty() && options_.on_file_done);
  }
  if (due) SLUICE_TRY(record_pending());
  call_done(done);
  return {};
}

void Packer::call_done(std::span<const std::size_t> files) {
  if (!options_.on_file_done) return;
  for (const std::size_t file : files) options_.on_file_done(file);
}

/// Afterwards every task that was finished before the call is recorded, whoever finished it.
Result<void> Packer::record_pending() {
  const std::scoped_lock one_by_one(journal_mutex_);
  std::vector<Journal::Entry> entries;
  {
    const std::scoped_lock lock(mutex_);
    entries = std::exchange(pending_, {});
    pending_bytes_ = 0;
  }
  if (entries.empty()) return {};
  SLUICE_TRY(writer_.sync());
  return journal_.add(entries);
}

Result<void> Packer::finish() {
  const auto sums_of = [&](TaskKind kind, std::size_t index) -> const TaskSums& {
    return *journal_.find(kind, static_cast<std::int64_t>(index));
  };
  for (std::size_t i = 0; i < manifest_.dense.size(); ++i) {
    for (std::size_t p = 0; p < manifest_.dense[i].parts.size(); ++p) {
      manifest_.dense[i].parts[p].checksum = sums_of(TaskKind::kDense, i)[p];
    }
  }
  const auto records = static_cast<std::size_t>(manifest_.records());
  for (std::size_t t = 0; t < manifest_.tiers.size(); ++t) {
    std::string sums(8 * records, '\0');
    const auto bytes = std::as_writable_bytes(std::span(sums));
    for (std::size_t id = 0; id < records; ++id) {
      store::put_u64(bytes.data() + 8 * id, sums_of(TaskKind::kRecord, id)[t]);
    }
    manifest_.tiers[t].sums_checksum = checksum(bytes);
    const spec::Format format = manifest_.tiers[t].layout.format;
    SLUICE_TRY(write_text_file(workspace_.folder() / store::sums_name(format), sums));
  }
  if (!manifest_.tables.empty()) {
    for (std::size_t b = 0; b < manifest_.ngram_blocks.size(); ++b) {
      manifest_.ngram_blocks[b] = sums_of(TaskKind::kNgram, b).front();
    }
    SLUICE_ASSIGN(manifest_.ngram_sample, writer_.ngram_sample());
  }
  for (const store::StoredFile& file : manifest_.files) {
    SLUICE_ASSIGN(const std::string text, read_text_file(source_.folder() / file.name, file.bytes));
    if (text.size() != file.bytes || checksum(std::as_bytes(std::span(text))) != file.checksum) {
      return make_error(ErrorCode::kCorrupt, "{}: changed while packing",
                        (source_.folder() / file.name).string());
    }
    SLUICE_TRY(write_text_file(workspace_.folder() / file.name, text));
  }
  if (!options_.stamp.empty()) {
    SLUICE_TRY(write_text_file(workspace_.folder() / kStampName, options_.stamp));
  }
  return write_text_file(workspace_.folder() / store::kManifestName, store::manifest_text(manifest_));
}

/// What is published: the manifest last.
std::vector<std::string> names_of(const store::Manifest& manifest, const PackOptions& options) {
  std::vector<std::string> names = store::file_names(manifest);
  if (!options.stamp.empty()) names.emplace_back(kStampName);
  names.emplace_back(store::kManifestName);
  return names;
}

Result<void> check_space(const fs::path& target, const Workspace& workspace, std::uint64_t needed) {
  const std::uint64_t have = allocated_bytes(workspace.folder());
  SLUICE_ASSIGN(const std::uint64_t available, free_space(target));
  if (needed <= available + have) return {};
  return make_error(ErrorCode::kIo, "{}: {} bytes of disk free, {} needed", target.string(), available,
                    needed - have);
}

Result<PackReport> pack_in(const store::WeightSource& source, const fs::path& target,
                           const PackOptions& options, store::Manifest& manifest, Workspace& workspace,
                           bool& committed) {
  PackReport report;
  report.bytes = store_bytes(manifest);
  report.threads = static_cast<std::size_t>(options.jobs > 0 ? options.jobs : ThreadTeam::default_size());
  SLUICE_ASSIGN(Journal journal, Journal::open(workspace.journal(), identity_of(manifest)));
  if (journal.committing()) {
    committed = true;
    report.resumed = report.bytes;
    SLUICE_TRY(workspace.publish(names_of(manifest, options)));
    return report;
  }
  if (!journal.resumed() || !is_complete(workspace.folder(), manifest)) {
    SLUICE_TRY(workspace.clear());
    SLUICE_ASSIGN(journal, Journal::open(workspace.journal(), identity_of(manifest)));
  }
  if (!options.sparse) SLUICE_TRY(check_space(target, workspace, report.bytes));
  std::unique_ptr<Importance> importance;
  if (!options.importance.empty()) {
    SLUICE_ASSIGN(importance, Importance::load(options.importance, manifest.config));
  }
  SLUICE_ASSIGN(const auto writer, Writer::open(workspace.folder(), manifest, source, options.sparse));
  Packer packer(source, options, manifest, workspace, journal, *writer);
  SLUICE_ASSIGN(report.resumed, packer.run_tasks(importance.get(), report.threads));
  SLUICE_TRY(packer.finish());
  SLUICE_TRY(workspace.check_places(names_of(manifest, options)));
  SLUICE_TRY(journal.add_commit());
  // From here on an error leaves the work for the next run to end.
  committed = true;
  SLUICE_TRY(workspace.publish(names_of(manifest, options)));
  return report;
}

}  // namespace

Result<Outlook> look_ahead(const store::WeightSource& source, const fs::path& target,
                           const PackOptions& options) {
  SLUICE_ASSIGN(const store::Manifest manifest, plan_store(source, options));
  SLUICE_TRY(check_target(target));
  Outlook outlook;
  outlook.bytes = store_bytes(manifest);
  outlook.needed.resize(source.files().size());
  SLUICE_ASSIGN(outlook.was_there, is_there(target, manifest, options));
  if (outlook.was_there) return outlook;
  const Journal journal = Journal::look(journal_path(target), identity_of(manifest));
  outlook.made = bytes_made(target);
  if (journal.committing()) return outlook;
  std::vector<Task> tasks = list_tasks(manifest, source);
  std::erase_if(tasks, [&](const Task& task) { return journal.find(task.kind, task.index) != nullptr; });
  for (const Task& task : tasks) {
    for (const std::size_t file : task.files) outlook.needed[file] = true;
  }
  outlook.files_at_once = files_at_once(tasks);
  return outlook;
}

Result<PackReport> pack(const store::WeightSource& source, const fs::path& target,
                        const PackOptions& options) {
  if (target.empty()) {
    return make_error(ErrorCode::kInvalidArgument, "folder for the store: an empty name found, one needed");
  }
  SLUICE_ASSIGN(store::Manifest manifest, plan_store(source, options));
  SLUICE_ASSIGN(const bool there, is_there(target, manifest, options));
  if (there) return PackReport{store_bytes(manifest), 0, true, 0};
  SLUICE_ASSIGN(const auto workspace, Workspace::open(target, options.wait));
  if (options.wait && has_stamp(target, options.stamp) && store::open_store(target).ok()) {
    // Another process made it while this one waited.
    workspace->discard();
    return PackReport{store_bytes(manifest), 0, true, 0};
  }
  bool committed = false;
  auto report = pack_in(source, target, options, manifest, *workspace, committed);
  if (!report.ok() && !options.keep_on_error && !committed) workspace->discard();
  return report;
}

}  // namespace sluice::pack
