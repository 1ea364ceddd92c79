// Jinja templates as chat models use them: parse once, render many times.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/json.h"
#include "base/result.h"
#include "text/jinja/limits.h"

namespace sluice::text::jinja {

/// A parsed template: immutable, may be rendered from several threads. Templates see the variables they are
/// given and nothing else, and cannot use more than the limits.
class Template {
 public:
  /// Errors begin with `name` and the line: kCorrupt for a syntax error, kUnsupported for tags nothing here
  /// implements, kLimit for a source too large or nested too deep. White space follows trim_blocks and
  /// lstrip_blocks.
  static Result<Template> parse(std::string_view source, std::string_view name);

  Template(Template&&) noexcept;
  Template& operator=(Template&&) noexcept;
  ~Template();

  /// Renders with the members of `variables` (an object) as names. The message of raise_exception is returned
  /// as it is (kInvalidArgument); other errors begin with the template's name and the line.
  [[nodiscard]] Result<std::string> render(const Json& variables, const Limits& limits = {}) const;

 private:
  struct Source;
  explicit Template(std::unique_ptr<Source> source);
  std::unique_ptr<Source> source_;
};

}  // namespace sluice::text::jinja
