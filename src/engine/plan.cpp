#include "engine/plan.h"

#include <algorithm>

#include "base/machine.h"
#include "base/units.h"
#include "engine/tier.h"
#include "experts/device_tier.h"
#include "experts/resident_experts.h"
#include "model/model.h"
#include "model/scratch.h"
#include "model/sequence_state.h"
#include "pack/layout.h"
#include "sluice/engine.h"
#include "store/config_form.h"
#include "store/dense_table.h"
#include "store/kept_table.h"
#include "store/matrix.h"
#include "store/store_format.h"

namespace sluice::engine {
namespace {

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

/// What loading finds: of the files as they are, or of the store that pack makes of them.
struct Held {
  std::uint64_t dense = 0, head = 0;  // bytes in memory
  std::vector<spec::RecordLayout> experts;
  std::optional<NgramPlan> ngram;
  std::vector<experts::NgramRows::Table> tables;
  std::uint64_t store_bytes = 0;

  void add_dense(std::string_view name, const store::DenseFormat& format, std::int64_t elements) {
    // Of its buffer: store::DenseTensor.
    const std::uint64_t bytes = store::tensor_parts(format.format, format.group, 1, elements).bytes;
    (name.starts_with("mtp.") ? head : dense) += bytes;
  }
  void add_table(const ModelConfig& config, const experts::NgramRows::Table& table, std::uint64_t bytes) {
    const spec::NgramLayout& layout = table.layout;
    tables.push_back(table);
    if (!ngram) ngram.emplace();
    ngram->rows += layout.rows;
    ngram->token_rows += config.ple->heads();
    ngram->row_bytes = layout.row_bytes();
    ngram->table_bytes += bytes;
  }
};

Result<Held> held_as_it_is(const store::SourceForm& source) {
  const ModelConfig& config = source.config();
  Held held;
  for (const store::DenseInfo& info : store::dense_tensors(config, source.has_mtp())) {
    SLUICE_ASSIGN(const store::DenseFormat format, source.dense_format(info.name));
    held.add_dense(info.name, format, store::elements(info));
  }
  held.experts = source.record_layouts();
  if (config.ple) {
    for (const std::int64_t layer : config.ple->layers) {
      SLUICE_ASSIGN(const spec::NgramLayout layout, source.ngram_layout(layer));
      held.add_table(config, {layer, layout, source.ngram_reads(layer)}, source.ngram_bytes(layer));
    }
  }
  held.store_bytes = source.packed_bytes().value_or(0);
  return held;
}

Result<Held> held_once_packed(const store::SourceForm& source, const pack::PackOptions& packing) {
  SLUICE_ASSIGN(const store::Manifest manifest, pack::plan_store(source, packing));
  Held held;
  for (const store::StoredDense& tensor : manifest.dense) {
    std::int64_t elements = 1;
    for (const std::int64_t n : tensor.shape) elements *= n;
    held.add_dense(tensor.name, {tensor.format, tensor.group}, elements);
  }
  for (const store::StoredTier& tier : manifest.tiers) held.experts.push_back(tier.layout);
  std::uint64_t tables = 0;
  for (const store::StoredTable& table : manifest.tables) {
    tables += unsigned_of(store::NgramPages(table.layout).bytes());
  }
  const bool kept = tables <= store::kKeepNgramBelow;
  for (const store::StoredTable& table : manifest.tables) {
    const store::NgramPages form(table.layout);
    const store::NgramReads reads{form.rows_per_page, form.page_bytes, kept ? unsigned_of(form.bytes()) : 0};
    held.add_table(manifest.config, {table.layer, table.layout, reads}, unsigned_of(form.bytes()));
  }
  held.store_bytes = store::store_bytes(manifest);
  return held;
}

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

Result<Held> hold(const ModelConfig& config, const store::SourceForm* source, const PlanOptions& options) {
  if (source == nullptr) {
    return held_once_packed(store::ConfigForm(config), options.packing.value_or(pack::PackOptions{}));
  }
  return options.packing ? held_once_packed(*source, *options.packing) : held_as_it_is(*source);
}

/// So many slots hold `bytes`, never more than there are records.
std::int64_t slots_in(const MemoryPlan& plan, std::uint64_t bytes, std::uint64_t slot_bytes) {
  return static_cast<std::int64_t>(std::min(bytes / slot_bytes, unsigned_of(plan.experts.records)));
}

std::uint64_t less(std::uint64_t a, std::uint64_t b) {
  return a - std::min(a, b);
}

/// Slots of the pool: what was asked for, or what memory leaves. Pinned memory cannot be given back, so that
/// a quarter of that is left.
std::int64_t choose_slots(const MemoryPlan& plan, std::uint64_t asked) {
  const std::uint64_t host = plan.fixed() + (plan.device ? 0 : plan.experts.device_bytes());
  std::uint64_t rest = less(plan.memory.usable, host);
  if (plan.device) rest -= rest / 4;
  return slots_in(plan, asked > 0 ? asked : rest, plan.experts.slot_bytes);
}

Result<void> choose_device_slots(MemoryPlan& plan, const PlanOptions& options) {
  ExpertPlan& experts = plan.experts;
  experts.device_slot_bytes = experts::DeviceTier::slot_bytes(experts.layout);
  experts.device_asked = options.device_pool.has_value();
  const std::uint64_t asked = options.device_pool.value_or(0);
  if (asked > 0 && !has_device(options.backend)) {
    return make_error(ErrorCode::kInvalidArgument,
                      "device pool of {}: backend {} computes in the host's memory, --pool is its pool",
                      format_size(asked), options.backend);
  }
  if (asked > 0 && asked < experts.device_slot_bytes) {
    return make_error(ErrorCode::kInvalidArgument, "device pool of {}: needed at least {}, one record",
                      format_size(asked), format_size(experts.device_slot_bytes));
  }
  std::uint64_t bytes = asked;
  if (!options.device_pool && plan.device) bytes = less(plan.device->usable(), plan.device_fixed());
  experts.device_slots = slots_in(plan, bytes, experts.device_slot_bytes);
  return {};
}

Error too_large(const store::SourceForm& source, const MemoryPlan& plan, std::uint64_t needed, bool all) {
  if (!plan.fits_device()) {
    return make_error(
        ErrorCode::kOutOfMemory,
        "{}: {} of the device's memory needed, {} of {} usable; the device pool is {} of it; a smaller --ctx "
        "needs less, and `sluice plan` shows every part",
        source.folder().string(), format_size(plan.device_pool_total()), format_size(plan.device->usable()),
        format_size(plan.device->available), format_size(plan.experts.device_bytes()));
  }
  const PlanPart most = plan.largest(all);
  return make_error(ErrorCode::kOutOfMemory,
                    "{}: {} of memory needed, {} {}; the largest part is {} with {}; a smaller --ctx needs "
                    "less, and `sluice plan` shows every part",
                    source.folder().string(), format_size(needed), format_size(plan.memory.usable),
                    plan.memory.given ? "given" : "found", most.title, format_size(most.bytes));
}

}  // namespace

namespace {

/// A sixteenth, between 256 MiB and 2 GiB, but never more than half.
std::uint64_t reserve_of(std::uint64_t available) {
  return std::min(std::clamp(available / 16, 256 * kMiB, 2048 * kMiB), available / 2);
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
  memory.reserve = reserve_of(memory.available);
  memory.usable = memory.available - memory.reserve;
  return memory;
}

std::uint64_t MemoryPlan::fixed() const {
  std::uint64_t bytes = 0;
  for (const PlanPart& part : parts) bytes += device && part.device ? 0 : part.bytes;
  return bytes;
}

std::uint64_t MemoryPlan::device_fixed() const {
  std::uint64_t bytes = 0;
  for (const PlanPart& part : parts) bytes += device && part.device ? part.bytes : 0;
  return bytes;
}

std::uint64_t MemoryPlan::missing() const {
  if (fits()) return 0;
  if (!fits_device()) return device_pool_total() - device->usable();
  return less(std::max(pool_least(), pool_total()), memory.usable);
}

bool has_device(std::string_view backend) {
  return backend == "cuda" || backend == "metal" || backend == "emulated";
}

PlanPart MemoryPlan::largest(bool all) const {
  PlanPart most{"experts", all ? "experts" : "smallest expert pool",
                all ? experts.resident_bytes : experts.least_bytes()};
  for (const PlanPart& part : parts) {
    if (part.bytes > most.bytes && !(device && part.device)) most = part;
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

namespace {

/// A plan for chunks of options.max_rows.
Result<MemoryPlan> plan_chunk(const ModelConfig& config, const store::SourceForm* source,
                              const PlanOptions& options, const FoundMemory& memory, const Held& held) {
  if (options.sessions < 1 || options.sessions > kMostSessions) {
    return make_error(ErrorCode::kInvalidArgument, "{} sessions: needed 1 to {}", options.sessions,
                      kMostSessions);
  }
  MemoryPlan plan;
  SLUICE_ASSIGN(plan.context, choose_context(config, options.context));
  plan.sessions = options.sessions;
  plan.backend = options.backend;
  plan.memory = memory;
  if (options.device_memory)
    plan.device = DevicePlan{*options.device_memory, reserve_of(*options.device_memory)};
  plan.draft_head = options.draft_head && (source != nullptr ? source->has_mtp() : config.mtp_layers > 0);

  plan.max_rows = options.max_rows;
  const std::string what = source != nullptr ? source->folder().string() : "config";
  SLUICE_ASSIGN(plan.tier, tier_of(what, held.experts, options.experts));
  plan.experts = plan_experts(config, held.experts[plan.tier], plan.draft_head);
  plan.ngram = held.ngram;
  if (plan.ngram) {
    plan.ngram->memory_bytes =
        experts::NgramRows::cost(held.tables, model::ngram_options(config, options.max_rows));
  }
  plan.store_bytes = held.store_bytes;

  const model::StateOptions state{plan.context, model::kStepRows, plan.draft_head,
                                  options.kv_q8 ? model::KvFormat::kQ8 : model::KvFormat::kF32};
  const auto cost = model::SequenceState::cost(config, state);
  const std::uint64_t logits = unsigned_of(config.vocab) * sizeof(float);  // each session's last ones
  plan.session_fixed = cost.fixed + logits;
  plan.session_token = cost.per_token;
  const std::uint64_t session = model::SequenceState::bytes(config, state) + logits;
  const std::uint64_t ngram = plan.ngram ? plan.ngram->memory_bytes : 0;
  plan.parts = {{"dense_weights", "dense weights", held.dense, true},
                {"draft_head", "draft head", plan.draft_head ? held.head : 0, true},
                {"context", "context", times(session, plan.sessions), true},
                {"working_memory", "working memory",
                 model::Scratch::cost(config, options.max_rows, plan.draft_head) +
                     model::Scratch::scores_cost(config, plan.context),
                 true},
                {"ngram_rows", "n-gram rows", ngram},
                {"runtime", "tokenizer, program", kProgram + unsigned_of(config.vocab) * kTokenizerEntry}};
  if (options.pool > 0 && options.pool < plan.experts.least_bytes()) {
    return make_error(ErrorCode::kInvalidArgument,
                      "expert pool of {}: needed at least {}, {} records of one step and the next layer's",
                      format_size(options.pool), format_size(plan.experts.least_bytes()),
                      plan.experts.least_slots);
  }
  SLUICE_TRY(choose_device_slots(plan, options));
  plan.experts.slots = choose_slots(plan, options.pool);

  if (source != nullptr && !source->packed_bytes()) {
    for (const store::SourceFile& file : source->files()) plan.file_bytes += file.bytes;
  }
  return plan;
}

}  // namespace

Result<MemoryPlan> make_plan(const ModelConfig& config, const store::SourceForm* source,
                             const PlanOptions& options, const FoundMemory& memory) {
  SLUICE_ASSIGN(const Held held, hold(config, source, options));
  PlanOptions with = options;
  if (options.max_rows == 0) with.max_rows = kChunk;
  SLUICE_ASSIGN(MemoryPlan plan, plan_chunk(config, source, with, memory, held));
  // A device that can have them all does, whatever the pool.
  const bool resident = plan.fits_resident() && (plan.device || options.pool == 0);
  if (options.max_rows > 0 || resident || !plan.fits_pool()) return plan;
  // The longest chunk whose working memory is an eighth of all at most.
  for (with.max_rows = kLongestChunk; with.max_rows > kChunk; with.max_rows /= 2) {
    if (with.max_rows >= 2 * plan.context) continue;
    const std::uint64_t room = plan.device ? plan.device->usable() : memory.usable;
    if (model::Scratch::cost(config, with.max_rows, plan.draft_head) > room / 8) continue;
    SLUICE_ASSIGN(const MemoryPlan longer, plan_chunk(config, source, with, memory, held));
    if (longer.fits_pool()) return longer;
  }
  return plan;
}

Result<std::size_t> planned_tier(const store::SourceForm& source, const PlanOptions& options) {
  SLUICE_ASSIGN(const Held held, hold(source.config(), &source, options));
  return tier_of(source.folder().string(), held.experts, options.experts);
}

Result<void> check_resident(const store::SourceForm& source, const PlanOptions& options) {
  const auto memory = find_memory(options.memory);
  if (!memory.ok()) return {};
  SLUICE_ASSIGN(const MemoryPlan plan, make_plan(source.config(), &source, options, *memory));
  if (plan.fits_resident()) return {};
  return too_large(source, plan, plan.resident_total(), true);
}

namespace {

/// Bytes of a pool for every record.
Result<std::uint64_t> bytes_of_all(const store::SourceForm& source, const PlanOptions& options) {
  SLUICE_ASSIGN(const MemoryPlan plan, make_plan(source.config(), &source, options, {}));
  return plan.experts.file_bytes;
}

}  // namespace

Result<PoolChoice> choose_pool(const store::SourceForm& source, PlanOptions options,
                               std::optional<std::uint64_t> asked) {
  PoolChoice all;
  all.max_rows = options.max_rows > 0 ? options.max_rows : kChunk;
  if (asked == EngineOptions::kAllExperts) {
    if (!options.device_memory && options.device_pool.value_or(0) == 0) {
      SLUICE_TRY(check_resident(source, options));
      return all;
    }
    // In the pool, where the device does not have them.
    SLUICE_ASSIGN(asked, bytes_of_all(source, options));
  }
  options.pool = asked.value_or(0);
  auto memory = find_memory(options.memory);
  // Where the system does not tell what it has, the user decides.
  if (!memory.ok()) return PoolChoice{options.pool, 2, all.max_rows, options.device_pool.value_or(0)};
  SLUICE_ASSIGN(const MemoryPlan plan, make_plan(source.config(), &source, options, *memory));
  if (plan.fits_resident() && (plan.device || !asked)) return all;
  if (plan.fits_pool()) {
    return PoolChoice{plan.experts.pool_bytes(), static_cast<std::size_t>(plan.experts.least_slots),
                      plan.max_rows, plan.experts.device_bytes()};
  }
  return too_large(source, plan, asked ? plan.pool_total() : plan.pool_least(), false);
}

}  // namespace sluice::engine
