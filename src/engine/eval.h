// How good the answers are: perplexity, recall of definitions, agreement of the draft head, tool calls, and
// how many known answers come back.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "base/json.h"
#include "engine/chat_engine.h"
#include "text/tool_calls.h"

namespace sluice::engine {

struct RecallItem {
  std::string word;
  std::string answer;
};

/// A question to which the only good answer is one call of a tool.
struct ToolItem {
  std::string ask;
  text::ToolCall call;
};

/// A greedy answer of the model that is the measure, token for token.
struct GoldenItem {
  std::string name;
  std::vector<std::int32_t> prompt, output;
};

/// A suite file: {"held_out": [[ids]...], "recall_top": [{word, answer}...], "recall_all": [...], "tools":
/// [as templates take them], "tool_calls": [{ask, name, arguments: {key: text}}...]}; what is absent is not
/// measured.
struct EvalSuite {
  std::vector<std::vector<std::int32_t>> held_out;
  std::vector<RecallItem> recall_top, recall_all;
  Json tools = Json::array();
  std::vector<ToolItem> tool_calls;
  std::vector<GoldenItem> goldens;
};

/// Adds what a suite file holds.
Result<void> add_eval_suite(const std::filesystem::path& path, EvalSuite& suite);
Result<EvalSuite> load_eval_suite(const std::filesystem::path& path);
/// Adds a file of golden answers: [{name, prompt_ids, output_ids}...].
Result<void> add_goldens(const std::filesystem::path& path, EvalSuite& suite);

struct EvalResult {
  std::int64_t windows = 0;                         // of the held-out text, 512 tokens each
  double perplexity_sparse = 0;                     // over tokens 1..511 of each window, from a fresh state
  double perplexity_dense = 0;                      // the same ignoring the indexer
  std::vector<double> losses_sparse, losses_dense;  // of each window, mean over its tokens, in nats
  std::int64_t top_items = 0, all_items = 0;
  double recall_top = 0;  // share answered exactly, and then ended
  double recall_all = 0;
  std::int64_t drafts = 0;              // compared, over the recall_top answers
  double mtp_agreement = 0;             // share of drafts equal to the trunk's own choice
  double mtp_agreement_per_stream = 0;  // the same with the hidden norm taken for each stream by itself
  std::int64_t goldens = 0, goldens_same = 0;  // answers, and those that are the same tokens
  /// Calls asked for (by tool_calls and in goldens), and answers that were exactly that call; the others
  /// parsed as something else, or not at all.
  std::int64_t tool_calls = 0, tool_calls_right = 0, tool_calls_broken = 0;
  std::vector<std::string> different;  // names of goldens and questions that were not answered as they should
  /// Mean over the held-out tokens of the divergence from the other model, and of each window.
  std::int64_t compared = 0;
  double divergence = 0;
  std::vector<double> divergences;
};

/// Called with the name of the measurement, items done and in all.
using EvalProgress = std::function<void(std::string_view what, std::int64_t done, std::int64_t total)>;

Result<EvalResult> evaluate(ChatEngine& engine, const EvalSuite& suite, const EvalProgress& progress = {});

/// The Kullback-Leibler divergence of the next-token distributions of `engine` from those of `reference`, a
/// model of the same vocabulary, over the held-out windows: far less noisy than a difference of perplexities.
Result<void> compare(ChatEngine& engine, ChatEngine& reference, const EvalSuite& suite, EvalResult& result,
                     const EvalProgress& progress = {});

}  // namespace sluice::engine
