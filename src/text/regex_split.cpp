#define PCRE2_CODE_UNIT_WIDTH 8

#include "text/regex_split.h"

#include <pcre2.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>

#include "text/utf8.h"

namespace sluice::text {
namespace {

constexpr std::size_t kMaxPattern = 16 * 1024;
constexpr std::size_t kJitStack = 8 * 1024 * 1024;
constexpr std::uint32_t kHeapKibibytes = 64 * 1024;

// A match first sees this much text and may take this many backtracking steps; it pays for more.
constexpr std::size_t kFirstWindow = 512;
constexpr std::uint32_t kFirstSteps = 2000;

template <auto Free>
struct Deleter {
  template <class T>
  void operator()(T* p) const {
    Free(p);
  }
};
using CodePtr = std::unique_ptr<pcre2_code, Deleter<pcre2_code_free>>;
using MatchDataPtr = std::unique_ptr<pcre2_match_data, Deleter<pcre2_match_data_free>>;
using MatchContextPtr = std::unique_ptr<pcre2_match_context, Deleter<pcre2_match_context_free>>;
using CompileContextPtr = std::unique_ptr<pcre2_compile_context, Deleter<pcre2_compile_context_free>>;
using JitStackPtr = std::unique_ptr<pcre2_jit_stack, Deleter<pcre2_jit_stack_free>>;

std::string pcre_message(int code) {
  std::array<PCRE2_UCHAR, 160> text{};
  pcre2_get_error_message(code, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

// Spells \s and \S out as White_Space. \S inside a class cannot be spelled there and stays PCRE2's.
std::string with_exact_spaces(std::string_view pattern) {
  constexpr std::string_view kSpaces = R"(\p{Z}\x{09}-\x{0d}\x{85})";
  std::string out;
  bool in_class = false;
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    if (c == '\\' && i + 1 < pattern.size()) {
      const char kind = pattern[++i];
      if (kind == 's' && in_class) {
        out += kSpaces;
      } else if (kind == 's' || (kind == 'S' && !in_class)) {
        out += kind == 's' ? "[" : "[^";
        out += kSpaces;
        out += ']';
      } else {
        out += c;
        out += kind;
      }
      continue;
    }
    if (c == '[' && !in_class) {
      in_class = true;
      out += c;
      if (i + 1 < pattern.size() && pattern[i + 1] == '^') out += pattern[++i];
      if (i + 1 < pattern.size() && pattern[i + 1] == ']') out += pattern[++i];  // a literal ]
      continue;
    }
    if (c == '[' && pattern.substr(i + 1, 1) == ":") {  // [:name:] inside a class ends with its own ]
      const std::size_t close = pattern.find(":]", i + 2);
      if (close != std::string_view::npos) {
        out += pattern.substr(i, close + 2 - i);
        i = close + 1;
        continue;
      }
    }
    if (c == ']') in_class = false;
    out += c;
  }
  return out;
}

}  // namespace

struct RegexSplit::Code {
  CodePtr code;
  bool jit = false;
};

namespace {

// One pass over one text: match state, limits, and the work still allowed.
class Scan {
 public:
  Scan(const pcre2_code* code, bool jit, std::string_view text)
      : code_(code),
        text_(text),
        budget_(100'000'000 + static_cast<std::uint64_t>(text.size()) * 1000),
        data_(pcre2_match_data_create_from_pattern(code, nullptr)),
        context_(pcre2_match_context_create(nullptr)) {
    if (context_ == nullptr) return;
    pcre2_set_heap_limit(context_.get(), kHeapKibibytes);
    if (jit) {
      stack_.reset(pcre2_jit_stack_create(32 * 1024, kJitStack, nullptr));
      if (stack_ != nullptr) pcre2_jit_stack_assign(context_.get(), nullptr, stack_.get());
    }
  }

  [[nodiscard]] bool ready() const { return data_ != nullptr && context_ != nullptr; }

  /// Finds the first match at or after `from`: 1 found (see begin, end), 0 none, negative a PCRE2 error.
  /// A partial match means that the text shown ended too early: the window grows, and the outcome is that
  /// of matching against all the text at once.
  int next(std::size_t from) {
    std::size_t window = kFirstWindow;
    std::uint32_t steps = kFirstSteps;
    for (;;) {
      std::size_t end = std::min(text_.size(), from + window);
      while (end < text_.size() && is_utf8_tail(text_[end])) ++end;
      const bool all = end == text_.size();
      pcre2_set_match_limit(context_.get(), steps);
      const int found =
          pcre2_match(code_, reinterpret_cast<PCRE2_SPTR>(text_.data()), end, from,
                      PCRE2_NO_UTF_CHECK | (all ? 0U : PCRE2_PARTIAL_HARD), data_.get(), context_.get());
      if (found > 0) return 1;
      if (found == PCRE2_ERROR_NOMATCH && all) return 0;
      if (found == PCRE2_ERROR_PARTIAL || found == PCRE2_ERROR_NOMATCH) {
        window *= 4;
        if (!pay(window)) return PCRE2_ERROR_MATCHLIMIT;
      } else if (found == PCRE2_ERROR_MATCHLIMIT) {
        if (steps > 0x0FFFFFFFU) return found;
        steps *= 8;
        if (!pay(steps)) return found;
      } else {
        return found;
      }
    }
  }

  [[nodiscard]] std::size_t begin() const { return pcre2_get_ovector_pointer(data_.get())[0]; }
  [[nodiscard]] std::size_t end() const { return pcre2_get_ovector_pointer(data_.get())[1]; }

 private:
  bool pay(std::uint64_t work) {
    if (work > budget_) return false;
    budget_ -= work;
    return true;
  }

  const pcre2_code* code_;
  std::string_view text_;
  std::uint64_t budget_;
  MatchDataPtr data_;
  MatchContextPtr context_;
  JitStackPtr stack_;
};

}  // namespace

RegexSplit::RegexSplit(std::unique_ptr<Code> code) : code_(std::move(code)) {}
RegexSplit::RegexSplit(RegexSplit&&) noexcept = default;
RegexSplit& RegexSplit::operator=(RegexSplit&&) noexcept = default;
RegexSplit::~RegexSplit() = default;

Result<RegexSplit> RegexSplit::compile(std::string_view pattern, bool literal, std::string_view what) {
  if (pattern.empty() || pattern.size() > kMaxPattern) {
    return make_error(ErrorCode::kUnsupported, "{}: split pattern of {} bytes, need 1 to {}", what,
                      pattern.size(), kMaxPattern);
  }
  if (!is_valid_utf8(pattern)) {
    return make_error(ErrorCode::kCorrupt, "{}: split pattern is not valid UTF-8", what);
  }
  const std::string text = literal ? std::string(pattern) : with_exact_spaces(pattern);
  const std::uint32_t options =
      literal ? PCRE2_UTF | PCRE2_LITERAL : PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C;
  int error = 0;
  PCRE2_SIZE offset = 0;
  CompileContextPtr context(pcre2_compile_context_create(nullptr));
  auto code = std::make_unique<Code>();
  code->code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), options, &error,
                                 &offset, context.get()));
  if (code->code == nullptr) {
    return make_error(ErrorCode::kCorrupt, "{}: split pattern does not compile: {}", what,
                      pcre_message(error));
  }
  code->jit = pcre2_jit_compile(code->code.get(), PCRE2_JIT_COMPLETE | PCRE2_JIT_PARTIAL_HARD) == 0;
  return RegexSplit(std::move(code));
}

Result<void> RegexSplit::split(std::string_view text, std::vector<std::string_view>& pieces) const {
  Scan scan(code_->code.get(), code_->jit, text);
  if (!scan.ready()) return make_error(ErrorCode::kOutOfMemory, "no memory to match a split pattern");
  std::size_t done = 0;  // end of the last piece
  std::size_t from = 0;  // where the search goes on; past `done` only after an empty match
  while (from < text.size()) {
    const int found = scan.next(from);
    if (found == 0) break;
    if (found < 0) {
      return make_error(ErrorCode::kLimit, "splitting {} bytes of text for the tokenizer: {} at byte {}",
                        text.size(), pcre_message(found), from);
    }
    const std::size_t begin = scan.begin();
    const std::size_t end = scan.end();
    // Only a pattern with \K can report a match that starts before the search or ends before its start.
    if (begin < from || end < begin) {
      return make_error(ErrorCode::kUnsupported, "the tokenizer's split pattern moves a match backwards");
    }
    if (begin > done) pieces.push_back(text.substr(done, begin - done));
    if (end > begin) pieces.push_back(text.substr(begin, end - begin));
    done = end;
    from = end > from ? end : from + utf8_size(text[from]);
  }
  if (done < text.size()) pieces.push_back(text.substr(done));
  return {};
}

}  // namespace sluice::text
