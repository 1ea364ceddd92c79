#include "text/normalize.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstddef>
#include <vector>

#include "text/utf8.h"

namespace sluice::text {
namespace {

// Everything below U+0300 is a starter that neither decomposes away nor combines with what precedes it.
constexpr char32_t kFirstCombining = 0x300;

bool is_plainly_nfc(std::string_view valid) {
  // U+0300 is CC 80: any lead byte from CC on needs a closer look.
  return std::none_of(valid.begin(), valid.end(),
                      [](char c) { return static_cast<unsigned char>(c) >= 0xCC; });
}

utf8proc_propval_t combining_class(utf8proc_int32_t code) {
  return utf8proc_get_property(code)->combining_class;
}

}  // namespace

std::string to_nfc(std::string_view valid) {
  static_assert(kFirstCombining == 0x300);
  if (is_plainly_nfc(valid)) return std::string(valid);

  // The library's own reordering of marks is quadratic in a run of them, so only its tables and its
  // composition are used here.
  std::vector<utf8proc_int32_t> codes;
  codes.reserve(valid.size() / 2);
  for (std::size_t i = 0; i < valid.size();) {
    const Utf8Step step = utf8_step(valid.substr(i));
    i += step.size;
    utf8proc_int32_t parts[16];
    int last_class = 0;
    const utf8proc_ssize_t n = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(step.code), parts, 16,
                                                       UTF8PROC_DECOMPOSE, &last_class);
    if (n > 0 && n <= 16) {
      codes.insert(codes.end(), parts, parts + n);
    } else {
      codes.push_back(static_cast<utf8proc_int32_t>(step.code));
    }
  }
  for (auto run = codes.begin(); run != codes.end();) {
    if (combining_class(*run) == 0) {
      ++run;
      continue;
    }
    const auto end =
        std::find_if(run, codes.end(), [](utf8proc_int32_t c) { return combining_class(c) == 0; });
    if (end - run > 1) {
      std::stable_sort(run, end, [](utf8proc_int32_t a, utf8proc_int32_t b) {
        return combining_class(a) < combining_class(b);
      });
    }
    run = end;
  }
  const utf8proc_ssize_t composed =
      utf8proc_normalize_utf32(codes.data(), static_cast<utf8proc_ssize_t>(codes.size()),
                               static_cast<utf8proc_option_t>(UTF8PROC_COMPOSE | UTF8PROC_STABLE));
  std::string out;
  out.reserve(valid.size());
  const std::size_t count = composed < 0 ? 0 : static_cast<std::size_t>(composed);
  for (std::size_t i = 0; i < count; ++i) append_utf8(out, static_cast<char32_t>(codes[i]));
  return out;
}

}  // namespace sluice::text
