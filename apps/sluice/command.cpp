#include "command.h"

#include "base/units.h"
#include "terminal.h"
#include "text/printable.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

namespace sluice::cli {

int fail(const Error& error) {
  // Whatever file it quotes.
  constexpr std::size_t kMost = 1000;
  std::string message = text::printable(error.message);
  if (message.size() > kMost) {
    std::size_t end = kMost;
    while ((static_cast<unsigned char>(message[end]) & 0xC0U) == 0x80U) ++end;
    message.resize(std::min(end, message.size()));
    message += " ...";
  }
  print_error("sluice: " + message + "\n");
  return kFailed;
}

CLI::App* add_command(CLI::App& app, const std::string& name, const std::string& description,
                      const std::string& example) {
  CLI::App* command = app.add_subcommand(name, description);
  command->footer("Example:\n  " + example);
  return command;
}

void ModelOptions::add_to(CLI::App& command, bool with_context, bool packs) {
  command.add_option("MODEL", folder, "folder of a packed store or a checkpoint")->required();
  command.add_option("--threads", engine.threads, "threads (default: one for each physical core)")
      ->check(CLI::Range(1, 1024));
  add_backend(command, engine.backend, &engine.device);
  add_exact(command, engine.exact);
  add_kv(command, engine.kv_q8);
  command
      .add_option("--experts", engine.experts, "bits of the experts: one of the store's (default: its best)")
      ->check(CLI::IsMember({"2", "3", "4", "8"}));
  command
      .add_option_function<std::string>(
          "--pool",
          [this](const std::string& text) {
            if (text == "auto") {
              engine.pool.reset();
            } else if (text == "all") {
              engine.pool = EngineOptions::kAllExperts;
            } else if (const auto bytes = parse_size(text); bytes.ok() && *bytes > 0) {
              engine.pool = *bytes;
            } else {
              throw CLI::ValidationError("--pool",
                                         "\"" + text + "\" found; auto, all or a size such as 8G needed");
            }
          },
          "memory for the experts, read from disk as needed: a size, all, or auto: all if they fit")
      ->type_name("SIZE");
  add_device_pool(command, engine.device_pool);
  add_streaming(command, engine.streaming);
  engine.on_notice = [](const std::string& text) { print_error("sluice: " + text + "\n"); };
  if (packs) {
    command.add_option("--store-dir", engine.store_dir,
                       "folder for the stores of checkpoints (default: $SLUICE_STORE_DIR, or the cache)");
    command.add_flag("--no-pack{false}", engine.pack, "read a checkpoint as it is, without packing it first");
  } else {
    engine.pack = false;
    engine.streaming.keep_heat = false;
  }
  if (with_context) {
    command.add_option("--ctx", engine.context, "tokens of context (default: the model's, at most 16384)")
        ->check(kCount);
  }
  add_memory(command, engine.memory);
}

void add_device_pool(CLI::App& command, std::optional<std::uint64_t>& bytes) {
  command
      .add_option_function<std::string>(
          "--device-pool",
          [&bytes](const std::string& text) {
            if (text == "auto") {
              bytes.reset();
            } else if (text == "none") {
              bytes = 0;
            } else if (const auto size = parse_size(text); size.ok() && *size > 0) {
              bytes = *size;
            } else {
              throw CLI::ValidationError("--device-pool",
                                         "\"" + text + "\" found; auto, none or a size such as 8G needed");
            }
          },
          "memory of a GPU for the experts, before those of --pool: a size, none, or auto: what it has")
      ->type_name("SIZE");
}

void add_streaming(CLI::App& command, Streaming& streaming) {
  command.add_flag("--no-io-uring{false}", streaming.io_uring, "read experts with threads");
  command.add_flag("--no-lookahead{false}", streaming.lookahead,
                   "do not read ahead what the next layer is likely to want");
  command.add_flag(
      "--in-place", streaming.in_place,
      "let a GPU compute over the bus with experts that are rarely wanted, instead of copying them");
  command.add_flag("--no-heat{false}", streaming.keep_heat,
                   "do not keep in the store's folder which experts were hot");
  command
      .add_option("--miss-experts", streaming.miss_experts,
                  "changes results: bits, of the store's, for experts neither in memory nor foreseen")
      ->check(CLI::IsMember({"2", "3", "4"}));
  command
      .add_option("--cut-weak", streaming.cut_weak,
                  "changes results: leave out experts not in memory that no token gives this weight")
      ->check(CLI::Range(0.0, 0.999));
}

CLI::Option* add_size(CLI::App& command, const std::string& name, std::uint64_t& bytes,
                      const std::string& description) {
  const auto parse = [&bytes, name](const CLI::results_t& values) {
    const auto size = parse_size(values.back());
    if (!size.ok()) throw CLI::ValidationError(name, size.error().message);
    if (*size == 0) throw CLI::ValidationError(name, "needed at least one byte");
    bytes = *size;
    return true;
  };
  return command.add_option(name, parse, description)->type_name("SIZE");
}

void add_memory(CLI::App& command, std::uint64_t& bytes) {
  add_size(command, "--memory", bytes,
           "memory the model may take, such as 32G (default: what is available, less a reserve)");
}

void add_backend(CLI::App& command, std::string& backend, int* device) {
  command
      .add_option("--backend", backend,
                  "cpu; cuda: an NVIDIA GPU; auto: cuda where it can be, else cpu; to compare, scalar (the "
                  "slow reference) and emulated (the GPU's kernels, checked, on the CPU)")
      ->check(CLI::IsMember({"cpu", "cuda", "auto", "scalar", "emulated"}))
      ->capture_default_str();
  if (device == nullptr) return;
  command.add_option("--device", *device, "which GPU, of several (default: 0)")->check(CLI::Range(0, 1023));
}

void add_kv(CLI::App& command, bool& q8) {
  command
      .add_option_function<std::string>(
          "--kv", [&q8](const std::string& format) { q8 = format == "q8"; },
          "keys and values of the context: f32, or q8: 8 bits, of a little over a quarter of the memory, "
          "which "
          "changes results a little (default: f32)")
      ->check(CLI::IsMember({"f32", "q8"}));
}

void add_exact(CLI::App& command, bool& exact) {
  command.add_flag(
      "--exact,!--fast", exact,
      fmt::format("cpu: multiply float32, or inputs rounded to 16-bit integers, which is about twice as "
                  "fast and changes logits by about 1e-4 (default: {})",
                  exact ? "exact" : "fast"));
}

void add_sampling(CLI::App& command, Sampling& sampling) {
  command.add_option("--temperature", sampling.temperature, "0: always the likeliest token");
  command.add_option("--top-p", sampling.top_p,
                     "draw from the likeliest tokens that reach this probability; 1: off");
  command.add_option("--top-k", sampling.top_k, "draw from the k likeliest tokens; 0: off");
  command.add_option("--min-p", sampling.min_p, "drop tokens below this share of the likeliest; 0: off");
  command.add_option("--seed", sampling.seed, "repeat the same draws (default: new ones each time)");
}

}  // namespace sluice::cli
