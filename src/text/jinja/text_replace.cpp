#include "text/jinja/text_replace.h"

#include "text/jinja/text_ops.h"
#include "text/utf8.h"

namespace sluice::text::jinja {

std::string replaced(Heap& heap, std::string_view s, std::string_view from, std::string_view to,
                     std::int64_t count) {
  TextBuilder out(heap);
  heap.work_on_text(s.size());
  while (count != 0) {
    const std::size_t at = find_text(s, from);
    if (at == std::string_view::npos) break;
    out.add(s.substr(0, at));
    out.add(to);
    if (count > 0) --count;
    s.remove_prefix(at + from.size());
    if (from.empty()) {
      if (s.empty()) break;
      const std::size_t size = utf8_size(s[0]);
      out.add(s.substr(0, size));
      s.remove_prefix(size);
    }
  }
  out.add(s);
  return std::move(out.text());
}

}  // namespace sluice::text::jinja
