#include "pack/tasks.h"

#include <algorithm>
#include <map>

namespace sluice::pack {
namespace {

/// The source's files that hold the rows of some pages of ngram.bin.
std::vector<std::size_t> files_of_block(const store::Manifest& manifest, const store::WeightSource& source,
                                        std::int64_t first_page, std::int64_t end_page) {
  std::vector<std::size_t> files;
  for (const store::StoredTable& table : manifest.tables) {
    const store::NgramPages pages(table.layout);
    const std::int64_t first = std::max(first_page - table.first_page, std::int64_t{0});
    const std::int64_t end = std::min(end_page - table.first_page, pages.pages);
    if (first >= end) continue;
    const std::int64_t row = first * pages.rows_per_page;
    const std::int64_t rows = std::min(end * pages.rows_per_page, table.layout.rows) - row;
    const auto more = source.files_of_ngram(table.layer, row, rows);
    files.insert(files.end(), more.begin(), more.end());
  }
  std::sort(files.begin(), files.end());
  files.erase(std::unique(files.begin(), files.end()), files.end());
  return files;
}

}  // namespace

std::vector<Task> list_tasks(const store::Manifest& manifest, const store::WeightSource& source) {
  std::vector<Task> tasks;
  for (std::size_t i = 0; i < manifest.dense.size(); ++i) {
    std::uint64_t bytes = 0;
    for (const store::FilePart& part : manifest.dense[i].parts) bytes += part.bytes;
    tasks.push_back({TaskKind::kDense, static_cast<std::int64_t>(i), bytes,
                     source.files_of_dense(manifest.dense[i].name)});
  }
  std::uint64_t record_bytes = 0;
  for (const store::StoredTier& tier : manifest.tiers) {
    record_bytes += static_cast<std::uint64_t>(store::slot_bytes(tier.layout));
  }
  for (std::int64_t id = 0; id < manifest.records(); ++id) {
    const std::int64_t experts = manifest.config.experts;
    tasks.push_back(
        {TaskKind::kRecord, id, record_bytes, source.files_of_record(id / experts, id % experts)});
  }
  for (std::size_t block = 0; block < manifest.ngram_blocks.size(); ++block) {
    const std::int64_t page_bytes = store::NgramPages(manifest.tables.front().layout).page_bytes;
    const std::int64_t from = static_cast<std::int64_t>(block) * store::kNgramBlock;
    const std::int64_t to =
        std::min(from + store::kNgramBlock, static_cast<std::int64_t>(manifest.ngram_bytes));
    tasks.push_back({TaskKind::kNgram, static_cast<std::int64_t>(block),
                     static_cast<std::uint64_t>(to - from),
                     files_of_block(manifest, source, from / page_bytes, to / page_bytes)});
  }
  std::stable_sort(tasks.begin(), tasks.end(), [](const Task& a, const Task& b) {
    const auto last = [](const Task& task) { return task.files.empty() ? 0 : task.files.back() + 1; };
    return last(a) < last(b);
  });
  return tasks;
}

std::size_t files_at_once(const std::vector<Task>& tasks) {
  std::map<std::size_t, std::size_t> last_use;  // of a file: the last file of the last task that reads it
  for (const Task& task : tasks) {
    for (const std::size_t file : task.files) last_use[file] = std::max(last_use[file], task.files.back());
  }
  std::size_t most = 0;
  for (const auto& [arriving, unused] : last_use) {
    const auto held = std::count_if(last_use.begin(), last_use.upper_bound(arriving),
                                    [&](const auto& use) { return use.second >= arriving; });
    most = std::max(most, static_cast<std::size_t>(held));
  }
  return most;
}

}  // namespace sluice::pack
