// A loaded qwen4_exp model: the trunk and the MTP head over backend operations (model.md sections 3 and 4).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "experts/expert_provider.h"
#include "experts/ngram_rows.h"
#include "experts/ring_reader.h"
#include "experts/statistics.h"
#include "model/rope.h"
#include "model/scratch.h"
#include "model/sequence_state.h"
#include "model/weights.h"
#include "store/source.h"

namespace sluice::model {

/// How the MTP head normalises the wide residual: over all streams at once as the model's authors do, or each
/// stream by itself as some engines do. Only the acceptance of drafts depends on it.
enum class MtpHiddenNorm { kGlobal, kPerStream };

/// How records come into the pool; without a pool nothing of it matters.
struct StreamOptions {
  bool ring = true;       // io_uring where possible; threads otherwise
  bool lookahead = true;  // read the next layer's likely records
  bool in_place = true;   // a device may compute with records in host memory (experts::DeviceTier)
  /// Keep what was hot in the store's folder, and start with it.
  bool keep_heat = false;
  /// These two change results. A decode step's records that are not in memory and that nobody foresaw are
  /// read in this precision (a place in record_layouts()) ...
  std::optional<std::size_t> miss_tier;
  /// ... or left out, if no row gives them this weight.
  float cut_weak = 0;
  /// Bytes that the system wants back (experts::PooledExperts).
  std::function<std::uint64_t()> pressure;
  std::size_t least_slots = 2;
  std::function<void(const std::string&)> on_notice;
  /// Stands in front of the source's own reading, for tests of faults.
  std::function<experts::SlotSource(experts::SlotSource)> wrap;
  experts::RecordReader::Options reader;
};

struct ModelOptions {
  std::int64_t max_rows = 256;   // most rows of one forward call: the prefill chunk
  int load_threads = 0;          // that read weights at the start; 0: one for each physical core
  bool mtp = true;               // load the MTP head where there is one
  std::size_t tier = 0;          // precision of the experts: a place in the source's record_layouts()
  std::uint64_t pool_bytes = 0;  // memory for expert records, read as they are needed; 0: all are kept
  /// Of the device, for records that are in the pool or were; 0: all are read where the pool has them.
  std::uint64_t device_pool_bytes = 0;
  StreamOptions stream;
  /// Benchmarks: all records of a layer are copies of its first.
  bool repeat_records = false;
  MtpHiddenNorm mtp_hidden_norm = MtpHiddenNorm::kGlobal;
  KvFormat kv = KvFormat::kF32;  // of the states it makes
  bool dense_attention =
      false;  // ignore the indexer (for comparison: this changes results beyond its budget)
};

/// Tokens appended to one sequence in a step.
struct Segment {
  SequenceState* state = nullptr;
  std::span<const std::int32_t> tokens;
};

/// Some of the rows that were asked for, `first_row` counting among those (with Logits::kLast row i is
/// segment i's last). Addresses are valid during the call only.
using RowsSink =
    std::function<Result<void>(std::int64_t first_row, std::int64_t rows, Dev<const float> data)>;

struct ForwardOptions {
  enum class Logits { kNone, kLast, kAll };  // kLast: the last row of each segment
  Logits logits = Logits::kLast;
  /// Receives logits [rows][Vc], a few rows at a time.
  RowsSink on_logits;
  /// Receives the head's logits for MTP rows; row r is the MTP row made with the token of step row r (see
  /// model.md section 4: MTP row j needs token j + 1), so the first row of a sequence has none.
  RowsSink on_mtp_logits;
  /// Called after each trunk layer with the wide residual [rows][W].
  std::function<Result<void>(std::int64_t layer, std::int64_t rows, Dev<const float> wide)> on_layer;
};

/// What the routed experts of one layer were given in a step, and by which records it is computed.
struct ExpertStep {
  std::int64_t record_layer = 0;
  std::int64_t rows = 0;
  Dev<const float> x;  // [rows][hidden]
  bool first = true;   // of a layer's calls: experts that a pool cannot hold at once come in several
  std::vector<std::uint32_t> ids;                 // the expert of each entry
  std::span<const backend::ExpertEntry> entries;  // records, in memory during the call
  spec::ExpertGeometry geometry;
  std::span<const std::uint32_t> begin;  // [entries + 1]
  std::span<const std::uint32_t>
      pair_row;  // entry u works on rows pair_row[begin[u] .. begin[u + 1]), ascending
};
using ExpertObserver = std::function<Result<void>(const ExpertStep& step)>;

/// How a model of steps of up to `max_rows` rows reads its n-gram rows.
experts::NgramRows::Options ngram_options(const spec::ModelConfig& config, std::int64_t max_rows);

class Model {
 public:
  /// What a step of so many rows is to the experts and n-gram rows.
  static experts::Use use_of(std::int64_t rows) {
    return rows > kStepRows ? experts::Use::kPrefill : experts::Use::kDecode;
  }

  static Result<std::unique_ptr<Model>> load(std::unique_ptr<store::WeightSource> source,
                                             backend::Backend& backend, const ModelOptions& options,
                                             const experts::Progress& progress = {});

  /// Computes one step: the rows of all segments together. Every state then holds its rows as a pending step,
  /// to be committed or rolled back by the caller; after an error all are rolled back. Each sequence's
  /// results do not depend on the others, on how its tokens are split into steps, or on max_rows.
  Result<void> forward(std::span<const Segment> segments, const ForwardOptions& options);

  /// One row of the MTP head beyond the committed sequence: draft number `depth` (0: from the last committed
  /// token's wide residual; n: chained on draft n - 1). `token` is the token that follows. Logits [1][Vc] go
  /// to `sink`. Nothing of it outlives the next forward call on the state.
  Result<void> draft(SequenceState& state, std::int32_t token, std::int64_t depth, const RowsSink& sink);

  Result<std::unique_ptr<SequenceState>> new_state(std::int64_t context, std::int64_t step_rows = kStepRows);

  [[nodiscard]] const spec::ModelConfig& config() const { return source_->config(); }
  [[nodiscard]] const store::WeightSource& source() const { return *source_; }
  [[nodiscard]] backend::Backend& backend() const { return backend_; }
  [[nodiscard]] bool has_mtp() const { return weights_.mtp.has_value(); }
  [[nodiscard]] std::int64_t max_rows() const { return options_.max_rows; }
  /// Ignores the indexer from the next step on, for comparison: beyond its budget this changes results.
  void set_dense_attention(bool dense) { options_.dense_attention = dense; }
  /// Changes drafts from the next step on, never the trunk.
  void set_mtp_hidden_norm(MtpHiddenNorm norm) { options_.mtp_hidden_norm = norm; }
  [[nodiscard]] MtpHiddenNorm mtp_hidden_norm() const { return options_.mtp_hidden_norm; }
  /// Is called after the experts of every layer of every step from the next on; an empty one ends it. What it
  /// fails with ends the step.
  void set_expert_observer(ExpertObserver observer) { observer_ = std::move(observer); }
  /// Bytes of dense weights, expert records and working memory.
  [[nodiscard]] std::uint64_t weight_bytes() const { return weights_.bytes; }
  /// Of those, the embedding table's, of which a step reads a row for each token; 0 where the head reads it
  /// too.
  [[nodiscard]] std::uint64_t embedding_bytes() const { return weights_.embedding_bytes; }
  [[nodiscard]] std::uint64_t expert_bytes() const { return experts_->bytes(); }
  /// Waits for expert records that are being read ahead.
  void settle_experts() { experts_->settle(); }
  /// Counts each expert's use and times a step's parts, from the next step on. Where every record is in a
  /// device's memory that makes steps wait for the host; elsewhere it is always done.
  void count_experts(bool count) { count_experts_ = count; }
  /// What steps did with their records and their time, since the start.
  [[nodiscard]] experts::Statistics& statistics() { return *statistics_; }
  [[nodiscard]] const experts::ExpertProvider& experts() const { return *experts_; }
  [[nodiscard]] experts::ExpertCounts expert_counts() const { return experts_->counts(); }
  /// Bytes of memory for n-gram rows, kept tables among them, and what became of the rows that were wanted.
  [[nodiscard]] std::uint64_t ngram_bytes() const { return ngram_->bytes(); }
  [[nodiscard]] experts::NgramCounts ngram_counts() const { return ngram_->counts(); }
  [[nodiscard]] std::uint64_t scratch_bytes() const { return scratch_->bytes(); }

 private:
  Model(std::unique_ptr<store::WeightSource> source, backend::Backend& backend, const ModelOptions& options)
      : source_(std::move(source)), backend_(backend), options_(options) {}

  /// Rows of one sequence inside a step: rows first .. first + rows - 1, the first at position `base`.
  struct Run {
    SequenceState* state = nullptr;
    std::int64_t first = 0;
    std::int64_t rows = 0;
    std::int64_t base = 0;
  };
  using Runs = std::span<const Run>;
  static constexpr std::int64_t kMtpLayer = -1;

  [[nodiscard]] backend::WideShape wide_shape(std::int64_t rows) const {
    return {rows, config().streams, config().hidden};
  }
  /// Times a part of a step until the end of the scope.
  [[nodiscard]] experts::PartTimer timed(experts::Part part, std::int64_t layer = -1) {
    return {&*statistics_, part, layer};
  }
  template <class T>
  void upload(Dev<T> to, std::span<const T> from) {
    backend_.upload(Dev(reinterpret_cast<std::byte*>(to.address())), std::as_bytes(from));
  }
  void copy_floats(Dev<float> to, Dev<const float> from, std::int64_t count);

  Result<void> check(std::span<const Segment> segments) const;
  Result<void> run_step(Runs runs, std::int64_t rows, const ForwardOptions& options);
  Result<void> trunk(Runs runs, std::int64_t rows, const ForwardOptions& options);
  void set_positions(const RopeTable& table, Runs runs);
  /// One layer over s.wide-like `wide`. A sub-layer's output stays pending in s.sub_out and s.inject_gate
  /// until the next read adds it, so that the wide residual is touched once; `pending` says whether there is
  /// one.
  Result<void> layer(const LayerWeights& weights, std::int64_t index, Runs runs, std::int64_t rows,
                     Dev<float> wide, bool& pending);
  /// Adds a pending sub-layer output to the wide residual.
  void flush(std::int64_t rows, Dev<float> wide, bool& pending);
  /// Where the read of the wide residual keeps what it computes.
  struct MixBuffers {
    Dev<float> normed, low, gate, mixed;
  };
  /// The streams' gated mean, from their normalised values in to.normed.
  void mix(const HyperWeights& weights, std::int64_t rows, const MixBuffers& to);
  /// The hyper-connection's read: s.mixed, and s.inject_gate where there is an inject.
  void hyper_read(const HyperWeights& weights, std::int64_t rows, Dev<float> wide, bool& pending);
  void delta_layer(const DeltaWeights& weights, std::int64_t index, Runs runs, std::int64_t rows);
  Result<void> attention_layer(const AttentionWeights& weights, std::int64_t index, Runs runs,
                               std::int64_t rows);
  Result<void> select_and_attend(const AttentionWeights& weights, FullCache& cache, const Run& run);
  /// Keys and values of a run's rows, rounded into the cache.
  void append_rounded(const backend::KeysValuesQ8& cache, const Run& run);
  void index_append(const AttentionWeights& weights, FullCache& cache, const Run& run,
                    std::int64_t& completed);
  /// The experts of a layer, with the read of the wide residual before them.
  Result<void> moe(const LayerWeights& layer, std::int64_t record_layer, std::int64_t rows, Dev<float> wide,
                   bool& pending);
  struct Routing;
  static Routing regroup(std::span<const std::uint32_t> index, std::span<const float> weight,
                         std::size_t rows, std::size_t k, std::size_t experts);
  /// What the router chooses for `mixed`, in descending order: [rows][k].
  std::vector<std::uint32_t> choose(const Matrix& router, Dev<const float> mixed, std::int64_t rows);
  Routing route(const MoeWeights& weights, std::int64_t rows);
  [[nodiscard]] std::uint32_t formats_of() const;
  Result<void> moe_on_device(const LayerWeights& layer, std::int64_t record_layer, std::int64_t rows,
                             Dev<float> wide, bool& pending);
  Result<void> run_experts(std::int64_t record_layer, const experts::Visit& visit,
                           std::span<const std::uint32_t> places, const Routing& routing, bool first,
                           std::int64_t rows);
  static void drop(Routing& routing, std::span<const std::uint32_t> places, std::size_t k);
  void predict(std::int64_t layer, std::int64_t rows);
  void predict_all(std::int64_t layer, std::int64_t rows);
  void shared_expert(const MoeWeights& weights, std::int64_t rows);
  void add_shared(const MoeWeights& weights, std::int64_t rows);
  /// Begins to read the n-gram rows of a step; the reading ends with what this returns.
  Result<experts::NgramRows::Step> start_ngram_rows(Runs runs, std::int64_t rows);
  Result<void> ple(const PleWeights& weights, std::int64_t index, Runs runs, std::int64_t rows,
                   Dev<float> wide);
  Result<void> head(const HyperWeights& mixer, std::span<const std::int64_t> rows, std::int64_t all,
                    Dev<float> wide, bool& pending, const RowsSink& sink);
  Result<void> mtp_rows(Runs runs, std::int64_t rows, std::span<const std::int32_t> tokens,
                        std::span<const std::int64_t> sink_rows, const RowsSink& sink);
  Result<void> mtp_step(Runs runs, const ForwardOptions& options);

  std::unique_ptr<store::WeightSource> source_;
  backend::Backend& backend_;
  ModelOptions options_;
  ModelWeights weights_;
  std::optional<experts::Statistics> statistics_;
  std::unique_ptr<experts::ExpertProvider> experts_;
  std::unique_ptr<experts::NgramRows> ngram_;
  std::unique_ptr<Scratch> scratch_;
  RopeTable rope_, mtp_rope_;
  const RopeTable* active_rope_ = nullptr;
  ExpertObserver observer_;
  bool count_experts_ = false;
};

}  // namespace sluice::model
