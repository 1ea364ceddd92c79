// The n-gram rows of a step: known from its tokens, read from disk while its first layers are computed.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "base/buffer.h"
#include "base/result.h"
#include "experts/batch_reader.h"
#include "experts/expert_provider.h"
#include "experts/row_cache.h"
#include "store/source.h"

namespace sluice::experts {

/// What became of the rows that were wanted, since the start: wanted = repeated + cached + read.
struct NgramCounts {
  std::uint64_t wanted = 0;
  std::uint64_t repeated = 0;  // wanted once already in the same step
  std::uint64_t cached = 0;    // in memory
  std::uint64_t read = 0;      // wanted from disk
  std::uint64_t reads = 0;     // pages, or single rows of a table without pages
  std::uint64_t bytes_read = 0;
  std::uint64_t retries = 0;
  double wait_seconds = 0;  // for reads, in layers that had nothing left to compute without them
};

/// Tables that are not kept in memory are read in one batch a step: each distinct row once, each page once,
/// what the cache has not at all. All memory is taken at the start. Values never depend on what was in memory
/// or came when. Everything but the reading is done by the thread that calls.
class NgramRows {
 public:
  /// The table of a layer.
  struct Table {
    std::int64_t layer = 0;
    spec::NgramLayout layout;
    store::NgramReads reads;
  };
  struct Options {
    std::int64_t rows = 0;                                // the most of a step
    std::int64_t heads = 0;                               // table rows of each
    std::uint64_t cache_bytes = std::uint64_t{16} << 20;  // at most; all tables share it equally
    std::size_t threads = 16;                             // the reads under way at once
    int retries = 2;
  };
  /// Ends a step's reading: afterwards no thread reads, whatever became of the step.
  struct EndStep {
    void operator()(NgramRows* rows) const { rows->cancel(); }
  };
  using Step = std::unique_ptr<NgramRows, EndStep>;
  /// Writes the table rows that the step wants of a layer: [rows][heads].
  using Want = std::function<void(std::int64_t layer, std::span<std::int64_t> rows)>;
  /// Receives values [..][heads][columns] of some of the step's rows, `first_row` being the first of them.
  using Sink = std::function<void(std::int64_t first_row, std::span<const float> values)>;

  /// Tables of the source's n-gram layers.
  static Result<std::vector<Table>> tables_of(const store::WeightSource& source);
  /// Bytes of memory for such tables: kept ones, the cache, room for a step.
  static std::uint64_t cost(std::span<const Table> tables, const Options& options);

  /// `source` lives longer.
  static Result<std::unique_ptr<NgramRows>> create(const store::WeightSource& source, const Options& options);

  /// Begins to read what a step of `rows` rows wants, all layers of it. Error: a row that a table does not
  /// have.
  /// What was begun before ends.
  Result<Step> start(std::int64_t rows, Use use, const Want& want);
  /// Of a step that is begun: waits for a layer's rows and hands on their values, in order, a few rows of the
  /// step at a time. Once a layer and step. An error names the table and the page; the next step is not
  /// affected.
  Result<void> take(std::int64_t layer, const Sink& sink);

  [[nodiscard]] NgramCounts counts() const;
  /// cost() of what there is.
  [[nodiscard]] std::uint64_t bytes() const;
  /// Reads under way.
  [[nodiscard]] std::size_t running() const { return reader_ ? reader_->running() : 0; }

 private:
  /// A read's rows, in Part::missing.
  struct Block {
    std::uint32_t begin = 0, end = 0;
  };
  /// A layer's table and its part of the step. A slot is the place of a distinct row, in ascending order of
  /// rows.
  struct Part {
    Table table;
    std::vector<std::int64_t> wanted;  // [rows][heads]
    // Of a table that is not kept:
    std::vector<std::uint32_t> order;    // while sorting, places in `wanted`; then one such place a slot
    std::vector<std::uint32_t> slot;     // of each wanted row
    std::vector<std::uint32_t> missing;  // slots that the cache did not have
    std::vector<Block> blocks;
    std::vector<std::byte> staged;  // [slots][row_bytes], as stored
    std::size_t distinct = 0, absent = 0;
    std::unique_ptr<RowCache> cache;

    [[nodiscard]] bool kept() const { return table.reads.kept_bytes > 0; }
    [[nodiscard]] std::size_t row_bytes() const { return static_cast<std::size_t>(table.layout.row_bytes()); }
    [[nodiscard]] std::int64_t row_at(std::uint32_t s) const { return wanted[order[s]]; }
    [[nodiscard]] std::span<std::byte> stored(std::uint32_t s) {
      return std::span(staged).subspan(s * row_bytes(), row_bytes());
    }
  };

  NgramRows(const store::WeightSource& source, const Options& options) : source_(source), options_(options) {}
  static std::uint64_t cache_share(std::span<const Table> tables, const Options& options);
  /// Throws std::bad_alloc and std::system_error.
  Result<void> prepare(std::span<const Table> tables);
  void allocate(const Table& table, std::uint64_t cache_bytes);
  /// Distinct rows and the blocks to read for those that the cache lacks; how many blocks.
  Result<std::size_t> sort_out(Part& part);
  Result<void> read(const BatchReader::Read& read);
  Result<void> values_of(Part& part, std::size_t first, std::span<float> out);
  void cancel();

  const store::WeightSource& source_;
  Options options_;
  std::vector<Part> parts_;
  AlignedBuffer blocks_;  // [threads][block_stride_]
  std::size_t block_stride_ = 0;
  std::vector<float> values_;  // [kTileRows][heads][columns]
  std::int64_t rows_ = 0;      // of the step
  RowCache::Expect expect_ = RowCache::Expect::kAgain;
  NgramCounts counts_;
  std::atomic<std::uint64_t> bytes_read_ = 0;
  std::unique_ptr<BatchReader> reader_;  // where a table is not kept; last: its threads end first
};

}  // namespace sluice::experts
