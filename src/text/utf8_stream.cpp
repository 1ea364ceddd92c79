#include "text/utf8_stream.h"

#include "text/utf8.h"

namespace sluice::text {

std::string Utf8Stream::push(std::string_view bytes) {
  std::string out;
  pending_.append(bytes);
  std::string_view rest = pending_;
  while (!rest.empty()) {
    const Utf8Step step = utf8_step(rest);
    if (step.status == Utf8Status::kCut) break;
    out.append(step.status == Utf8Status::kOk ? rest.substr(0, step.size) : kReplacement);
    rest.remove_prefix(step.size);
  }
  pending_.erase(0, pending_.size() - rest.size());
  return out;
}

bool Utf8Stream::finish() {
  const bool cut = !pending_.empty();
  pending_.clear();
  return cut;
}

}  // namespace sluice::text
