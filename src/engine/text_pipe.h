// From generated tokens to the text a user sees.
#pragma once

#include <string>

#include "sluice/engine.h"
#include "text/reasoning.h"
#include "text/stop_strings.h"
#include "text/tokenizer.h"
#include "text/utf8_stream.h"

namespace sluice::engine {

/// Turns tokens into text for one request: whole characters, reasoning apart, up to a stop string.
class TextPipe {
 public:
  TextPipe(const text::Tokenizer& tokenizer, const GenerateRequest& request, Generation& out)
      : tokenizer_(tokenizer),
        request_(request),
        out_(out),
        splitter_(text::ends_in_open_think(request.prompt)),
        stops_(request.stop) {}

  /// False when the text shall end here.
  bool push(std::int32_t token) {
    if (tokenizer_.is_special(token)) return true;
    return emit(splitter_.push(utf8_.push(tokenizer_.token_bytes(token))));
  }

  /// Shows what was held back; a character cut by the end is dropped.
  void finish() {
    if (ended_) return;
    utf8_.finish();
    if (emit(splitter_.finish())) show(TextKind::kAnswer, stops_.finish());
  }

  /// A stop string was found.
  [[nodiscard]] bool stopped() const { return stops_.stopped(); }
  /// The receiver wants no more.
  [[nodiscard]] bool refused() const { return refused_; }

 private:
  bool emit(const text::SplitText& part) {
    const bool goes_on = show(TextKind::kReasoning, part.reasoning) &&
                         show(TextKind::kAnswer, part.answer.empty() ? "" : stops_.push(part.answer));
    ended_ = !goes_on || stops_.stopped();
    return !ended_;
  }

  bool show(TextKind kind, const std::string& text) {
    if (text.empty()) return true;
    (kind == TextKind::kReasoning ? out_.reasoning : out_.answer) += text;
    refused_ = request_.on_text && !request_.on_text(kind, text);
    return !refused_;
  }

  const text::Tokenizer& tokenizer_;
  const GenerateRequest& request_;
  Generation& out_;
  text::Utf8Stream utf8_;
  text::ReasoningSplitter splitter_;
  text::StopStrings stops_;
  bool ended_ = false;
  bool refused_ = false;
};

}  // namespace sluice::engine
