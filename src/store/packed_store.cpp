#include "store/packed_store.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <system_error>

#include "base/checksum.h"
#include "store/dense_table.h"
#include "store/matrix.h"
#include "store/ngram_rows.h"
#include "store/parameters.h"

namespace sluice::store {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kPiece = std::size_t{512} << 10;  // bytes

Error damaged(const File& file, std::string_view what, std::uint64_t found, std::uint64_t needed) {
  return make_error(ErrorCode::kCorrupt, "{}: {}: checksum {} found, {} needed: the file is damaged",
                    file.name(), what, checksum_text(found), checksum_text(needed));
}

}  // namespace

bool is_store(const fs::path& folder) {
  // Many programs have files of that name: ours says so in its first lines.
  const auto file = open_file(folder / kManifestName);
  if (!file.ok()) return false;
  std::string start(static_cast<std::size_t>(std::min<std::uint64_t>((*file)->size(), 256)), '\0');
  if (!(*file)->read_at(0, std::as_writable_bytes(std::span(start))).ok()) return false;
  return start.starts_with("{\"xxh3\": \"") || start.find("\"sluice-store\"") != std::string::npos;
}

Result<std::unique_ptr<WeightSource>> open_store(const fs::path& folder) {
  SLUICE_ASSIGN(auto opened, PackedStore::open(folder));
  return std::unique_ptr<WeightSource>(std::move(opened));
}

Result<std::unique_ptr<WeightSource>> open_source(const fs::path& folder) {
  return is_store(folder) ? open_store(folder) : open_checkpoint(folder);
}

Result<std::unique_ptr<File>> PackedStore::open_sized(std::string_view name, std::uint64_t bytes) const {
  SLUICE_ASSIGN(auto file, open_file(folder_ / name));
  if (file->size() != bytes) {
    return make_error(ErrorCode::kCorrupt, "{}: {} bytes found, {} needed, as {} says", file->name(),
                      file->size(), bytes, kManifestName);
  }
  return file;
}

Result<std::unique_ptr<PackedStore>> PackedStore::open(const fs::path& folder) {
  auto opened = std::make_unique<PackedStore>();
  PackedStore& store = *opened;
  store.folder_ = folder;
  SLUICE_ASSIGN(store.manifest_, read_manifest(folder));
  SLUICE_ASSIGN(store.dense_file_, store.open_sized(kDenseName, store.manifest_.dense_bytes));
  for (const StoredTier& tier : store.manifest_.tiers) SLUICE_TRY(store.open_tier(tier));
  if (!store.manifest_.tables.empty()) {
    SLUICE_ASSIGN(store.ngram_file_, store.open_sized(kNgramName, store.manifest_.ngram_bytes));
    SLUICE_ASSIGN(store.ngram_direct_, DirectFile::open(folder / kNgramName));
    SLUICE_TRY(store.check_sample());
  }
  for (const StoredFile& copied : store.manifest_.files) {
    SLUICE_ASSIGN(const auto file, store.open_sized(copied.name, copied.bytes));
    std::vector<std::byte> bytes(copied.bytes);
    SLUICE_TRY(file->read_at(0, bytes));
    if (const auto sum = checksum(bytes); sum != copied.checksum) {
      return damaged(*file, "the file", sum, copied.checksum);
    }
  }
  return opened;
}

Result<void> PackedStore::open_tier(const StoredTier& tier) {
  const std::int64_t records = manifest_.records();
  Tier opened;
  SLUICE_ASSIGN(opened.file, open_sized(records_name(tier.layout.format),
                                        static_cast<std::uint64_t>(records * slot_bytes(tier.layout))));
  SLUICE_ASSIGN(opened.direct, DirectFile::open(folder_ / records_name(tier.layout.format)));
  const std::uint64_t bytes = static_cast<std::uint64_t>(records) * sizeof(std::uint64_t);
  SLUICE_ASSIGN(const auto file, open_sized(sums_name(tier.layout.format), bytes));
  std::vector<std::byte> sums(bytes);
  SLUICE_TRY(file->read_at(0, sums));
  if (const auto sum = checksum(sums); sum != tier.sums_checksum) {
    return damaged(*file, "the file", sum, tier.sums_checksum);
  }
  opened.sums.resize(static_cast<std::size_t>(records));
  for (std::size_t i = 0; i < opened.sums.size(); ++i) opened.sums[i] = get_u64(sums.data() + 8 * i);
  tiers_.push_back(std::move(opened));
  layouts_.push_back(tier.layout);
  return {};
}

Result<void> PackedStore::check_sample() const {
  const NgramPages form(manifest_.tables.front().layout);
  SLUICE_ASSIGN(const std::uint64_t sample, ngram_sample(*ngram_file_, form.page_bytes));
  if (sample == manifest_.ngram_sample) return {};
  return make_error(ErrorCode::kCorrupt,
                    "{}: not the table of this model: checksum {} of sampled pages found, {} needed",
                    ngram_file_->name(), checksum_text(sample), checksum_text(manifest_.ngram_sample));
}

std::string PackedStore::form() const {
  return fmt::format("packed from {}", manifest_.source_form);
}

std::vector<SourceFile> PackedStore::files() const {
  std::vector<SourceFile> files{{std::string(kDenseName), manifest_.dense_bytes, 0, 0}};
  for (std::size_t t = 0; t < tiers_.size(); ++t) {
    files.push_back({records_name(layouts_[t].format), tiers_[t].file->size(), 0, 0});
  }
  if (ngram_file_) files.push_back({std::string(kNgramName), ngram_file_->size(), 0, 0});
  return files;
}

ParameterCounts PackedStore::parameters() const {
  const auto infos = dense_tensors(manifest_.config, manifest_.has_mtp);
  ParameterCounts counts = count_parameters(manifest_.config, infos, manifest_.has_mtp);
  for (const StoredTable& table : manifest_.tables) {
    counts.ngram += static_cast<std::uint64_t>(table.layout.rows * table.layout.columns);
  }
  return counts;
}

Result<const StoredDense*> PackedStore::dense_of(std::string_view name) const {
  if (name == "lm_head" && manifest_.config.tie_embeddings) name = "embed_tokens";
  const auto it = std::find_if(manifest_.dense.begin(), manifest_.dense.end(),
                               [&](const StoredDense& tensor) { return tensor.name == name; });
  if (it != manifest_.dense.end()) return &*it;
  return make_error(ErrorCode::kNotFound, "{}: no dense tensor {} in this model{}", folder_.string(), name,
                    name.starts_with("mtp.") && !has_mtp() ? " (the store has no MTP head)" : "");
}

Result<void> PackedStore::read_part(const StoredDense& tensor, std::size_t part,
                                    std::span<std::byte> out) const {
  const FilePart& place = tensor.parts[part];
  // Piece by piece, so that what is summed is still in the cache.
  Checksum sum;
  for (std::size_t at = 0; at < out.size(); at += kPiece) {
    const auto piece = out.subspan(at, std::min(kPiece, out.size() - at));
    SLUICE_TRY(dense_file_->read_at(place.offset + at, piece));
    sum.add(piece);
  }
  if (sum.value() == place.checksum) return {};
  return damaged(*dense_file_, "tensor " + tensor.name, sum.value(), place.checksum);
}

Result<DenseTensor> PackedStore::read_dense(std::string_view name) const {
  SLUICE_ASSIGN(const StoredDense* stored, dense_of(name));
  DenseTensor tensor;
  tensor.name = name;
  tensor.format = stored->format;
  tensor.group = stored->group;
  tensor.shape = stored->shape;
  std::int64_t rows = 1;
  for (std::size_t i = 0; i + 1 < stored->shape.size(); ++i) rows *= stored->shape[i];
  const TensorParts parts = tensor_parts(stored->format, stored->group, rows, stored->shape.back());
  tensor.scales_offset = parts.scales_offset;
  tensor.biases_offset = parts.biases_offset;
  SLUICE_ASSIGN(tensor.buffer, AlignedBuffer::create(parts.bytes));
  SLUICE_TRY(read_part(*stored, 0, tensor.buffer.bytes().first(parts.codes)));
  if (!spec::is_quantised(stored->format)) return tensor;
  SLUICE_TRY(read_part(*stored, 1, tensor.buffer.bytes().subspan(parts.scales_offset, parts.scales)));
  SLUICE_TRY(read_part(*stored, 2, tensor.buffer.bytes().subspan(parts.biases_offset, parts.scales)));
  return tensor;
}

Result<DenseTensor> PackedStore::read_dense_rows(std::string_view name, std::int64_t first,
                                                 std::int64_t rows) const {
  // Checksums cover whole parts, so the whole tensor is read.
  SLUICE_ASSIGN(const DenseTensor whole, read_dense(name));
  if (whole.shape.size() != 2 || first < 0 || rows < 1 || first > whole.shape[0] - rows) {
    return make_error(ErrorCode::kInvalidArgument, "{}: rows {} to {} asked for, the tensor is {}", name,
                      first, first + rows - 1, shape_text(whole.shape));
  }
  DenseTensor part;
  part.name = whole.name;
  part.format = whole.format;
  part.group = whole.group;
  part.shape = {rows, whole.shape[1]};
  const TensorParts row = tensor_parts(whole.format, whole.group, 1, whole.shape[1]);
  const TensorParts all = tensor_parts(whole.format, whole.group, rows, whole.shape[1]);
  part.scales_offset = all.scales_offset;
  part.biases_offset = all.biases_offset;
  SLUICE_ASSIGN(part.buffer, AlignedBuffer::create(all.bytes));
  const auto skip = static_cast<std::size_t>(first);
  std::memcpy(part.buffer.data(), whole.buffer.data() + skip * row.codes, all.codes);
  if (spec::is_quantised(whole.format)) {
    std::memcpy(part.buffer.data() + all.scales_offset,
                whole.buffer.data() + whole.scales_offset + skip * row.scales, all.scales);
    std::memcpy(part.buffer.data() + all.biases_offset,
                whole.buffer.data() + whole.biases_offset + skip * row.scales, all.scales);
  }
  return part;
}

std::optional<WeightSource::SlotPlace> PackedStore::slot_place(std::size_t tier, std::int64_t id) const {
  const DirectFile& file = *tiers_[tier].direct;
  if (!file.is_direct()) return std::nullopt;
  return SlotPlace{file.descriptor(), static_cast<std::uint64_t>(id * slot_bytes(layouts_[tier]))};
}

Result<void> PackedStore::check_slot(std::size_t tier, std::int64_t id,
                                     std::span<const std::byte> slot) const {
  return check_record(tier, id, checksum(slot, static_cast<std::uint64_t>(id)));
}

Result<void> PackedStore::read_slot(std::size_t tier, std::int64_t id, std::span<std::byte> slot) const {
  SLUICE_TRY(tiers_[tier].direct->read_at(static_cast<std::uint64_t>(id * slot_bytes(layouts_[tier])), slot));
  return check_slot(tier, id, slot);
}

Result<void> PackedStore::check_record(std::size_t tier, std::int64_t id, std::uint64_t sum) const {
  const std::uint64_t needed = tiers_[tier].sums[static_cast<std::size_t>(id)];
  if (sum == needed) return {};
  return damaged(*tiers_[tier].file,
                 fmt::format("expert {} of layer {}", id % config().experts, id / config().experts), sum,
                 needed);
}

Result<void> PackedStore::read_record(std::size_t tier, std::int64_t layer, std::int64_t expert,
                                      std::span<std::byte> record) const {
  if (tier >= tiers_.size() || layer < 0 || layer >= manifest_.record_layers() || expert < 0 ||
      expert >= config().experts) {
    return make_error(ErrorCode::kInvalidArgument,
                      "expert record {} of layer {} in precision {} asked for; the store has {} layers of {} "
                      "experts in {} precisions",
                      expert, layer, tier, manifest_.record_layers(), config().experts, tiers_.size());
  }
  const spec::RecordLayout& layout = layouts_[tier];
  if (static_cast<std::int64_t>(record.size()) != layout.bytes()) {
    return make_error(ErrorCode::kInvalidArgument, "expert record: room for {} bytes given, {} needed",
                      record.size(), layout.bytes());
  }
  const std::int64_t id = layer * config().experts + expert;
  const auto offset = static_cast<std::uint64_t>(id * slot_bytes(layout));
  const File& file = *tiers_[tier].file;
  // The checksum covers the slot's padding too.
  std::array<std::byte, kSlotAlignment> padding;
  const auto rest = std::span(padding).first(static_cast<std::size_t>(slot_bytes(layout) - layout.bytes()));
  SLUICE_TRY(file.read_at(offset, record));
  SLUICE_TRY(file.read_at(offset + record.size(), rest));
  Checksum sum(static_cast<std::uint64_t>(id));
  sum.add(record);
  sum.add(rest);
  return check_record(tier, id, sum.value());
}

Result<DenseFormat> PackedStore::dense_format(std::string_view name) const {
  SLUICE_ASSIGN(const StoredDense* tensor, dense_of(name));
  return DenseFormat{tensor->format, tensor->group};
}

Result<const StoredTable*> PackedStore::table_of(std::int64_t layer) const {
  for (const StoredTable& table : manifest_.tables) {
    if (table.layer == layer) return &table;
  }
  return make_error(ErrorCode::kInvalidArgument, "{}: layer {} has no n-gram embedding", folder_.string(),
                    layer);
}

Result<spec::NgramHash> PackedStore::ngram_hash(std::int64_t layer) const {
  SLUICE_ASSIGN(const StoredTable* table, table_of(layer));
  return table->hash;
}

Result<spec::NgramLayout> PackedStore::ngram_layout(std::int64_t layer) const {
  SLUICE_ASSIGN(const StoredTable* table, table_of(layer));
  return table->layout;
}

std::uint64_t PackedStore::ngram_bytes(std::int64_t layer) const {
  const auto table = table_of(layer);
  return table.ok() ? static_cast<std::uint64_t>(NgramPages(table.value()->layout).bytes()) : 0;
}

NgramReads PackedStore::ngram_reads(std::int64_t layer) const {
  const auto table = table_of(layer);
  if (!table.ok()) return {};
  const NgramPages form(table.value()->layout);
  const bool kept = manifest_.ngram_bytes <= kKeepNgramBelow;
  return {form.rows_per_page, form.page_bytes, static_cast<std::uint64_t>(kept ? form.bytes() : 0)};
}

Result<void> PackedStore::read_ngram_block(std::int64_t layer, std::int64_t number,
                                           std::span<std::byte> block) const {
  SLUICE_ASSIGN(const StoredTable* table, table_of(layer));
  const NgramPages form(table->layout);
  if (number < 0 || number >= form.pages || std::ssize(block) != form.page_bytes) {
    return make_error(ErrorCode::kInvalidArgument, "n-gram page {} of {} bytes asked for, there are {} of {}",
                      number, block.size(), form.pages, form.page_bytes);
  }
  return read_page(*ngram_direct_, table->first_page + number, block);
}

Result<void> PackedStore::read_page(const File& file, std::int64_t page, std::span<std::byte> out) const {
  SLUICE_TRY(file.read_at(static_cast<std::uint64_t>(page) * out.size(), out));
  if (is_sealed(out, static_cast<std::uint64_t>(page))) return {};
  return make_error(ErrorCode::kCorrupt, "{}: page {} (offset {}): wrong checksum: the file is damaged",
                    file.name(), page, static_cast<std::uint64_t>(page) * out.size());
}

Result<std::span<const std::byte>> PackedStore::kept_pages() const {
  if (manifest_.ngram_bytes > kKeepNgramBelow) return std::span<const std::byte>();
  return kept_->get(manifest_.ngram_bytes, [&](std::span<std::byte> pages) -> Result<void> {
    const auto page_bytes = static_cast<std::size_t>(NgramPages(manifest_.tables.front().layout).page_bytes);
    for (std::size_t at = 0; at < pages.size(); at += page_bytes) {
      SLUICE_TRY(
          read_page(*ngram_file_, static_cast<std::int64_t>(at / page_bytes), pages.subspan(at, page_bytes)));
    }
    return {};
  });
}

Result<void> PackedStore::read_ngram_rows(std::int64_t layer, std::span<const std::int64_t> rows,
                                          std::span<float> out) const {
  SLUICE_ASSIGN(const StoredTable* table, table_of(layer));
  const auto columns = static_cast<std::size_t>(table->layout.columns);
  if (out.size() != rows.size() * columns) {
    return make_error(ErrorCode::kInvalidArgument, "n-gram rows: room for {} values given, {} needed",
                      out.size(), rows.size() * columns);
  }
  const NgramPages form(table->layout);
  SLUICE_ASSIGN(const std::span<const std::byte> kept, kept_pages());
  std::vector<std::byte> buffer(kept.empty() ? static_cast<std::size_t>(form.page_bytes) : 0);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    SLUICE_TRY(check_ngram_row(table->layout, rows[i]));
    const std::int64_t page = table->first_page + form.page_of(rows[i]);
    const std::byte* at = buffer.data();
    if (kept.empty()) {
      SLUICE_TRY(read_page(*ngram_file_, page, buffer));
    } else {
      at = kept.data() + page * form.page_bytes;
    }
    decode_ngram_row(table->layout, at + rows[i] % form.rows_per_page * table->layout.row_bytes(),
                     out.subspan(i * columns, columns));
  }
  return {};
}

Result<void> PackedStore::read_ngram_range(std::int64_t layer, std::int64_t first,
                                           std::span<std::byte> out) const {
  SLUICE_ASSIGN(const StoredTable* table, table_of(layer));
  SLUICE_TRY(check_ngram_range(table->layout, first, out.size()));
  const NgramPages form(table->layout);
  const std::int64_t row_bytes = table->layout.row_bytes();
  std::vector<std::byte> page(static_cast<std::size_t>(form.page_bytes));
  const std::int64_t end = first + static_cast<std::int64_t>(out.size()) / row_bytes;
  for (std::int64_t row = first; row < end;) {
    const std::int64_t inside = row % form.rows_per_page;
    const std::int64_t count = std::min(end - row, form.rows_per_page - inside);
    SLUICE_TRY(read_page(*ngram_file_, table->first_page + form.page_of(row), page));
    std::memcpy(out.data() + (row - first) * row_bytes, page.data() + inside * row_bytes,
                static_cast<std::size_t>(count * row_bytes));
    row += count;
  }
  return {};
}

// A store is packed already: nobody goes through it file by file.
std::vector<std::size_t> PackedStore::files_of_dense(std::string_view) const {
  return {};
}
std::vector<std::size_t> PackedStore::files_of_record(std::int64_t, std::int64_t) const {
  return {};
}
std::vector<std::size_t> PackedStore::files_of_ngram(std::int64_t, std::int64_t, std::int64_t) const {
  return {};
}

}  // namespace sluice::store
