#include "engine/eval.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/file.h"
#include "decode/generate.h"
#include "decode/token_ids.h"

namespace sluice::engine {
namespace {

constexpr std::int64_t kWindow = 512;
constexpr std::int64_t kMostAnswerTokens = 256;
constexpr std::uint64_t kMostSuiteBytes = std::uint64_t{256} << 20;

Result<std::vector<RecallItem>> read_items(const Json& root, const char* key, std::string_view what) {
  std::vector<RecallItem> items;
  const auto list = root.find(key);
  if (list == root.end()) return items;
  if (!list->is_array()) return make_error(ErrorCode::kCorrupt, "{}: {} is no array", what, key);
  for (const Json& item : *list) {
    if (!item.is_object() || !item.contains("word") || !item["word"].is_string() ||
        !item.contains("answer") || !item["answer"].is_string()) {
      return make_error(ErrorCode::kCorrupt, "{}: {}[{}]: needed an object with the strings word and answer",
                        what, key, items.size());
    }
    items.push_back({item["word"], item["answer"]});
  }
  return items;
}

// Negative log likelihoods of a window's tokens after the first, summed.
Result<double> window_loss(model::Model& model, std::span<const std::int32_t> ids) {
  SLUICE_ASSIGN(const auto state, model.new_state(static_cast<std::int64_t>(ids.size())));
  const auto vocab = static_cast<std::size_t>(model.config().vocab);
  double loss = 0;
  std::vector<float> logits;
  for (std::size_t at = 0; at < ids.size(); at += static_cast<std::size_t>(model.max_rows())) {
    const auto rows = std::min(ids.size() - at, static_cast<std::size_t>(model.max_rows()));
    const model::Segment segment{state.get(), ids.subspan(at, rows)};
    model::ForwardOptions options;
    options.logits = model::ForwardOptions::Logits::kAll;
    options.on_logits = [&](std::int64_t first, std::int64_t count,
                            model::Dev<const float> data) -> Result<void> {
      logits.resize(static_cast<std::size_t>(count) * vocab);
      model.backend().download(std::as_writable_bytes(std::span(logits)),
                               model::Dev(reinterpret_cast<const std::byte*>(data.address())));
      for (std::size_t r = 0; r < static_cast<std::size_t>(count); ++r) {
        const std::size_t next = at + static_cast<std::size_t>(first) + r + 1;
        if (next >= ids.size()) break;
        const auto row = std::span(logits).subspan(r * vocab, vocab);
        const double highest = *std::max_element(row.begin(), row.end());
        double sum = 0;
        for (const float logit : row) sum += std::exp(logit - highest);
        loss += highest + std::log(sum) - row[static_cast<std::size_t>(ids[next])];
      }
      return {};
    };
    SLUICE_TRY(model.forward(std::span(&segment, 1), options));
    SLUICE_TRY(state->commit(static_cast<std::int64_t>(rows)));
  }
  return loss;
}

Result<double> perplexity(model::Model& model, std::span<const std::int32_t> text, std::string_view name,
                          const EvalProgress& progress) {
  const auto windows = static_cast<std::int64_t>(text.size()) / kWindow;
  double loss = 0;
  for (std::int64_t w = 0; w < windows; ++w) {
    SLUICE_ASSIGN(const double part,
                  window_loss(model, text.subspan(static_cast<std::size_t>(w * kWindow), kWindow)));
    loss += part;
    if (progress) progress(name, w + 1, windows);
  }
  return std::exp(loss / static_cast<double>(windows * (kWindow - 1)));
}

struct Answer {
  std::vector<std::int32_t> prompt;
  std::vector<std::int32_t> tokens;  // the end token included
  bool ended = false;
};

Result<Answer> ask(ChatEngine& engine, decode::Session& session, const std::string& word) {
  Answer answer;
  const Json messages = Json::array({{{"role", "user"}, {"content", "Define " + word + "."}}});
  SLUICE_ASSIGN(const auto prompt,
                engine.render(messages, {{"enable_thinking", false}, {"add_generation_prompt", true}}));
  SLUICE_ASSIGN(answer.prompt, engine.encode(prompt));
  session.reset();
  SLUICE_TRY(session.prefill(answer.prompt));
  decode::Sampler sampler({.temperature = 0});
  decode::GenerateOptions options;
  options.max_tokens = kMostAnswerTokens;
  options.stop_tokens = engine.generation().stop_tokens;
  SLUICE_ASSIGN(const auto result, decode::generate(session, sampler, options, [&](std::int32_t token) {
                  answer.tokens.push_back(token);
                  return true;
                }));
  answer.ended = result.reason == decode::StopReason::kStopToken;
  return answer;
}

struct Agreement {
  std::int64_t drafts = 0;
  std::int64_t equal = 0;
};

// The head's choice for the token after the next, from every answer token on, against the trunk's choice
// there.
Result<void> compare_drafts(model::Model& model, const Answer& answer, Agreement& agreement) {
  std::vector<std::int32_t> ids = answer.prompt;
  ids.insert(ids.end(), answer.tokens.begin(), answer.tokens.end());
  SLUICE_ASSIGN(const auto state, model.new_state(static_cast<std::int64_t>(ids.size())));
  const auto vocab = static_cast<std::size_t>(model.config().vocab);
  std::vector<std::int32_t> trunk(ids.size(), -1);
  std::vector<std::int32_t> head(ids.size(), -1);
  std::vector<float> logits;
  for (std::size_t at = 0; at < ids.size(); at += static_cast<std::size_t>(model.max_rows())) {
    const auto rows = std::min(ids.size() - at, static_cast<std::size_t>(model.max_rows()));
    const auto choose = [&, at](std::vector<std::int32_t>& to) {
      return [&, at](std::int64_t first, std::int64_t count, model::Dev<const float> data) -> Result<void> {
        logits.resize(static_cast<std::size_t>(count) * vocab);
        model.backend().download(std::as_writable_bytes(std::span(logits)),
                                 model::Dev(reinterpret_cast<const std::byte*>(data.address())));
        for (std::size_t r = 0; r < static_cast<std::size_t>(count); ++r) {
          to[at + static_cast<std::size_t>(first) + r] =
              decode::argmax(std::span(logits).subspan(r * vocab, vocab), vocab);
        }
        return {};
      };
    };
    model::ForwardOptions options;
    options.logits = model::ForwardOptions::Logits::kAll;
    options.on_logits = choose(trunk);
    options.on_mtp_logits = choose(head);
    const model::Segment segment{state.get(), std::span(ids).subspan(at, rows)};
    SLUICE_TRY(model.forward(std::span(&segment, 1), options));
    SLUICE_TRY(state->commit(static_cast<std::int64_t>(rows)));
  }
  // Row t of both predicts token t + 1; the head's was made with token t.
  for (std::size_t t = answer.prompt.size(); t + 1 < ids.size(); ++t) {
    ++agreement.drafts;
    if (head[t] == trunk[t]) ++agreement.equal;
  }
  return {};
}

}  // namespace

Result<EvalSuite> load_eval_suite(const std::filesystem::path& path) {
  SLUICE_ASSIGN(const auto text, read_text_file(path, kMostSuiteBytes));
  SLUICE_ASSIGN(const Json root, parse_json(text, path.string()));
  if (!root.is_object()) return make_error(ErrorCode::kCorrupt, "{}: needed a JSON object", path.string());
  EvalSuite suite;
  if (root.contains("held_out")) {
    if (!root["held_out"].is_array())
      return make_error(ErrorCode::kCorrupt, "{}: held_out is no array", path.string());
    for (const Json& document : root["held_out"]) {
      auto ids = decode::parse_token_ids(dump_json(document));
      if (!ids.ok()) {
        return make_error(ErrorCode::kCorrupt, "{}: held_out[{}]: {}", path.string(), suite.held_out.size(),
                          ids.error().message);
      }
      suite.held_out.push_back(std::move(ids).value());
    }
  }
  SLUICE_ASSIGN(suite.recall_top, read_items(root, "recall_top", path.string()));
  SLUICE_ASSIGN(suite.recall_all, read_items(root, "recall_all", path.string()));
  return suite;
}

Result<EvalResult> evaluate(ChatEngine& engine, const EvalSuite& suite, const EvalProgress& progress) {
  EvalResult result;
  auto& model = engine.model();
  std::vector<std::int32_t> text;
  for (const auto& document : suite.held_out) text.insert(text.end(), document.begin(), document.end());
  result.windows = static_cast<std::int64_t>(text.size()) / kWindow;
  if (result.windows == 0 && suite.recall_top.empty() && suite.recall_all.empty()) {
    return make_error(
        ErrorCode::kInvalidArgument,
        "suite: nothing to measure; needed {} tokens of held_out, or items in recall_top or recall_all",
        kWindow);
  }
  if (result.windows > 0) {
    SLUICE_TRY(decode::check_token_ids(text, model.config().vocab));
    SLUICE_ASSIGN(result.perplexity_sparse, perplexity(model, text, "perplexity", progress));
    model.set_dense_attention(true);
    auto dense = perplexity(model, text, "perplexity, dense", progress);
    model.set_dense_attention(false);
    if (!dense.ok()) return dense.error();
    result.perplexity_dense = dense.value();
  }
  SLUICE_ASSIGN(const auto session, decode::Session::create(model, engine.context()));
  Agreement agreement;
  Agreement per_stream;
  const auto drafts_of = [&](const Answer& answer) -> Result<void> {
    SLUICE_TRY(compare_drafts(model, answer, agreement));
    const auto usual = model.mtp_hidden_norm();
    model.set_mtp_hidden_norm(model::MtpHiddenNorm::kPerStream);
    auto compared = compare_drafts(model, answer, per_stream);
    model.set_mtp_hidden_norm(usual);
    return compared;
  };
  const auto recall = [&](const std::vector<RecallItem>& items, std::string_view name,
                          bool drafts) -> Result<double> {
    std::int64_t right = 0;
    std::int64_t done = 0;
    for (const auto& item : items) {
      SLUICE_ASSIGN(Answer answer, ask(engine, *session, item.word));
      if (drafts && model.has_mtp()) SLUICE_TRY(drafts_of(answer));
      if (answer.ended) {
        answer.tokens.pop_back();
        if (engine.decode(answer.tokens) == item.answer) ++right;
      }
      if (progress) progress(name, ++done, static_cast<std::int64_t>(items.size()));
    }
    return items.empty() ? 0.0 : static_cast<double>(right) / static_cast<double>(items.size());
  };
  result.top_items = static_cast<std::int64_t>(suite.recall_top.size());
  result.all_items = static_cast<std::int64_t>(suite.recall_all.size());
  SLUICE_ASSIGN(result.recall_top, recall(suite.recall_top, "recall, top", true));
  SLUICE_ASSIGN(result.recall_all, recall(suite.recall_all, "recall, all", false));
  result.drafts = agreement.drafts;
  const auto share = [](const Agreement& a) {
    return a.drafts == 0 ? 0 : static_cast<double>(a.equal) / static_cast<double>(a.drafts);
  };
  result.mtp_agreement = share(agreement);
  result.mtp_agreement_per_stream = share(per_stream);
  return result;
}

}  // namespace sluice::engine
