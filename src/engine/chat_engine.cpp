#include "engine/chat_engine.h"

#include <algorithm>
#include <chrono>

#include "backend/create.h"
#include "decode/generate.h"
#include "engine/loading.h"
#include "engine/plan.h"
#include "engine/text_pipe.h"
#include "pack/cache.h"
#include "store/source.h"

namespace sluice::engine {
namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// `packing`: the source is a checkpoint, and of interest is the store that will be made of it.
Result<PlanOptions> plan_options(const store::SourceForm& source, const EngineOptions& options,
                                 const std::optional<pack::PackOptions>& packing = std::nullopt) {
  PlanOptions planned;
  SLUICE_ASSIGN(planned.context, choose_context(source.config(), options.context));
  planned.memory = options.memory;
  planned.draft_head = options.mtp;
  planned.experts = options.experts;
  planned.packing = packing;
  return planned;
}

Result<std::unique_ptr<store::WeightSource>> open_source(const std::filesystem::path& model,
                                                         const EngineOptions& options,
                                                         const backend::Backend& backend) {
  if (!options.pack) return store::open_source(model);
  pack::PackOptions packing;
  packing.jobs = options.threads;
  packing.on_progress = options.on_pack;
  // What would be refused afterwards is refused before hours of packing.
  return pack::open_model(
      model, options.store_dir, packing,
      [&](const store::SourceForm& checkpoint, const pack::PackOptions& with) -> Result<void> {
        SLUICE_ASSIGN(const PlanOptions planned, plan_options(checkpoint, options, with));
        SLUICE_TRY(choose_loading(checkpoint, planned, options, backend));
        return {};
      });
}

decode::SamplingParams with_wishes(decode::SamplingParams params, const Sampling& wish) {
  if (wish.temperature) params.temperature = *wish.temperature;
  if (wish.top_p) params.top_p = *wish.top_p;
  if (wish.top_k) params.top_k = *wish.top_k;
  if (wish.min_p) params.min_p = *wish.min_p;
  params.seed = wish.seed;
  return params;
}

/// What happened from one count to a later one.
ExpertStatistics between(const experts::ExpertCounts& before, const experts::ExpertCounts& after) {
  ExpertStatistics s;
  s.hits = after.hits - before.hits;
  s.late = after.late - before.late;
  s.misses = after.misses - before.misses;
  s.bytes_read = after.bytes_read - before.bytes_read;
  s.retries = after.retries - before.retries;
  s.wait_seconds = after.wait_seconds - before.wait_seconds;
  s.read_seconds = after.read_seconds - before.read_seconds;
  s.ahead = after.ahead - before.ahead;
  s.ahead_useful = after.ahead_useful - before.ahead_useful;
  s.ahead_late = after.ahead_late - before.ahead_late;
  s.ahead_wasted = after.ahead_wasted - before.ahead_wasted;
  s.low_tier = after.low_tier - before.low_tier;
  s.dropped = after.dropped - before.dropped;
  s.device_hits = after.device_hits - before.device_hits;
  s.in_place = after.in_place - before.in_place;
  s.copied = after.copied - before.copied;
  s.bus_bytes = after.bus_bytes - before.bus_bytes;
  return s;
}

class ChatSession final : public Session {
 public:
  ChatSession(ChatEngine& engine, std::unique_ptr<decode::Session> session)
      : engine_(engine), session_(std::move(session)) {}

  Result<Generation> generate(const GenerateRequest& request) override {
    const decode::SamplingParams params = with_wishes(engine_.generation().sampling, request.sampling);
    SLUICE_TRY(params.check());
    if (request.max_tokens < 0) {
      return make_error(ErrorCode::kInvalidArgument, "max-tokens {}: needed 1 or more", request.max_tokens);
    }
    SLUICE_ASSIGN(const auto prompt, engine_.encode(request.prompt));

    Generation out;
    const experts::ExpertCounts before = engine_.model().expert_counts();
    decode::Sampler sampler(params);
    out.seed = sampler.seed();
    out.prompt_tokens = static_cast<std::int64_t>(prompt.size());
    SLUICE_TRY(prefill(prompt, request, out));

    TextPipe pipe(engine_.tokenizer(), request, out);
    decode::GenerateOptions options;
    options.max_tokens = request.max_tokens > 0 ? request.max_tokens : INT64_MAX;
    options.stop_tokens = engine_.generation().stop_tokens;
    options.vocab_limit = engine_.vocab_limit();
    const auto start = std::chrono::steady_clock::now();
    SLUICE_ASSIGN(const auto result, decode::generate(*session_, sampler, options, [&](std::int32_t token) {
                    out.tokens.push_back(token);
                    return pipe.push(token);
                  }));
    pipe.finish();
    out.decode_seconds = seconds_since(start);
    if (pipe.refused()) {
      out.stop_reason = "cancelled";
    } else if (result.reason == decode::StopReason::kLength && !pipe.stopped()) {
      out.stop_reason = "length";
    } else {
      out.stop_reason = "stop";
    }
    out.experts = between(before, engine_.model().expert_counts());
    return out;
  }

 private:
  // Continues from what is there when the prompt begins with it; one token at least is computed, for its
  // logits.
  Result<void> prefill(std::span<const std::int32_t> prompt, const GenerateRequest& request,
                       Generation& out) {
    const auto start = std::chrono::steady_clock::now();
    if (out.prompt_tokens > engine_.context()) {
      return make_error(ErrorCode::kLimit,
                        "prompt of {} tokens: the context holds {}; a larger --ctx is needed",
                        out.prompt_tokens, engine_.context());
    }
    const auto seen = session_->state().tokens();
    if (seen.size() < prompt.size() && std::equal(seen.begin(), seen.end(), prompt.begin())) {
      out.reused_tokens = static_cast<std::int64_t>(seen.size());
    } else {
      session_->reset();
    }
    const auto rest = prompt.subspan(static_cast<std::size_t>(out.reused_tokens));
    SLUICE_TRY(session_->prefill(rest, 0, request.on_prefill));
    out.prefill_seconds = seconds_since(start);
    return {};
  }

  ChatEngine& engine_;
  std::unique_ptr<decode::Session> session_;
};

}  // namespace

Result<void> check_sampling(const Sampling& wish) {
  return with_wishes({}, wish).check();
}

Result<std::unique_ptr<ChatEngine>> ChatEngine::open(const std::filesystem::path& model,
                                                     const EngineOptions& options) {
  std::unique_ptr<ChatEngine> engine(new ChatEngine);
  SLUICE_ASSIGN(engine->backend_,
                backend::create_backend(options.backend, {options.threads, options.device, options.exact}));
  SLUICE_ASSIGN(auto source, open_source(model, options, *engine->backend_));
  const auto& config = source->config();
  const std::filesystem::path folder = source->folder();
  SLUICE_ASSIGN(const PlanOptions planned, plan_options(*source, options));
  engine->context_ = planned.context;
  SLUICE_ASSIGN(const model::ModelOptions model_options,
                choose_loading(*source, planned, options, *engine->backend_));
  SLUICE_ASSIGN(engine->tokenizer_, text::Tokenizer::load(folder));
  auto chat_template = text::ChatTemplate::load(folder);
  if (chat_template.ok()) {
    engine->template_.emplace(std::move(chat_template).value());
  } else if (chat_template.error().code == ErrorCode::kNotFound) {
    engine->template_error_ = chat_template.error().message;
  } else {
    return chat_template.error();
  }
  SLUICE_ASSIGN(engine->generation_, load_generation_config(folder, config.eos_token));
  auto loaded = model::Model::load(std::move(source), *engine->backend_, model_options, options.on_load);
  if (!loaded.ok()) {
    const bool made_here = options.pack && folder != model;
    return made_here ? pack::mendable(loaded.error(), model, folder) : loaded.error();
  }
  engine->model_ = std::move(loaded).value();
  return engine;
}

Result<std::unique_ptr<Session>> ChatEngine::new_session() {
  SLUICE_ASSIGN(auto session, decode::Session::create(*model_, context_));
  return std::unique_ptr<Session>(std::make_unique<ChatSession>(*this, std::move(session)));
}

Result<std::string> ChatEngine::render(const Json& messages, const Json& options) const {
  if (!template_)
    return make_error(ErrorCode::kNotFound, "{}; --raw takes a prompt without one", template_error_);
  return template_->render(messages, options);
}

Result<std::string> ChatEngine::render(std::string_view messages, std::string_view options) const {
  SLUICE_ASSIGN(const Json parsed_messages, parse_json(messages, "messages"));
  SLUICE_ASSIGN(const Json parsed_options, parse_json(options, "options"));
  return render(parsed_messages, parsed_options);
}

Result<std::vector<std::int32_t>> ChatEngine::encode(std::string_view text) const {
  SLUICE_ASSIGN(auto ids, tokenizer_->encode(text));
  // A tokenizer may know more ids than the model has rows.
  for (const std::int32_t id : ids) {
    if (id >= model_->config().vocab) {
      return make_error(ErrorCode::kCorrupt, "tokenizer: token {} found, the model's vocabulary has {}", id,
                        model_->config().vocab);
    }
  }
  return ids;
}

std::string ChatEngine::decode(std::span<const std::int32_t> ids) const {
  return tokenizer_->decode(ids);
}

std::size_t ChatEngine::vocab_limit() const {
  return static_cast<std::size_t>(std::min(tokenizer_->vocab_size(), model_->config().vocab));
}

}  // namespace sluice::engine

namespace sluice {

Result<std::unique_ptr<Engine>> Engine::open(const std::filesystem::path& folder,
                                             const EngineOptions& options) {
  SLUICE_ASSIGN(auto engine, engine::ChatEngine::open(folder, options));
  return std::unique_ptr<Engine>(std::move(engine));
}

}  // namespace sluice
