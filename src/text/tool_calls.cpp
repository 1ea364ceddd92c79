#include "text/tool_calls.h"

#include <algorithm>

namespace sluice::text {
namespace {

constexpr std::string_view kCall = "<tool_call>";
constexpr std::string_view kSpace = " \t\r\n";

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  Result<ToolAnswer> answer() {
    ToolAnswer out;
    at_ = std::min(text_.find(kCall), text_.size());
    out.text = text_.substr(0, text_.find_last_not_of(kSpace, at_ == 0 ? 0 : at_ - 1) + 1);
    if (at_ == 0) out.text.clear();
    while (at_ < text_.size()) {
      SLUICE_TRY(need(kCall));
      SLUICE_ASSIGN(ToolCall call, function());
      SLUICE_TRY(need("</tool_call>"));
      out.calls.push_back(std::move(call));
      skip_space();
    }
    return out;
  }

 private:
  Result<ToolCall> function() {
    ToolCall call;
    SLUICE_ASSIGN(call.name, name("<function="));
    while (!next_is("</function>")) {
      SLUICE_ASSIGN(std::string key, name("<parameter="));
      const bool twice = std::any_of(call.arguments.begin(), call.arguments.end(),
                                     [&](const auto& argument) { return argument.first == key; });
      if (twice) return make_error(ErrorCode::kCorrupt, "tool call: parameter {} given twice", key);
      constexpr std::string_view kEnd = "</parameter>";
      const std::size_t end = text_.find(kEnd, at_);
      if (end == std::string_view::npos) return broken(kEnd);
      std::string_view value = text_.substr(at_, end - at_);
      if (!value.empty() && value.front() == '\n') value.remove_prefix(1);
      if (!value.empty() && value.back() == '\n') value.remove_suffix(1);
      call.arguments.emplace_back(std::move(key), value);
      at_ = end + kEnd.size();
    }
    SLUICE_TRY(need("</function>"));
    return call;
  }

  /// The name in a tag that begins with `open`.
  Result<std::string> name(std::string_view open) {
    SLUICE_TRY(need(open));
    const std::size_t end = text_.find('>', at_);
    const std::string_view found = text_.substr(at_, std::min(end, text_.size()) - at_);
    if (end == std::string_view::npos || found.empty() ||
        found.find_first_of("<\"'\\ \t\r\n") != std::string_view::npos) {
      return make_error(ErrorCode::kCorrupt, "tool call: \"{}{}\" found, a name and > needed", open,
                        found.substr(0, 40));
    }
    at_ = end + 1;
    return std::string(found);
  }

  void skip_space() { at_ = std::min(text_.find_first_not_of(kSpace, at_), text_.size()); }
  bool next_is(std::string_view tag) {
    skip_space();
    return text_.substr(at_, tag.size()) == tag;
  }
  Result<void> need(std::string_view tag) {
    if (!next_is(tag)) return broken(tag);
    at_ += tag.size();
    return {};
  }
  [[nodiscard]] Error broken(std::string_view needed) const {
    return make_error(ErrorCode::kCorrupt, "tool call: \"{}\" found, {} needed", text_.substr(at_, 40),
                      needed);
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

}  // namespace

Result<ToolAnswer> parse_tool_calls(std::string_view answer) {
  return Parser(answer).answer();
}

}  // namespace sluice::text
