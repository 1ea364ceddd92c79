#include "text/reasoning.h"

#include <algorithm>
#include <utility>

namespace sluice::text {
namespace {

constexpr std::string_view kOpen = "<think>";
constexpr std::string_view kClose = "</think>";

// Bytes at the end of `text` that could be the start of the tag. Its first byte occurs in it only once.
std::size_t partial_tag(std::string_view text) {
  const std::size_t longest = std::min(text.size(), kClose.size() - 1);
  for (std::size_t n = longest; n > 0; --n) {
    if (text.ends_with(kClose.substr(0, n))) return n;
  }
  return 0;
}

std::string_view without_end_newlines(std::string_view text) {
  while (text.ends_with('\n')) text.remove_suffix(1);
  return text;
}

}  // namespace

bool ends_in_open_think(std::string_view prompt) {
  const std::size_t last = prompt.find_last_not_of(" \t\r\n");
  return last != std::string_view::npos && prompt.substr(0, last + 1).ends_with(kOpen);
}

SplitText ReasoningSplitter::push(std::string_view text) {
  SplitText out;
  std::string rest;  // after the tag
  if (state_ == State::kReasoning) {
    // What is held is newlines and then less than a tag: the search may start just before the new text.
    const std::size_t from = held_.size() - std::min(held_.size(), kClose.size() - 1);
    held_.append(text);
    const std::size_t tag = held_.find(kClose, from);
    if (tag == std::string::npos) {
      const std::string_view all = held_;
      const std::string_view sure = without_end_newlines(all.substr(0, all.size() - partial_tag(all)));
      out.reasoning = sure;
      held_.erase(0, out.reasoning.size());
      return out;
    }
    out.reasoning = without_end_newlines(std::string_view(held_).substr(0, tag));
    rest = held_.substr(tag + kClose.size());
    held_.clear();
    state_ = State::kAfterTag;
    text = rest;
  }
  if (state_ == State::kAfterTag) {
    text.remove_prefix(std::min(text.find_first_not_of('\n'), text.size()));
    if (text.empty()) return out;
    state_ = State::kAnswer;
  }
  out.answer = text;
  return out;
}

SplitText ReasoningSplitter::finish() {
  SplitText out;
  out.reasoning = std::exchange(held_, {});
  return out;
}

}  // namespace sluice::text
