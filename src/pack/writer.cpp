#include "pack/writer.h"

#include <algorithm>
#include <array>

#include "base/checksum.h"
#include "base/file.h"

namespace sluice::pack {
namespace {

/// Values converted at once: bounds the memory of a thread.
constexpr std::int64_t kMostValues = std::int64_t{1} << 22;

}  // namespace

Result<std::unique_ptr<Writer>> Writer::open(const std::filesystem::path& folder,
                                             const store::Manifest& manifest,
                                             const store::WeightSource& source, bool sparse) {
  std::unique_ptr<Writer> writer(new Writer(manifest, source));
  writer->folder_ = folder;
  SLUICE_ASSIGN(writer->dense_, OutputFile::open(folder / store::kDenseName, manifest.dense_bytes, sparse));
  for (const store::StoredTier& tier : manifest.tiers) {
    const auto bytes = static_cast<std::uint64_t>(manifest.records() * store::slot_bytes(tier.layout));
    SLUICE_ASSIGN(auto file,
                  OutputFile::open(folder / store::records_name(tier.layout.format), bytes, sparse));
    writer->records_.push_back(std::move(file));
  }
  if (!manifest.tables.empty()) {
    SLUICE_ASSIGN(writer->ngram_, OutputFile::open(folder / store::kNgramName, manifest.ngram_bytes, sparse));
  }
  return writer;
}

Result<TaskSums> Writer::run(const Task& task, RecordConverter& converter) {
  switch (task.kind) {
    case TaskKind::kDense:
      return write_dense(manifest_.dense[static_cast<std::size_t>(task.index)]);
    case TaskKind::kRecord:
      return write_record(task.index, converter);
    case TaskKind::kNgram:
      break;
  }
  return write_ngram(task.index);
}

Result<TaskSums> Writer::write_dense(const store::StoredDense& tensor) {
  // Convolutions have two dimensions too, but are read whole like vectors.
  const bool matrix = tensor.shape.size() == 2 && !tensor.name.ends_with(".conv1d");
  if (!matrix) {
    SLUICE_ASSIGN(const auto whole, source_.read_dense(tensor.name));
    const auto bytes = whole.buffer.bytes().first(tensor.parts.front().bytes);
    SLUICE_TRY(dense_->write_at(tensor.parts.front().offset, bytes));
    return TaskSums{checksum(bytes)};
  }
  const std::int64_t rows = tensor.shape[0];
  const std::int64_t at_once = std::clamp<std::int64_t>(kMostValues / tensor.shape[1], 1, rows);
  std::vector<std::unique_ptr<Checksum>> sums;
  for (std::size_t p = 0; p < tensor.parts.size(); ++p) sums.push_back(std::make_unique<Checksum>());
  std::vector<std::uint64_t> written(tensor.parts.size(), 0);
  for (std::int64_t first = 0; first < rows; first += at_once) {
    SLUICE_ASSIGN(const Rows block, convert_rows(source_, tensor, first, std::min(at_once, rows - first)));
    for (std::size_t p = 0; p < tensor.parts.size(); ++p) {
      SLUICE_TRY(dense_->write_at(tensor.parts[p].offset + written[p], block.parts[p]));
      sums[p]->add(block.parts[p]);
      written[p] += block.parts[p].size();
    }
  }
  TaskSums result;
  for (const auto& sum : sums) result.push_back(sum->value());
  return result;
}

Result<TaskSums> Writer::write_record(std::int64_t id, RecordConverter& converter) {
  SLUICE_TRY(converter.convert(id / manifest_.config.experts, id % manifest_.config.experts));
  TaskSums sums;
  for (std::size_t tier = 0; tier < records_.size(); ++tier) {
    const auto slot = converter.slot(tier);
    SLUICE_TRY(records_[tier]->write_at(static_cast<std::uint64_t>(id) * slot.size(), slot));
    sums.push_back(checksum(slot, static_cast<std::uint64_t>(id)));
  }
  return sums;
}

Result<TaskSums> Writer::write_ngram(std::int64_t block) {
  const std::int64_t page_bytes = store::NgramPages(manifest_.tables.front().layout).page_bytes;
  const std::int64_t first_page = block * store::kNgramBlock / page_bytes;
  const std::int64_t end_page =
      std::min((block + 1) * store::kNgramBlock, static_cast<std::int64_t>(manifest_.ngram_bytes)) /
      page_bytes;
  constexpr std::int64_t kPagesAtOnce = 256;
  Checksum sum;
  std::vector<std::byte> pages;
  std::vector<std::byte> rows;
  for (std::int64_t page = first_page; page < end_page;) {
    const auto after = std::find_if(manifest_.tables.begin(), manifest_.tables.end(),
                                    [&](const store::StoredTable& t) { return t.first_page > page; });
    const store::StoredTable& table = *(after - 1);
    const store::NgramPages form(table.layout);
    const std::int64_t first = page - table.first_page;
    const std::int64_t count = std::min({kPagesAtOnce, end_page - page, form.pages - first});
    const std::int64_t row = first * form.rows_per_page;
    const std::int64_t row_count = std::min(count * form.rows_per_page, table.layout.rows - row);
    const auto row_bytes = static_cast<std::size_t>(table.layout.row_bytes());
    rows.resize(static_cast<std::size_t>(row_count) * row_bytes);
    SLUICE_TRY(convert_ngram(source_, table, row, rows));
    pages.assign(static_cast<std::size_t>(count * form.page_bytes), std::byte{});
    const std::size_t full = static_cast<std::size_t>(form.rows_per_page) * row_bytes;
    for (std::int64_t p = 0; p < count; ++p) {
      const auto to = std::span(pages).subspan(static_cast<std::size_t>(p * form.page_bytes),
                                               static_cast<std::size_t>(form.page_bytes));
      const std::size_t from = static_cast<std::size_t>(p) * full;
      std::copy_n(rows.begin() + static_cast<std::ptrdiff_t>(from), std::min(full, rows.size() - from),
                  to.begin());
      store::seal_page(to, static_cast<std::uint64_t>(page + p));
    }
    SLUICE_TRY(ngram_->write_at(static_cast<std::uint64_t>(page * form.page_bytes), pages));
    sum.add(pages);
    page += count;
  }
  return TaskSums{sum.value()};
}

Result<void> Writer::sync() {
  SLUICE_TRY(dense_->sync());
  for (const auto& file : records_) SLUICE_TRY(file->sync());
  if (ngram_) SLUICE_TRY(ngram_->sync());
  return {};
}

Result<std::uint64_t> Writer::ngram_sample() const {
  SLUICE_ASSIGN(const auto file, open_file(folder_ / store::kNgramName));
  return store::ngram_sample(*file, store::NgramPages(manifest_.tables.front().layout).page_bytes);
}

}  // namespace sluice::pack
