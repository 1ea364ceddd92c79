#include "text/jinja/template.h"

#include <new>
#include <optional>

#include "text/jinja/evaluator.h"
#include "text/jinja/failure.h"
#include "text/jinja/from_json.h"
#include "text/jinja/parser.h"
#include "text/utf8.h"

namespace sluice::text::jinja {

struct Template::Source {
  std::string name;
  ast::Block block;
};

Template::Template(std::unique_ptr<Source> source) : source_(std::move(source)) {}
Template::Template(Template&&) noexcept = default;
Template& Template::operator=(Template&&) noexcept = default;
Template::~Template() = default;

Result<Template> Template::parse(std::string_view source, std::string_view name) {
  if (source.size() > kMaxSourceBytes) {
    return make_error(ErrorCode::kLimit, "{}: a template of {} bytes, at most {}", name, source.size(),
                      kMaxSourceBytes);
  }
  if (!is_valid_utf8(source)) return make_error(ErrorCode::kCorrupt, "{}: not valid UTF-8", name);
  try {
    return Template(std::make_unique<Source>(Source{std::string(name), parse_template(source)}));
  } catch (const Failure& failure) {
    return make_error(failure.error.code, "{}: {}", name, failure.error.message);
  } catch (const std::bad_alloc&) {
    return make_error(ErrorCode::kOutOfMemory, "{}: no memory to parse the template", name);
  }
}

Result<std::string> Template::render(const Json& variables, const Limits& limits) const {
  if (!variables.is_object()) {
    return make_error(ErrorCode::kInvalidArgument, "{}: variables must be an object, not {}", source_->name,
                      variables.type_name());
  }
  int line = 0;
  try {
    Heap heap(limits);
    std::unordered_map<std::string, Value> values;
    for (const auto& [name, value] : variables.items()) values.insert_or_assign(name, from_json(heap, value));
    Evaluator evaluator(heap, std::move(values));
    try {
      return evaluator.run(source_->block);
    } catch (const Failure&) {
      line = evaluator.line();
      throw;
    }
  } catch (const Failure& failure) {
    if (failure.exact) return failure.error;
    if (line == 0) return make_error(failure.error.code, "{}: {}", source_->name, failure.error.message);
    return make_error(failure.error.code, "{}: line {}: {}", source_->name, line, failure.error.message);
  } catch (const std::bad_alloc&) {
    return make_error(ErrorCode::kOutOfMemory, "{}: no memory to render the template", source_->name);
  }
}

}  // namespace sluice::text::jinja
