#include "engine/plan.h"

#include <algorithm>

#include "base/machine.h"
#include "base/units.h"
#include "experts/resident_experts.h"
#include "model/model.h"
#include "model/scratch.h"
#include "model/sequence_state.h"
#include "sluice/engine.h"
#include "spec/ngram_hash.h"
#include "store/dense_table.h"
#include "store/kept_table.h"
#include "store/matrix.h"
#include "store/store_format.h"

namespace sluice::engine {
namespace {

using spec::Format;
using spec::ModelConfig;

constexpr std::int64_t kDefaultContext = 16384;
constexpr std::int64_t kMostSessions = 1024;
constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;

// Measured (docs/memory.md): the program with its libraries and threads, and a tokenizer while it is read.
constexpr std::uint64_t kProgram = 32 * kMiB;
constexpr std::uint64_t kTokenizerEntry = 448;

std::uint64_t unsigned_of(std::int64_t n) {
  return static_cast<std::uint64_t>(n);
}

/// bytes * n, at most 2^60: sums of a few such numbers still fit.
std::uint64_t times(std::uint64_t bytes, std::int64_t n) {
  constexpr std::uint64_t kMost = std::uint64_t{1} << 60;
  return bytes > kMost / unsigned_of(n) ? kMost : bytes * unsigned_of(n);
}

/// How the parts of a model are stored: as its files have them, or as pack would write them.
class Stored {
 public:
  Stored(const ModelConfig& config, const store::WeightSource* source, const PlanOptions& options)
      : config_(config),
        dense_source_(options.dense ? nullptr : source),
        expert_source_(options.experts ? nullptr : source),
        options_(options),
        quantization_(store::canonical_quantization(config.quantization)) {}

  /// Bytes in memory of the tensors whose name begins with "mtp." or does not.
  Result<std::uint64_t> dense(bool draft_head) const {
    std::uint64_t bytes = 0;
    for (const store::DenseInfo& info : store::dense_tensors(config_, draft_head)) {
      if (info.name.starts_with("mtp.") != draft_head) continue;
      if (dense_source_ != nullptr) {
        SLUICE_ASSIGN(const store::DenseFormat format, dense_source_->dense_format(info.name));
        bytes += bytes_of(info, format);
      } else {
        bytes += bytes_of(info, dense_format(info));
      }
    }
    return bytes;
  }

  Result<spec::RecordLayout> record() const {
    if (expert_source_ != nullptr) return expert_source_->record_layouts().at(options_.tier);
    // Codes of a 4-bit file are kept as they are; lower precisions keep its groups.
    Format format = options_.experts.value_or(Format::kQ4);
    int group = quantization_ ? quantization_->standard.group : 64;
    if (!options_.experts && quantization_ && quantization_->standard.bits == 8) format = Format::kQ8;
    const auto divides = [&](int size) {
      return config_.hidden % size == 0 && config_.expert_inter % size == 0;
    };
    if (group < 32 || !divides(group)) group = 32;
    if (spec::is_quantised(format) && !divides(group)) {
      return make_error(ErrorCode::kUnsupported,
                        "experts of {} x {} at {} bits: needed widths that are multiples of 32",
                        config_.hidden, config_.expert_inter, spec::bits_of(format));
    }
    return spec::RecordLayout{{config_.hidden, config_.expert_inter, group}, format};
  }

 private:
  /// Of its buffer: store::DenseTensor.
  static std::uint64_t bytes_of(const store::DenseInfo& info, const store::DenseFormat& format) {
    return store::tensor_parts(format.format, format.group, 1, store::elements(info)).bytes;
  }

  [[nodiscard]] store::DenseFormat dense_format(const store::DenseInfo& info) const {
    const auto policy = [&](store::DenseBits bits) {
      return store::packed_dense_format(info, bits, Format::kBf16);
    };
    if (options_.dense || !quantization_ || info.kind != store::DenseKind::kMatrix) {
      return policy(options_.dense.value_or(store::DenseBits::kQ8));
    }
    // A quantised file: each matrix as it is there.
    const spec::AffineFormat file = quantization_->format_of(info.name);
    const bool kept = !spec::is_quantised(policy(store::DenseBits::kQ4).format);
    if ((kept && file == quantization_->standard) || (file.bits != 4 && file.bits != 8) || file.group < 32 ||
        info.shape.back() % file.group != 0) {
      return {Format::kBf16, 64};
    }
    return {file.bits == 4 ? Format::kQ4 : Format::kQ8, file.group};
  }

  const ModelConfig& config_;
  const store::WeightSource* dense_source_;
  const store::WeightSource* expert_source_;
  const PlanOptions& options_;
  std::optional<spec::QuantizationConfig> quantization_;
};

ExpertPlan plan_experts(const ModelConfig& config, const spec::RecordLayout& layout, bool draft_head) {
  ExpertPlan plan;
  plan.layout = layout;
  plan.layers = config.layer_count() + (draft_head ? 1 : 0);
  plan.records = plan.layers * config.experts;
  plan.slot_bytes = unsigned_of(store::slot_bytes(layout));
  plan.file_bytes = plan.slot_bytes * unsigned_of(plan.records);
  plan.resident_bytes = experts::ResidentExperts::cost(layout, plan.layers, config.experts);
  plan.token_records = plan.layers * config.experts_per_token;
  // A step's layer may want other experts for each of its rows, all leased at once. Beside them there is room
  // for what one row of the next layer is expected to want: reading ahead can always be given up, so more is
  // of use but not needed.
  const std::int64_t step = std::min(config.experts, model::kStepRows * config.experts_per_token);
  const std::int64_t ahead = std::min(config.experts, config.experts_per_token);
  plan.least_slots = std::min(plan.records, step + ahead);
  return plan;
}

Result<std::optional<NgramPlan>> plan_ngram(const ModelConfig& config, const store::WeightSource* source,
                                            bool as_packed, std::int64_t max_rows) {
  if (!config.ple) return std::optional<NgramPlan>();
  NgramPlan plan;
  const std::int64_t columns = config.ple->head_dim();
  std::vector<experts::NgramRows::Table> tables;
  for (std::size_t i = 0; i < config.ple->layers.size(); ++i) {
    const std::int64_t layer = config.ple->layers[i];
    auto hash = source != nullptr ? source->ngram_hash(layer)
                                  : spec::derive_ngram_hash(config, static_cast<std::int64_t>(i));
    if (!hash.ok()) return hash.error();
    plan.rows += hash->rows;
    plan.token_rows += config.ple->heads();
    spec::NgramLayout layout{Format::kBf16, 32, columns, hash->rows};
    if (source != nullptr) {
      SLUICE_ASSIGN(layout, source->ngram_layout(layer));
    }
    if (as_packed) layout = store::packed_ngram_layout(layout);
    plan.row_bytes = layout.row_bytes();
    plan.table_bytes +=
        as_packed ? unsigned_of(store::NgramPages(layout).bytes()) : source->ngram_bytes(layer);
    tables.push_back({layer, layout, as_packed ? store::NgramReads{} : source->ngram_reads(layer)});
  }
  for (auto& table : tables) {
    if (!as_packed) break;
    const store::NgramPages form(table.layout);
    const bool kept = plan.table_bytes <= store::kKeepNgramBelow;
    table.reads = {form.rows_per_page, form.page_bytes, kept ? unsigned_of(form.bytes()) : 0};
  }
  plan.memory_bytes = experts::NgramRows::cost(tables, model::ngram_options(config, max_rows));
  return std::optional(plan);
}

/// Slots of the pool: what was asked for, or what memory leaves; never more than there are records.
std::int64_t choose_slots(const MemoryPlan& plan, std::uint64_t asked) {
  const std::uint64_t rest = plan.memory.usable - std::min(plan.memory.usable, plan.fixed());
  const std::uint64_t bytes = asked > 0 ? asked : rest;
  return static_cast<std::int64_t>(
      std::min(bytes / plan.experts.slot_bytes, unsigned_of(plan.experts.records)));
}

Error too_large(const store::WeightSource& source, const MemoryPlan& plan, std::uint64_t needed, bool all) {
  const PlanPart most = plan.largest(all);
  return make_error(ErrorCode::kOutOfMemory,
                    "{}: {} of memory needed, {} {}; the largest part is {} with {}; a smaller --ctx needs "
                    "less, and `sluice plan` shows every part",
                    source.folder().string(), format_size(needed), format_size(plan.memory.usable),
                    plan.memory.given ? "given" : "found", most.title, format_size(most.bytes));
}

}  // namespace

Result<FoundMemory> find_memory(std::uint64_t given) {
  FoundMemory memory;
  if (given > 0) {
    memory.usable = given;
    memory.given = true;
    return memory;
  }
  SLUICE_ASSIGN(const Machine machine, read_machine());
  memory.available = machine.available();
  memory.total = machine.total();
  memory.reserve = std::min(std::clamp(memory.available / 16, 256 * kMiB, 2048 * kMiB), memory.available / 2);
  memory.usable = memory.available - memory.reserve;
  return memory;
}

std::uint64_t MemoryPlan::fixed() const {
  std::uint64_t bytes = 0;
  for (const PlanPart& part : parts) bytes += part.bytes;
  return bytes;
}

std::uint64_t MemoryPlan::missing() const {
  if (fits()) return 0;
  const std::uint64_t needed = std::max(pool_least(), pool_total());
  return needed - std::min(needed, memory.usable);
}

PlanPart MemoryPlan::largest(bool all) const {
  PlanPart most{"experts", all ? "experts" : "smallest expert pool",
                all ? experts.resident_bytes : experts.least_bytes()};
  for (const PlanPart& part : parts) {
    if (part.bytes > most.bytes) most = part;
  }
  return most;
}

Result<std::int64_t> choose_context(const ModelConfig& config, std::int64_t asked) {
  if (asked < 0 || asked > config.max_positions) {
    return make_error(ErrorCode::kInvalidArgument, "context of {} tokens: the model takes 1 to {}", asked,
                      config.max_positions);
  }
  return asked > 0 ? asked : std::min(config.max_positions, kDefaultContext);
}

Result<MemoryPlan> make_plan(const ModelConfig& config, const store::WeightSource* source,
                             const PlanOptions& options, const FoundMemory& memory) {
  if (options.sessions < 1 || options.sessions > kMostSessions) {
    return make_error(ErrorCode::kInvalidArgument, "{} sessions: needed 1 to {}", options.sessions,
                      kMostSessions);
  }
  MemoryPlan plan;
  SLUICE_ASSIGN(plan.context, choose_context(config, options.context));
  plan.sessions = options.sessions;
  plan.backend = options.backend;
  plan.memory = memory;
  plan.draft_head = options.draft_head && (source != nullptr ? source->has_mtp() : config.mtp_layers > 0);

  const Stored stored(config, source, options);
  SLUICE_ASSIGN(const std::uint64_t dense, stored.dense(false));
  std::uint64_t head = 0;
  if (plan.draft_head) {
    SLUICE_ASSIGN(head, stored.dense(true));
  }
  SLUICE_ASSIGN(const spec::RecordLayout record, stored.record());
  plan.experts = plan_experts(config, record, plan.draft_head);
  const bool packed = source == nullptr || options.experts || options.dense;
  SLUICE_ASSIGN(plan.ngram, plan_ngram(config, source, packed, options.max_rows));

  const model::StateOptions state{plan.context, model::kStepRows, plan.draft_head};
  const auto cost = model::SequenceState::cost(config, state);
  const std::uint64_t logits = unsigned_of(config.vocab) * sizeof(float);  // each session's last ones
  plan.session_fixed = cost.fixed + logits;
  plan.session_token = cost.per_token;
  const std::uint64_t session = model::SequenceState::bytes(config, state) + logits;
  const std::uint64_t ngram = plan.ngram ? plan.ngram->memory_bytes : 0;
  plan.parts = {{"dense_weights", "dense weights", dense},
                {"draft_head", "draft head", head},
                {"context", "context", times(session, plan.sessions)},
                {"working_memory", "working memory",
                 model::Scratch::cost(config, options.max_rows, plan.draft_head) +
                     model::Scratch::scores_cost(config, plan.context)},
                {"ngram_rows", "n-gram rows", ngram},
                {"runtime", "tokenizer, program", kProgram + unsigned_of(config.vocab) * kTokenizerEntry}};
  if (options.pool > 0 && options.pool < plan.experts.least_bytes()) {
    return make_error(ErrorCode::kInvalidArgument,
                      "expert pool of {}: needed at least {}, {} records of one step and the next layer's",
                      format_size(options.pool), format_size(plan.experts.least_bytes()),
                      plan.experts.least_slots);
  }
  plan.experts.slots = choose_slots(plan, options.pool);

  if (packed && spec::is_quantised(record.format)) {
    plan.store_bytes = dense + head + plan.experts.file_bytes + (plan.ngram ? plan.ngram->table_bytes : 0);
  }
  if (source != nullptr) {
    for (const store::SourceFile& file : source->files()) plan.file_bytes += file.bytes;
  }
  return plan;
}

Result<void> check_resident(const store::WeightSource& source, const PlanOptions& options) {
  const auto memory = find_memory(options.memory);
  if (!memory.ok()) return {};
  SLUICE_ASSIGN(const MemoryPlan plan, make_plan(source.config(), &source, options, *memory));
  if (plan.fits_resident()) return {};
  return too_large(source, plan, plan.resident_total(), true);
}

Result<std::uint64_t> choose_pool(const store::WeightSource& source, PlanOptions options,
                                  std::optional<std::uint64_t> asked) {
  if (asked == EngineOptions::kAllExperts) {
    SLUICE_TRY(check_resident(source, options));
    return std::uint64_t{0};
  }
  options.pool = asked.value_or(0);
  auto memory = find_memory(options.memory);
  // Where the system does not tell what it has, the user decides.
  if (!memory.ok()) return options.pool;
  SLUICE_ASSIGN(const MemoryPlan plan, make_plan(source.config(), &source, options, *memory));
  if (!asked && plan.fits_resident()) return std::uint64_t{0};
  if (plan.fits_pool()) return plan.experts.pool_bytes();
  return too_large(source, plan, asked ? plan.pool_total() : plan.pool_least(), false);
}

}  // namespace sluice::engine
