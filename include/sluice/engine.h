// The public interface of Sluice: an Engine is a loaded model, a Session one mutable conversation with it.
//
//   auto engine = sluice::Engine::open("models/demo", {});
//   auto session = (*engine)->new_session();
//   auto prompt = (*engine)->render(R"([{"role":"user","content":"Define glacier."}])", "{}");
//   (*session)->generate({.prompt = *prompt, .on_text = [](auto, auto text) { std::cout << text; return true;
//   }});
//
// An Engine and its sessions belong to one thread at a time.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sluice/result.h"

namespace sluice {

/// How expert records come into the pool (docs/streaming.md). Where all are kept nothing of it matters.
struct Streaming {
  bool io_uring = true;   // where the system has it; else threads read
  bool lookahead = true;  // read what the next layer is likely to want
  bool in_place = false;  // a GPU may compute with records in host memory, without copying them first
  bool keep_heat = true;  // remember in the store's folder which records are worth keeping
  /// These two change results, and are off. What a step wants, and is neither in memory nor foreseen, is read
  /// in this many bits, fewer than the others; 0: in all of them.
  int miss_experts = 0;
  /// ... or left out where no token gives it this weight, the others' weights growing to the same sum; 0:
  /// never.
  double cut_weak = 0;
};

struct EngineOptions {
  std::string backend = "cpu";      // cpu, cuda, auto (cuda where it can be), scalar or emulated
  int device = 0;                   // which GPU, of cuda
  int threads = 0;                  // 0: one for each physical core
  bool exact = false;               // cpu: inputs of quantised weights stay float32 (docs/performance.md)
  std::int64_t context = 0;         // tokens a session holds; 0: the model's own, at most 16,384
  bool kv_q8 = false;               // keys and values of the context in 8 bits (docs/memory.md)
  bool mtp = false;                 // load the draft head too
  int experts = 0;                  // bits of the experts to use: one of the store's; 0: its best
  bool pack = true;                 // a checkpoint is packed into a store on first use; false: read as it is
  std::filesystem::path store_dir;  // where stores of checkpoints lie; empty: the cache folder
  /// Memory for expert records, which then are read from disk as they are needed: absent: all of them are
  /// kept if they fit, else what memory leaves; kAllExperts: all are kept, or it is an error.
  std::optional<std::uint64_t> pool;
  static constexpr std::uint64_t kAllExperts = ~std::uint64_t{0};
  /// Of a GPU's memory, for expert records before those of `pool`, which then is pinned host memory: absent:
  /// all records if they fit, else what the rest leaves; 0: none.
  std::optional<std::uint64_t> device_pool;
  std::uint64_t memory = 0;  // bytes of the host the model may take; 0: what the machine has, less a reserve
  Streaming streaming;
  /// Told what a user should know of: memory given back to the system, a slower way of reading.
  std::function<void(const std::string&)> on_notice;
  /// Called during a long load with bytes read and in all.
  std::function<void(std::uint64_t done, std::uint64_t total)> on_load;
  /// The same while a checkpoint is packed.
  std::function<void(std::uint64_t done, std::uint64_t total)> on_pack;
};

/// How tokens are drawn; what is absent comes from the model's generation_config.json.
struct Sampling {
  std::optional<double> temperature;  // 0: always the likeliest token
  std::optional<double> top_p;        // 1: off
  std::optional<std::int64_t> top_k;  // 0: off
  std::optional<double> min_p;        // 0: off
  std::optional<std::uint64_t> seed;  // absent: a new one each time
};

enum class TextKind { kReasoning, kAnswer };

struct GenerateRequest {
  std::string prompt;  // rendered text, special tokens spelled out
  Sampling sampling;
  std::int64_t max_tokens = 0;    // 0: as many as the context holds
  std::vector<std::string> stop;  // the answer ends before any of these
  /// Receives text as it comes, whole characters only; false ends the generation.
  std::function<bool(TextKind kind, std::string_view text)> on_text;
  /// Called during a long prefill; false cancels it (kCancelled).
  std::function<bool(std::int64_t done, std::int64_t total)> on_prefill;
};

/// What became of the expert records that a generation wanted. All are hits when all are kept in memory.
struct ExpertStatistics {
  std::uint64_t hits = 0;    // in memory
  std::uint64_t late = 0;    // being read ahead already
  std::uint64_t misses = 0;  // read only then
  std::uint64_t bytes_read = 0;
  std::uint64_t retries = 0;  // of reads that failed
  double wait_seconds = 0;    // for reads, with nothing left to compute
  double read_seconds = 0;    // with a read under way
  std::uint64_t ahead = 0;    // read because they were foreseen ...
  std::uint64_t ahead_useful = 0, ahead_late = 0, ahead_wasted = 0;  // ... and what became of them
  std::uint64_t low_tier = 0, dropped = 0;  // by Streaming's options that change results
  // Of a GPU that has some of the records: hits in its memory (counted in `hits` too), records computed with
  // in host memory, and copied from there; bytes of both that crossed the bus.
  std::uint64_t device_hits = 0, in_place = 0, copied = 0, bus_bytes = 0;
};

struct Generation {
  std::string reasoning;
  std::string answer;
  std::vector<std::int32_t> tokens;  // as generated, the stop token included
  std::string stop_reason;           // "stop", "length" or "cancelled"
  std::uint64_t seed = 0;            // of the draws; repeats the text when given again
  std::int64_t prompt_tokens = 0;
  std::int64_t reused_tokens = 0;  // of the prompt, already in the session
  double prefill_seconds = 0;
  double decode_seconds = 0;
  ExpertStatistics experts;  // of prefill and decoding together
};

class Session {
 public:
  virtual ~Session() = default;
  /// Generates after `request.prompt`. What the session has seen already of the prompt's beginning is not
  /// computed again. Errors: an empty prompt, one longer than the context, sampling values out of range.
  virtual Result<Generation> generate(const GenerateRequest& request) = 0;
};

class Engine {
 public:
  virtual ~Engine() = default;

  /// Loads the packed store or the checkpoint in a folder. Fails with kOutOfMemory, before reading weights,
  /// where it cannot fit.
  static Result<std::unique_ptr<Engine>> open(const std::filesystem::path& folder,
                                              const EngineOptions& options);

  virtual Result<std::unique_ptr<Session>> new_session() = 0;

  /// The prompt text for a conversation, by the model's chat template. `messages` is a JSON array, `options`
  /// a JSON object (tools, enable_thinking, reasoning_effort, preserve_thinking, add_generation_prompt, ...).
  [[nodiscard]] virtual Result<std::string> render(std::string_view messages,
                                                   std::string_view options) const = 0;
  [[nodiscard]] virtual Result<std::vector<std::int32_t>> encode(std::string_view text) const = 0;
  [[nodiscard]] virtual std::string decode(std::span<const std::int32_t> ids) const = 0;
  [[nodiscard]] virtual std::int64_t context() const = 0;
};

}  // namespace sluice
