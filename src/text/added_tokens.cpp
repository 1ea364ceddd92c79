#include "text/added_tokens.h"

#include <utf8proc.h>

#include "text/utf8.h"

namespace sluice::text {
namespace {

std::uint64_t edge(std::uint32_t node, char byte) {
  return (static_cast<std::uint64_t>(node) << 8) | static_cast<unsigned char>(byte);
}

// \w as regular expressions over Unicode define it: letters, marks, decimal digits, connectors, joiners.
bool is_word(char32_t code) {
  if (code == 0x200C || code == 0x200D) return true;
  switch (utf8proc_category(static_cast<utf8proc_int32_t>(code))) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
      return true;
    default:
      return false;
  }
}

bool touches_word(std::string_view text, std::size_t begin, std::size_t end) {
  if (begin > 0 && is_word(utf8_before(text, begin))) return true;
  return end < text.size() && is_word(utf8_step(text.substr(end)).code);
}

}  // namespace

AddedTokenMatcher::AddedTokenMatcher(const std::vector<AddedToken>& tokens) : tokens_(tokens), ends_{-1} {
  for (std::size_t i = 0; i < tokens_.size(); ++i) {
    std::uint32_t node = 0;
    for (const char c : tokens_[i].content) {
      const auto [it, added] = edges_.try_emplace(edge(node, c), static_cast<std::uint32_t>(ends_.size()));
      if (added) ends_.push_back(-1);
      node = it->second;
    }
    ends_[node] = static_cast<std::int32_t>(i);
    starts_[static_cast<unsigned char>(tokens_[i].content[0])] = true;
  }
}

const AddedToken* AddedTokenMatcher::longest_at(std::string_view text) const {
  const AddedToken* best = nullptr;
  std::uint32_t node = 0;
  for (const char c : text) {
    const auto it = edges_.find(edge(node, c));
    if (it == edges_.end()) break;
    node = it->second;
    if (ends_[node] >= 0) best = &tokens_[static_cast<std::size_t>(ends_[node])];
  }
  return best;
}

void AddedTokenMatcher::split(std::string_view text, std::vector<TextSpan>& spans) const {
  std::size_t done = 0;
  std::size_t at = 0;
  while (at < text.size()) {
    if (!starts_[static_cast<unsigned char>(text[at])]) {
      ++at;
      continue;
    }
    const AddedToken* token = longest_at(text.substr(at));
    if (token == nullptr) {
      ++at;
      continue;
    }
    std::size_t begin = at;
    std::size_t end = at + token->content.size();
    if (token->single_word && touches_word(text, begin, end)) {
      at = end;
      continue;
    }
    if (token->lstrip) {
      while (begin > done && is_white_space(utf8_before(text, begin))) {
        do {
          --begin;
        } while (is_utf8_tail(text[begin]));
      }
    }
    if (token->rstrip) {
      while (end < text.size()) {
        const Utf8Step step = utf8_step(text.substr(end));
        if (!is_white_space(step.code)) break;
        end += step.size;
      }
    }
    if (begin > done) spans.push_back({std::nullopt, text.substr(done, begin - done)});
    spans.push_back({token->id, text.substr(begin, end - begin)});
    done = at = end;
  }
  if (done < text.size()) spans.push_back({std::nullopt, text.substr(done)});
}

}  // namespace sluice::text
