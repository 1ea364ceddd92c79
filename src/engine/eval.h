// How good the answers are: perplexity, recall of definitions, agreement of the draft head.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "engine/chat_engine.h"

namespace sluice::engine {

struct RecallItem {
  std::string word;
  std::string answer;
};

/// A suite file: {"held_out": [[ids]...], "recall_top": [{word, answer}...], "recall_all": [...]}; what is
/// absent is not measured.
struct EvalSuite {
  std::vector<std::vector<std::int32_t>> held_out;
  std::vector<RecallItem> recall_top, recall_all;
};

Result<EvalSuite> load_eval_suite(const std::filesystem::path& path);

struct EvalResult {
  std::int64_t windows = 0;      // of the held-out text, 512 tokens each
  double perplexity_sparse = 0;  // over tokens 1..511 of each window, from a fresh state
  double perplexity_dense = 0;   // the same ignoring the indexer
  std::int64_t top_items = 0, all_items = 0;
  double recall_top = 0;  // share answered exactly, and then ended
  double recall_all = 0;
  std::int64_t drafts = 0;              // compared, over the recall_top answers
  double mtp_agreement = 0;             // share of drafts equal to the trunk's own choice
  double mtp_agreement_per_stream = 0;  // the same with the hidden norm taken for each stream by itself
};

/// Called with the name of the measurement, items done and in all.
using EvalProgress = std::function<void(std::string_view what, std::int64_t done, std::int64_t total)>;

Result<EvalResult> evaluate(ChatEngine& engine, const EvalSuite& suite, const EvalProgress& progress = {});

}  // namespace sluice::engine
