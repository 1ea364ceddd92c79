#include "engine/eval.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>

#include "base/file.h"
#include "decode/generate.h"
#include "decode/token_ids.h"

namespace sluice::engine {
namespace {

constexpr std::size_t kWindow = 512;
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

Result<std::vector<std::int32_t>> read_ids(const Json& list, const std::string& what) {
  auto ids = decode::parse_token_ids(dump_json(list));
  if (ids.ok()) return ids;
  return make_error(ErrorCode::kCorrupt, "{}: {}", what, ids.error().message);
}

Result<void> read_tools(const Json& root, const std::string& what, EvalSuite& suite) {
  if (root.contains("tools")) {
    if (!root["tools"].is_array()) return make_error(ErrorCode::kCorrupt, "{}: tools is no array", what);
    for (const Json& tool : root["tools"]) suite.tools.push_back(tool);
  }
  if (!root.contains("tool_calls")) return {};
  if (!root["tool_calls"].is_array())
    return make_error(ErrorCode::kCorrupt, "{}: tool_calls is no array", what);
  for (const Json& item : root["tool_calls"]) {
    const auto text = [&](const char* key) {
      return item.is_object() && item.contains(key) && item[key].is_string();
    };
    const bool good =
        text("ask") && text("name") && item.contains("arguments") && item["arguments"].is_object();
    ToolItem one;
    if (good) {
      for (const auto& [key, value] : item["arguments"].items()) {
        if (value.is_string()) one.call.arguments.emplace_back(key, value);
      }
    }
    if (!good || one.call.arguments.size() != item["arguments"].size()) {
      return make_error(ErrorCode::kCorrupt,
                        "{}: tool_calls[{}]: needed an object with ask, name and arguments, texts", what,
                        suite.tool_calls.size());
    }
    one.ask = item["ask"];
    one.call.name = item["name"];
    suite.tool_calls.push_back(std::move(one));
  }
  return {};
}

/// Called with the logits of each position of a window but the last.
using EachRow = std::function<void(std::size_t position, std::span<const float> logits)>;

Result<void> each_row(model::Model& model, std::span<const std::int32_t> ids, const EachRow& each) {
  SLUICE_ASSIGN(const auto state, model.new_state(static_cast<std::int64_t>(ids.size())));
  const auto vocab = static_cast<std::size_t>(model.config().vocab);
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
        const std::size_t position = at + static_cast<std::size_t>(first) + r;
        if (position + 1 < ids.size()) each(position, std::span(logits).subspan(r * vocab, vocab));
      }
      return {};
    };
    SLUICE_TRY(model.forward(std::span(&segment, 1), options));
    SLUICE_TRY(state->commit(static_cast<std::int64_t>(rows)));
  }
  return {};
}

/// The logarithm of the sum of exponentials.
double log_sum(std::span<const float> logits) {
  const double highest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(logit - highest);
  return highest + std::log(sum);
}

// Negative log likelihood of a window's tokens after the first, on average.
Result<double> window_loss(model::Model& model, std::span<const std::int32_t> ids) {
  double loss = 0;
  SLUICE_TRY(each_row(model, ids, [&](std::size_t position, std::span<const float> logits) {
    loss += log_sum(logits) - logits[static_cast<std::size_t>(ids[position + 1])];
  }));
  return loss / static_cast<double>(ids.size() - 1);
}

double mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

std::vector<std::int32_t> held_out_text(const EvalSuite& suite) {
  std::vector<std::int32_t> text;
  for (const auto& document : suite.held_out) text.insert(text.end(), document.begin(), document.end());
  text.resize(text.size() / kWindow * kWindow);
  return text;
}

/// Something of each window.
Result<std::vector<double>> each_window(
    std::span<const std::int32_t> text, std::string_view name, const EvalProgress& progress,
    const std::function<Result<double>(std::span<const std::int32_t>)>& of) {
  std::vector<double> out;
  for (std::size_t at = 0; at < text.size(); at += kWindow) {
    SLUICE_ASSIGN(const double one, of(text.subspan(at, kWindow)));
    out.push_back(one);
    if (progress) {
      progress(name, static_cast<std::int64_t>(out.size()), static_cast<std::int64_t>(text.size() / kWindow));
    }
  }
  return out;
}

struct Answer {
  std::vector<std::int32_t> prompt;
  std::vector<std::int32_t> tokens;  // the end token included
  bool ended = false;
};

/// The greedy answer to a prompt.
Result<Answer> answer_to(ChatEngine& engine, decode::Session& session, std::vector<std::int32_t> prompt,
                         std::int64_t most_tokens) {
  Answer answer;
  answer.prompt = std::move(prompt);
  session.reset();
  SLUICE_TRY(session.prefill(answer.prompt));
  decode::Sampler sampler({.temperature = 0});
  decode::GenerateOptions options;
  options.max_tokens = most_tokens;
  options.stop_tokens = engine.generation().stop_tokens;
  SLUICE_ASSIGN(const auto result, decode::generate(session, sampler, options, [&](std::int32_t token) {
                  answer.tokens.push_back(token);
                  return true;
                }));
  answer.ended = result.reason == decode::StopReason::kStopToken;
  return answer;
}

Result<Answer> ask(ChatEngine& engine, decode::Session& session, const std::string& question,
                   const Json& tools = {}) {
  const Json messages = Json::array({{{"role", "user"}, {"content", question}}});
  Json options{{"enable_thinking", false}, {"add_generation_prompt", true}};
  if (!tools.empty()) options["tools"] = tools;
  SLUICE_ASSIGN(const auto prompt, engine.render(messages, options));
  SLUICE_ASSIGN(auto ids, engine.encode(prompt));
  return answer_to(engine, session, std::move(ids), kMostAnswerTokens);
}

/// The text of generated ids without the token that ended them.
std::string text_of(const ChatEngine& engine, std::vector<std::int32_t> ids) {
  const auto& stop = engine.generation().stop_tokens;
  if (!ids.empty() && std::find(stop.begin(), stop.end(), ids.back()) != stop.end()) ids.pop_back();
  return engine.decode(ids);
}

/// Counts an answer that should be these calls and nothing else.
void count_calls(const std::string& answer, const std::vector<text::ToolCall>& wanted,
                 const std::string& name, EvalResult& result) {
  ++result.tool_calls;
  const auto found = text::parse_tool_calls(answer);
  if (!found.ok() || found->calls.empty()) ++result.tool_calls_broken;
  if (found.ok() && found->calls == wanted) {
    ++result.tool_calls_right;
  } else {
    result.different.push_back(name);
  }
}

Result<void> ask_for_tools(ChatEngine& engine, decode::Session& session, const EvalSuite& suite,
                           EvalResult& result, const EvalProgress& progress) {
  std::int64_t done = 0;
  for (const ToolItem& item : suite.tool_calls) {
    SLUICE_ASSIGN(const Answer answer, ask(engine, session, item.ask, suite.tools));
    count_calls(text_of(engine, answer.tokens), {item.call}, item.ask, result);
    if (progress) progress("tool calls", ++done, static_cast<std::int64_t>(suite.tool_calls.size()));
  }
  return {};
}

Result<void> repeat_goldens(ChatEngine& engine, decode::Session& session, const EvalSuite& suite,
                            EvalResult& result, const EvalProgress& progress) {
  for (const GoldenItem& item : suite.goldens) {
    SLUICE_TRY(decode::check_token_ids(item.prompt, engine.model().config().vocab));
    SLUICE_ASSIGN(const Answer answer,
                  answer_to(engine, session, item.prompt, static_cast<std::int64_t>(item.output.size())));
    ++result.goldens;
    const auto wanted = text::parse_tool_calls(text_of(engine, item.output));
    const bool calls = wanted.ok() && !wanted->calls.empty();
    if (answer.tokens == item.output) {
      ++result.goldens_same;
    } else if (!calls) {
      result.different.push_back(item.name);
    }
    if (calls) count_calls(text_of(engine, answer.tokens), wanted->calls, item.name, result);
    if (progress) progress("golden answers", result.goldens, static_cast<std::int64_t>(suite.goldens.size()));
  }
  return {};
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

Result<void> add_eval_suite(const std::filesystem::path& path, EvalSuite& suite) {
  SLUICE_ASSIGN(const auto text, read_text_file(path, kMostSuiteBytes));
  SLUICE_ASSIGN(const Json root, parse_json(text, path.string()));
  if (!root.is_object()) return make_error(ErrorCode::kCorrupt, "{}: needed a JSON object", path.string());
  if (root.contains("held_out")) {
    if (!root["held_out"].is_array())
      return make_error(ErrorCode::kCorrupt, "{}: held_out is no array", path.string());
    for (const Json& document : root["held_out"]) {
      SLUICE_ASSIGN(auto ids, read_ids(document, fmt::format("{}: held_out[{}]", path.string(),
                                                             suite.held_out.size())));
      suite.held_out.push_back(std::move(ids));
    }
  }
  const auto append = [&](const char* key, std::vector<RecallItem>& to) -> Result<void> {
    SLUICE_ASSIGN(auto items, read_items(root, key, path.string()));
    std::move(items.begin(), items.end(), std::back_inserter(to));
    return {};
  };
  SLUICE_TRY(append("recall_top", suite.recall_top));
  SLUICE_TRY(append("recall_all", suite.recall_all));
  return read_tools(root, path.string(), suite);
}

Result<EvalSuite> load_eval_suite(const std::filesystem::path& path) {
  EvalSuite suite;
  SLUICE_TRY(add_eval_suite(path, suite));
  return suite;
}

Result<void> add_goldens(const std::filesystem::path& path, EvalSuite& suite) {
  SLUICE_ASSIGN(const auto text, read_text_file(path, kMostSuiteBytes));
  SLUICE_ASSIGN(const Json root, parse_json(text, path.string()));
  if (!root.is_array()) return make_error(ErrorCode::kCorrupt, "{}: needed a JSON array", path.string());
  for (const Json& item : root) {
    const std::string what = fmt::format("{}: [{}]", path.string(), suite.goldens.size());
    if (!item.is_object() || !item.contains("prompt_ids") || !item.contains("output_ids") ||
        !item.contains("name") || !item["name"].is_string()) {
      return make_error(ErrorCode::kCorrupt, "{}: needed an object with name, prompt_ids and output_ids",
                        what);
    }
    GoldenItem golden{item["name"], {}, {}};
    SLUICE_ASSIGN(golden.prompt, read_ids(item["prompt_ids"], what));
    SLUICE_ASSIGN(golden.output, read_ids(item["output_ids"], what));
    suite.goldens.push_back(std::move(golden));
  }
  return {};
}

Result<EvalResult> evaluate(ChatEngine& engine, const EvalSuite& suite, const EvalProgress& progress) {
  EvalResult result;
  auto& model = engine.model();
  const std::vector<std::int32_t> text = held_out_text(suite);
  result.windows = static_cast<std::int64_t>(text.size() / kWindow);
  if (result.windows == 0 && suite.recall_top.empty() && suite.recall_all.empty() &&
      suite.tool_calls.empty() && suite.goldens.empty()) {
    return make_error(
        ErrorCode::kInvalidArgument,
        "suite: nothing to measure; needed {} tokens of held_out, or items in recall_top, recall_all "
        "or tool_calls, or golden answers",
        kWindow);
  }
  if (result.windows > 0) {
    SLUICE_TRY(decode::check_token_ids(text, model.config().vocab));
    const auto loss = [&](std::span<const std::int32_t> ids) { return window_loss(model, ids); };
    SLUICE_ASSIGN(result.losses_sparse, each_window(text, "perplexity", progress, loss));
    model.set_dense_attention(true);
    auto dense = each_window(text, "perplexity, dense", progress, loss);
    model.set_dense_attention(false);
    if (!dense.ok()) return dense.error();
    result.losses_dense = std::move(dense).value();
    result.perplexity_sparse = std::exp(mean(result.losses_sparse));
    result.perplexity_dense = std::exp(mean(result.losses_dense));
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
      SLUICE_ASSIGN(Answer answer, ask(engine, *session, "Define " + item.word + "."));
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
  SLUICE_TRY(ask_for_tools(engine, *session, suite, result, progress));
  SLUICE_TRY(repeat_goldens(engine, *session, suite, result, progress));
  return result;
}

Result<void> compare(ChatEngine& engine, ChatEngine& reference, const EvalSuite& suite, EvalResult& result,
                     const EvalProgress& progress) {
  const auto vocab = engine.model().config().vocab;
  if (reference.model().config().vocab != vocab) {
    return make_error(ErrorCode::kInvalidArgument,
                      "models with vocabularies of {} and {} tokens cannot be compared", vocab,
                      reference.model().config().vocab);
  }
  const std::vector<std::int32_t> text = held_out_text(suite);
  if (text.empty()) return {};
  SLUICE_TRY(decode::check_token_ids(text, vocab));
  std::vector<float> wanted;
  const auto divergence = [&](std::span<const std::int32_t> ids) -> Result<double> {
    wanted.clear();
    SLUICE_TRY(each_row(reference.model(), ids, [&](std::size_t, std::span<const float> logits) {
      wanted.insert(wanted.end(), logits.begin(), logits.end());
    }));
    double sum = 0;
    SLUICE_TRY(each_row(engine.model(), ids, [&](std::size_t position, std::span<const float> logits) {
      const auto right = std::span(wanted).subspan(position * logits.size(), logits.size());
      const double from = log_sum(right), to = log_sum(logits);
      for (std::size_t i = 0; i < logits.size(); ++i) {
        const double p = right[i] - from;
        sum += std::exp(p) * (p - (logits[i] - to));
      }
    }));
    return sum / static_cast<double>(ids.size() - 1);
  };
  SLUICE_ASSIGN(result.divergences, each_window(text, "divergence", progress, divergence));
  result.compared = static_cast<std::int64_t>(result.divergences.size());
  result.divergence = mean(result.divergences);
  return {};
}

}  // namespace sluice::engine
