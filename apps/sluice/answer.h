// Printing an answer while it is generated, and telling about it after.
#pragma once

#include <string>
#include <vector>

#include "base/json.h"
#include "sluice/engine.h"

namespace sluice::cli {

struct AnswerOptions {
  Sampling sampling;
  std::int64_t max_tokens = 0;
  std::vector<std::string> stop;
  bool show_thinking = false;  // where output is no terminal; on one, reasoning is shown dimmed
  bool quiet = false;          // print nothing
};

/// Generates and streams to standard output; a progress bar shows a long prefill. Ctrl-C ends the answer.
Result<Generation> answer(Session& session, const std::string& prompt, const AnswerOptions& options);

Json generation_json(const Generation& generation);
Json statistics_json(const Generation& generation);
/// "19 tokens in 0.02 s (830/s), 16 out in 0.03 s (540/s)"
std::string summary_line(const Generation& generation);

}  // namespace sluice::cli
