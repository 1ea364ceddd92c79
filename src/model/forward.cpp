// Loading a model, and one step of it.
#include <algorithm>
#include <numeric>

#include "base/threads.h"
#include "experts/device_tier.h"
#include "experts/pooled_experts.h"
#include "experts/resident_experts.h"
#include "experts/source_slots.h"
#include "model/model.h"
#include "store/store_format.h"

namespace sluice::model {
namespace {

constexpr std::string_view kHeatName = "heat";

Result<void> check_tier(const store::WeightSource& source, std::size_t tier) {
  if (tier < source.record_layouts().size()) return {};
  return make_error(ErrorCode::kInvalidArgument, "experts in precision {} asked for, the model has {}", tier,
                    source.record_layouts().size());
}

int load_threads(const ModelOptions& options) {
  return options.load_threads > 0 ? options.load_threads : ThreadTeam::default_size();
}

/// All records in memory, or a pool that they flow through.
Result<std::unique_ptr<experts::ExpertProvider>> make_experts(const store::WeightSource& source,
                                                              const ModelOptions& options,
                                                              std::int64_t layers, backend::Backend& backend,
                                                              const experts::Progress& progress) {
  SLUICE_TRY(check_tier(source, options.tier));
  if (options.pool_bytes == 0) {
    SLUICE_ASSIGN(auto all,
                  experts::ResidentExperts::load(
                      source, layers, {options.tier, load_threads(options), options.repeat_records, progress},
                      backend));
    return std::unique_ptr<experts::ExpertProvider>(std::move(all));
  }
  const StreamOptions& stream = options.stream;
  experts::PooledExperts::Options pool;
  std::vector<std::size_t> tiers{options.tier};
  if (stream.miss_tier) {
    SLUICE_TRY(check_tier(source, *stream.miss_tier));
    tiers.push_back(*stream.miss_tier);
  }
  for (const std::size_t tier : tiers) {
    const spec::RecordLayout& layout = source.record_layouts()[tier];
    pool.tiers.push_back({layout, static_cast<std::size_t>(store::slot_bytes(layout))});
  }
  pool.layers = layers;
  pool.experts = source.config().experts;
  pool.pool_bytes = options.pool_bytes;
  pool.cut_weak = stream.cut_weak;
  pool.lookahead = stream.lookahead;
  pool.ring = stream.ring;
  pool.allocate = [&backend](std::size_t bytes) { return backend.allocate_host(bytes); };
  pool.reader = stream.reader;
  if (stream.keep_heat) pool.heat_file = source.folder() / kHeatName;
  pool.pressure = stream.pressure;
  pool.least_slots = stream.least_slots;
  pool.on_notice = stream.on_notice;
  experts::SlotSource slots = experts::slots_of(source, tiers, pool.layers * pool.experts);
  if (stream.wrap) slots = stream.wrap(std::move(slots));
  SLUICE_ASSIGN(auto pooled, experts::PooledExperts::create(pool, std::move(slots)));
  if (options.device_pool_bytes == 0 && !pooled->pool().pinned()) {
    return std::unique_ptr<experts::ExpertProvider>(std::move(pooled));
  }
  SLUICE_ASSIGN(auto tiered,
                experts::DeviceTier::create({source.record_layouts()[options.tier], layers, pool.experts,
                                             options.device_pool_bytes, stream.in_place},
                                            backend, std::move(pooled)));
  return std::unique_ptr<experts::ExpertProvider>(std::move(tiered));
}

Result<experts::Statistics> make_statistics(const store::WeightSource& source, const ModelOptions& options,
                                            const experts::ExpertProvider& experts, std::int64_t layers) {
  experts::Statistics::Shape shape;
  shape.layers = layers;
  shape.experts = source.config().experts;
  shape.record_bytes = static_cast<std::uint64_t>(store::slot_bytes(source.record_layouts()[options.tier]));
  if (options.pool_bytes > 0) {
    shape.pool_bytes = experts.bytes();
    shape.pool_slots = shape.pool_bytes / shape.record_bytes;
    shape.reader = experts.reader();
    shape.device_bytes = experts.device_bytes();
    shape.device_slots =
        shape.device_bytes / experts::DeviceTier::slot_bytes(source.record_layouts()[options.tier]);
  }
  SLUICE_ASSIGN(auto statistics, experts::Statistics::create(std::move(shape)));
  if (options.stream.miss_tier) {
    statistics.set_miss_experts(spec::bits_of(source.record_layouts()[*options.stream.miss_tier].format));
  }
  if (options.stream.cut_weak > 0) statistics.set_cut_weak(options.stream.cut_weak);
  return statistics;
}

}  // namespace

Result<std::unique_ptr<Model>> Model::load(std::unique_ptr<store::WeightSource> source,
                                           backend::Backend& backend, const ModelOptions& options,
                                           const experts::Progress& progress) {
  if (options.max_rows < 1) {
    return make_error(ErrorCode::kInvalidArgument, "max_rows {}: needed at least 1", options.max_rows);
  }
  std::unique_ptr<Model> model(new Model(std::move(source), backend, options));
  const auto& config = model->config();
  const bool mtp = options.mtp && model->source_->has_mtp();
  SLUICE_ASSIGN(model->weights_, load_weights(*model->source_, mtp, load_threads(options), backend));
  const std::int64_t layers = config.layer_count() + (mtp ? 1 : 0);
  SLUICE_ASSIGN(model->experts_, make_experts(*model->source_, options, layers, backend, progress));
  SLUICE_ASSIGN(model->statistics_, make_statistics(*model->source_, options, *model->experts_, layers));
  model->experts_->record_to(&*model->statistics_);
  SLUICE_ASSIGN(model->scratch_, Scratch::create(config, options.max_rows, mtp, backend));
  SLUICE_ASSIGN(model->ngram_,
                experts::NgramRows::create(*model->source_, ngram_options(config, options.max_rows)));
  model->rope_ = RopeTable(config.rope);
  auto mtp_rope = config.rope;
  if (config.mtp_rope_theta > 0) mtp_rope.theta = config.mtp_rope_theta;
  model->mtp_rope_ = RopeTable(mtp_rope);
  SLUICE_TRY(backend.status());
  return model;
}

Result<std::unique_ptr<SequenceState>> Model::new_state(std::int64_t context, std::int64_t step_rows) {
  return SequenceState::create(config(), backend_, {context, step_rows, has_mtp(), options_.kv});
}

void Model::copy_floats(Dev<float> to, Dev<const float> from, std::int64_t count) {
  backend_.copy(Dev(reinterpret_cast<std::byte*>(to.address())),
                Dev(reinterpret_cast<const std::byte*>(from.address())),
                static_cast<std::size_t>(count) * sizeof(float));
}

Result<void> Model::check(std::span<const Segment> segments) const {
  std::int64_t rows = 0;
  for (const Segment& segment : segments) {
    if (segment.tokens.empty())
      return make_error(ErrorCode::kInvalidArgument, "a step without tokens: needed at least 1");
    for (const std::int32_t token : segment.tokens) {
      if (token < 0 || token >= config().vocab) {
        return make_error(ErrorCode::kInvalidArgument, "token {}: needed 0 to {}", token, config().vocab - 1);
      }
    }
    rows += static_cast<std::int64_t>(segment.tokens.size());
  }
  if (rows > options_.max_rows) {
    return make_error(ErrorCode::kInvalidArgument, "a step of {} rows: at most {} at once", rows,
                      options_.max_rows);
  }
  return {};
}

Result<void> Model::forward(std::span<const Segment> segments, const ForwardOptions& options) {
  SLUICE_TRY(check(segments));
  // Whatever ends the step early, an error or an exception, no state keeps a part of it.
  struct Unwind {
    std::vector<Run> runs;
    bool done = false;
    ~Unwind() {
      if (done) return;
      for (const Run& run : runs) run.state->rollback();
    }
  } step;
  step.runs.reserve(segments.size());
  std::int64_t rows = 0;
  for (const Segment& segment : segments) {
    SLUICE_TRY(segment.state->begin(segment.tokens));
    const auto count = static_cast<std::int64_t>(segment.tokens.size());
    step.runs.push_back({segment.state, rows, count, segment.state->length()});
    rows += count;
  }
  statistics_->begin_step(rows, use_of(rows));
  SLUICE_ASSIGN(const auto reading, start_ngram_rows(step.runs, rows));
  SLUICE_TRY(run_step(step.runs, rows, options));
  experts_->end_step();
  const experts::ExpertCounts counts = experts_->counts();
  statistics_->set_retries(counts.retries);
  statistics_->set_device({counts.device_hits, counts.in_place, counts.copied, counts.bus_bytes});
  statistics_->end_step();
  step.done = true;
  return {};
}

Result<void> Model::run_step(Runs runs, std::int64_t rows, const ForwardOptions& options) {
  SLUICE_TRY(trunk(runs, rows, options));
  if (has_mtp()) SLUICE_TRY(mtp_step(runs, options));
  const std::int64_t wide = config().wide();
  for (const Run& run : runs) {
    SequenceState& state = *run.state;
    if (run.rows <= state.step_rows()) {
      copy_floats(state.wide_slot(1), scratch_->wide + run.first * wide, run.rows * wide);
    } else {
      copy_floats(state.wide_slot(1), scratch_->wide + (run.first + run.rows - 1) * wide, wide);
    }
  }
  // What was handed out is worth nothing if the device failed before it.
  return backend_.status();
}

Result<void> Model::trunk(Runs runs, std::int64_t rows, const ForwardOptions& options) {
  Scratch& s = *scratch_;
  std::vector<std::int32_t> ids;
  for (const Run& run : runs) {
    const auto tokens = run.state->tokens().last(static_cast<std::size_t>(run.rows));
    ids.insert(ids.end(), tokens.begin(), tokens.end());
  }
  upload(s.ids, std::span<const std::int32_t>(ids));
  set_positions(rope_, runs);
  backend_.embed_rows(weights_.embed, s.ids, rows, s.embedded);
  backend_.replicate(wide_shape(rows), s.embedded, s.wide);
  bool pending = false;
  for (std::int64_t n = 0; n < config().layer_count(); ++n) {
    SLUICE_TRY(layer(weights_.layers[static_cast<std::size_t>(n)], n, runs, rows, s.wide, pending));
    if (options.on_layer) {
      flush(rows, s.wide, pending);
      SLUICE_TRY(options.on_layer(n, rows, s.wide));
    }
  }
  flush(rows, s.wide, pending);

  std::vector<std::int64_t> wanted;
  if (options.logits == ForwardOptions::Logits::kAll) {
    wanted.resize(static_cast<std::size_t>(rows));
    std::iota(wanted.begin(), wanted.end(), std::int64_t{0});
  } else if (options.logits == ForwardOptions::Logits::kLast) {
    for (const Run& run : runs) wanted.push_back(run.first + run.rows - 1);
  }
  if (wanted.empty() || !options.on_logits) return {};
  return head(weights_.mixer, wanted, rows, s.wide, pending, options.on_logits);
}

// What a step's attention needs of the rows' positions, the same for all its layers.
void Model::set_positions(const RopeTable& table, Runs runs) {
  Scratch& s = *scratch_;
  std::vector<std::int64_t> positions;
  std::vector<std::int64_t> completed;  // first positions of the blocks that the step completes
  std::vector<std::uint32_t> visible;
  std::vector<std::uint32_t> blocks;
  const std::int64_t ratio = config().indexer ? config().indexer->ratio : 1;
  for (const Run& run : runs) {
    for (std::int64_t r = 0; r < run.rows; ++r) {
      positions.push_back(run.base + r);
      visible.push_back(static_cast<std::uint32_t>(run.base + r + 1));
      blocks.push_back(static_cast<std::uint32_t>((run.base + r + 1) / ratio));
    }
    if (!config().indexer) continue;
    for (std::int64_t block = run.base / ratio; block < (run.base + run.rows) / ratio; ++block) {
      completed.push_back(block * ratio);
    }
  }
  std::vector<float> cos;
  std::vector<float> sin;
  table.fill(positions, cos, sin);
  upload(s.rope_cos, std::span<const float>(cos));
  upload(s.rope_sin, std::span<const float>(sin));
  upload(s.visible, std::span<const std::uint32_t>(visible));
  if (config().indexer) upload(s.blocks, std::span<const std::uint32_t>(blocks));
  if (!completed.empty()) {
    table.fill(completed, cos, sin);
    upload(s.block_cos, std::span<const float>(cos));
    upload(s.block_sin, std::span<const float>(sin));
  }
  active_rope_ = &table;
}

Result<void> Model::layer(const LayerWeights& weights, std::int64_t index, Runs runs, std::int64_t rows,
                          Dev<float> wide, bool& pending) {
  using experts::Part;
  const std::int64_t number = index == kMtpLayer ? config().layer_count() : index;
  if (weights.ple) {
    const auto timer = timed(Part::kNgram, number);
    flush(rows, wide, pending);
    SLUICE_TRY(ple(*weights.ple, index, runs, rows, wide));
  }
  const Part part = weights.delta ? Part::kDeltaNet : Part::kAttention;
  {
    const auto timer = timed(part, number);
    hyper_read(weights.attn_hyper, rows, wide, pending);
  }
  // All that is missing now of what this layer's router will see is attention's output.
  if (use_of(rows) == experts::Use::kDecode) predict(number, rows);
  {
    const auto timer = timed(part, number);
    if (weights.delta) {
      delta_layer(*weights.delta, index, runs, rows);
    } else {
      SLUICE_TRY(attention_layer(*weights.attention, index, runs, rows));
    }
  }
  pending = true;
  SLUICE_TRY(moe(weights, number, rows, wide, pending));
  pending = true;
  return {};
}

// Final mixer and vocabulary projection of some rows of a step, a few at a time: logits of a long chunk would
// be larger than everything else.
Result<void> Model::head(const HyperWeights& mixer, std::span<const std::int64_t> rows, std::int64_t all,
                         Dev<float> wide, bool& pending, const RowsSink& sink) {
  Scratch& s = *scratch_;
  const auto timer = timed(experts::Part::kHead);
  if (rows.size() == static_cast<std::size_t>(all)) {
    hyper_read(mixer, all, wide, pending);
  } else {
    // Few rows of many: read just those. gate_wide is free until the read itself.
    flush(all, wide, pending);
    const auto count = static_cast<std::int64_t>(rows.size());
    std::vector<std::uint32_t> index(rows.begin(), rows.end());
    upload(s.count, std::span<const std::uint32_t>(index));
    backend_.gather_rows(wide, s.count, count, config().wide(), s.gate_wide);
    hyper_read(mixer, count, s.gate_wide, pending);
  }
  const std::int64_t tile = std::min(kLogitTile, options_.max_rows);
  const auto count = static_cast<std::int64_t>(rows.size());
  for (std::int64_t at = 0; at < count; at += tile) {
    const std::int64_t now = std::min(tile, count - at);
    backend_.linear(weights_.head, s.mixed + at * config().hidden, now, s.logits);
    SLUICE_TRY(sink(at, now, s.logits));
  }
  return {};
}

}  // namespace sluice::model
