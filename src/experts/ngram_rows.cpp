#include "experts/ngram_rows.h"

#include <algorithm>
#include <cassert>
#include <chrono>
#include <cstring>
#include <limits>
#include <new>
#include <numeric>
#include <system_error>

#include "store/ngram_rows.h"

namespace sluice::experts {
namespace {

constexpr std::int64_t kTileRows = 32;
constexpr std::size_t kPage = 4096;

std::size_t in_pages(std::int64_t bytes) {
  return (static_cast<std::size_t>(bytes) + kPage - 1) / kPage * kPage;
}

}  // namespace

Result<std::vector<NgramRows::Table>> NgramRows::tables_of(const store::WeightSource& source) {
  std::vector<Table> tables;
  if (!source.config().ple) return tables;
  for (const std::int64_t layer : source.config().ple->layers) {
    SLUICE_ASSIGN(const spec::NgramLayout layout, source.ngram_layout(layer));
    tables.push_back({layer, layout, source.ngram_reads(layer)});
  }
  return tables;
}

std::uint64_t NgramRows::cache_share(std::span<const Table> tables, const Options& options) {
  const auto read = std::count_if(tables.begin(), tables.end(),
                                  [](const Table& table) { return table.reads.kept_bytes == 0; });
  return read == 0 ? 0 : options.cache_bytes / static_cast<std::uint64_t>(read);
}

std::uint64_t NgramRows::cost(std::span<const Table> tables, const Options& options) {
  const auto places = static_cast<std::uint64_t>(options.rows * options.heads);
  const std::uint64_t share = cache_share(tables, options);
  std::uint64_t bytes = 0;
  std::size_t stride = 0;
  std::int64_t columns = 0;
  for (const Table& table : tables) {
    columns = std::max(columns, table.layout.columns);
    bytes += table.reads.kept_bytes + places * sizeof(std::int64_t);
    if (table.reads.kept_bytes > 0) continue;
    const auto row_bytes = static_cast<std::size_t>(table.layout.row_bytes());
    stride = std::max(stride, in_pages(table.reads.block_bytes));
    bytes += places * (3 * sizeof(std::uint32_t) + sizeof(Block) + row_bytes);
    bytes += RowCache::cost(share, row_bytes, table.layout.rows);
  }
  const auto tile = static_cast<std::uint64_t>(std::min(kTileRows, options.rows) * options.heads * columns);
  return bytes + options.threads * stride + tile * sizeof(float);
}

std::uint64_t NgramRows::bytes() const {
  std::uint64_t bytes = blocks_.size() + values_.size() * sizeof(float);
  for (const Part& part : parts_) {
    bytes += part.table.reads.kept_bytes + part.wanted.size() * sizeof(std::int64_t) +
             (part.order.size() + part.slot.size() + part.missing.size()) * sizeof(std::uint32_t) +
             part.blocks.size() * sizeof(Block) + part.staged.size() + (part.cache ? part.cache->bytes() : 0);
  }
  return bytes;
}

void NgramRows::allocate(const Table& table, std::uint64_t cache_bytes) {
  Part& part = parts_.emplace_back();
  part.table = table;
  const auto places = static_cast<std::size_t>(options_.rows * options_.heads);
  part.wanted.resize(places);
  if (part.kept()) return;
  for (auto* list : {&part.order, &part.slot, &part.missing}) list->resize(places);
  part.blocks.resize(places);
  part.staged.resize(places * part.row_bytes());
  part.cache = std::make_unique<RowCache>(cache_bytes, part.row_bytes(), table.layout.rows);
  block_stride_ = std::max(block_stride_, in_pages(table.reads.block_bytes));
}

Result<std::unique_ptr<NgramRows>> NgramRows::create(const store::WeightSource& source,
                                                     const Options& options) {
  SLUICE_ASSIGN(const std::vector<Table> tables, tables_of(source));
  if (options.heads > 0 && options.rows > std::numeric_limits<std::int32_t>::max() / options.heads) {
    return make_error(ErrorCode::kLimit, "a step of {} rows: at most {} with {} n-gram rows each",
                      options.rows, std::numeric_limits<std::int32_t>::max() / options.heads, options.heads);
  }
  try {
    std::unique_ptr<NgramRows> made(new NgramRows(source, options));
    SLUICE_TRY(made->prepare(tables));
    return made;
  } catch (const std::bad_alloc&) {
    return make_error(ErrorCode::kOutOfMemory, "n-gram rows: {} bytes of memory needed",
                      cost(tables, options));
  } catch (const std::system_error& error) {
    return make_error(ErrorCode::kOutOfMemory, "{} threads to read n-gram rows: {}", options.threads,
                      error.what());
  }
}

Result<void> NgramRows::prepare(std::span<const Table> tables) {
  const std::uint64_t share = cache_share(tables, options_);
  std::int64_t columns = 0;
  for (const Table& table : tables) {
    allocate(table, share);
    columns = std::max(columns, table.layout.columns);
  }
  values_.resize(static_cast<std::size_t>(std::min(kTileRows, options_.rows) * options_.heads * columns));
  if (block_stride_ == 0) return {};
  SLUICE_ASSIGN(blocks_, AlignedBuffer::create(options_.threads * block_stride_, kPage));
  reader_ = std::make_unique<BatchReader>([this](const BatchReader::Read& which) { return read(which); },
                                          options_.threads, tables.size(), options_.retries);
  return {};
}

Result<NgramRows::Step> NgramRows::start(std::int64_t rows, Use use, const Want& want) {
  assert(rows <= options_.rows);
  cancel();
  rows_ = rows;
  expect_ = use == Use::kDecode ? RowCache::Expect::kAgain : RowCache::Expect::kOnce;
  const auto places = static_cast<std::size_t>(rows * options_.heads);
  std::vector<std::size_t> reads;
  for (Part& part : parts_) {
    want(part.table.layer, std::span(part.wanted).first(places));
    counts_.wanted += places;
    SLUICE_ASSIGN(const std::size_t blocks, sort_out(part));
    reads.push_back(blocks);
  }
  if (reader_) reader_->start(reads);
  return Step(this);
}

Result<std::size_t> NgramRows::sort_out(Part& part) {
  const auto places = static_cast<std::size_t>(rows_ * options_.heads);
  if (part.kept()) {
    counts_.cached += places;
    return std::size_t{0};
  }
  const auto order = std::span(part.order).first(places);
  std::iota(order.begin(), order.end(), 0U);
  std::sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
    return part.wanted[a] != part.wanted[b] ? part.wanted[a] < part.wanted[b] : a < b;
  });
  for (const std::uint32_t outer : {order.front(), order.back()}) {
    SLUICE_TRY(store::check_ngram_row(part.table.layout, part.wanted[outer]));
  }
  part.distinct = part.absent = 0;
  std::size_t blocks = 0;
  std::int64_t block = -1;
  std::int64_t last = -1;
  for (const std::uint32_t place : order) {
    const std::int64_t row = part.wanted[place];
    if (row != last) {
      last = row;
      const auto s = static_cast<std::uint32_t>(part.distinct++);
      order[s] = place;  // behind what is still to be seen
      if (const std::byte* cached = part.cache->find(row, expect_)) {
        std::memcpy(part.stored(s).data(), cached, part.row_bytes());
      } else {
        if (row / part.table.reads.block_rows != block) {
          block = row / part.table.reads.block_rows;
          const auto begin = static_cast<std::uint32_t>(part.absent);
          part.blocks[blocks++] = {begin, begin};
        }
        part.missing[part.absent++] = s;
        ++part.blocks[blocks - 1].end;
      }
    }
    part.slot[place] = static_cast<std::uint32_t>(part.distinct - 1);
  }
  counts_.repeated += places - part.distinct;
  counts_.cached += part.distinct - part.absent;
  counts_.read += part.absent;
  return blocks;
}

Result<void> NgramRows::read(const BatchReader::Read& read) {
  Part& part = parts_[read.group];
  const store::NgramReads& form = part.table.reads;
  const Block& rows = part.blocks[read.number];
  const std::int64_t number = part.row_at(part.missing[rows.begin]) / form.block_rows;
  const std::span<std::byte> block(blocks_.data() + read.thread * block_stride_,
                                   static_cast<std::size_t>(form.block_bytes));
  if (auto got = source_.read_ngram_block(part.table.layer, number, block); !got.ok()) {
    return make_error(got.error().code, "n-gram table of layer {}, {} {}: {}", part.table.layer,
                      form.block_rows > 1 ? "page" : "row", number, got.error().message);
  }
  bytes_read_.fetch_add(block.size(), std::memory_order_relaxed);
  for (std::uint32_t i = rows.begin; i < rows.end; ++i) {
    const std::uint32_t s = part.missing[i];
    const auto inside = static_cast<std::size_t>(part.row_at(s) % form.block_rows);
    std::memcpy(part.stored(s).data(), block.data() + inside * part.row_bytes(), part.row_bytes());
  }
  return {};
}

Result<void> NgramRows::take(std::int64_t layer, const Sink& sink) {
  const auto found =
      std::find_if(parts_.begin(), parts_.end(), [&](const Part& p) { return p.table.layer == layer; });
  assert(found != parts_.end());
  Part& part = *found;
  if (!part.kept()) {
    const auto begun = std::chrono::steady_clock::now();
    const auto read = reader_->wait(static_cast<std::size_t>(found - parts_.begin()));
    counts_.wait_seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
    if (!read.ok()) return read.error();
    for (const std::uint32_t s : std::span(part.missing).first(part.absent)) {
      part.cache->insert(part.row_at(s), part.stored(s), expect_);
    }
  }
  const auto width = static_cast<std::size_t>(options_.heads * part.table.layout.columns);
  for (std::int64_t row = 0; row < rows_; row += kTileRows) {
    const auto count = static_cast<std::size_t>(std::min(kTileRows, rows_ - row));
    const auto out = std::span(values_).first(count * width);
    SLUICE_TRY(values_of(part, static_cast<std::size_t>(row * options_.heads), out));
    sink(row, out);
  }
  return {};
}

// Values of wanted rows from place `first` on, as many as `out` holds.
Result<void> NgramRows::values_of(Part& part, std::size_t first, std::span<float> out) {
  const auto columns = static_cast<std::size_t>(part.table.layout.columns);
  const std::size_t count = out.size() / columns;
  if (part.kept()) {
    const auto rows = std::span<const std::int64_t>(part.wanted).subspan(first, count);
    auto read = source_.read_ngram_rows(part.table.layer, rows, out);
    for (int i = 0; i < options_.retries && !read.ok(); ++i) {
      ++counts_.retries;
      read = source_.read_ngram_rows(part.table.layer, rows, out);
    }
    return read;
  }
  for (std::size_t i = 0; i < count; ++i) {
    store::decode_ngram_row(part.table.layout, part.stored(part.slot[first + i]).data(),
                            out.subspan(i * columns, columns));
  }
  return {};
}

void NgramRows::cancel() {
  if (reader_) reader_->cancel();
}

NgramCounts NgramRows::counts() const {
  NgramCounts counts = counts_;
  if (reader_) {
    const BatchCounts reader = reader_->counts();
    counts.reads = reader.reads;
    counts.retries += reader.retries;
  }
  counts.bytes_read = bytes_read_.load(std::memory_order_relaxed);
  return counts;
}

}  // namespace sluice::experts
