#include "text/stop_strings.h"

#include <algorithm>
#include <utility>

namespace sluice::text {

StopStrings::StopStrings(std::vector<std::string> stops) {
  for (std::string& stop : stops) {
    if (stop.empty()) continue;
    Pattern pattern;
    pattern.fallback.assign(stop.size() + 1, 0);
    for (std::size_t n = 1, k = 0; n < stop.size(); ++n) {
      while (k > 0 && stop[n] != stop[k]) k = pattern.fallback[k];
      if (stop[n] == stop[k]) ++k;
      pattern.fallback[n + 1] = k;
    }
    pattern.text = std::move(stop);
    patterns_.push_back(std::move(pattern));
  }
}

std::string StopStrings::push(std::string_view text) {
  if (stopped()) return {};
  std::string out;
  std::size_t done = 0;
  for (; done < text.size() && !stopped(); ++done) {
    const char c = text[done];
    for (std::size_t i = 0; i < patterns_.size(); ++i) {
      Pattern& pattern = patterns_[i];
      while (pattern.matched > 0 && pattern.text[pattern.matched] != c) {
        pattern.matched = pattern.fallback[pattern.matched];
      }
      if (pattern.text[pattern.matched] == c) ++pattern.matched;
      if (pattern.matched < pattern.text.size()) continue;
      if (!matched_ || patterns_[*matched_].text.size() < pattern.text.size()) matched_ = i;
    }
  }
  held_.append(text.substr(0, done));
  if (stopped()) {
    out = held_.substr(0, held_.size() - patterns_[*matched_].text.size());
    held_.clear();
    return out;
  }
  std::size_t keep = 0;
  for (const Pattern& pattern : patterns_) keep = std::max(keep, pattern.matched);
  out = held_.substr(0, held_.size() - keep);
  held_.erase(0, out.size());
  return out;
}

std::string StopStrings::finish() {
  for (Pattern& pattern : patterns_) pattern.matched = 0;
  return std::exchange(held_, {});
}

std::optional<std::string> StopStrings::matched() const {
  if (!matched_) return std::nullopt;
  return patterns_[*matched_].text;
}

}  // namespace sluice::text
