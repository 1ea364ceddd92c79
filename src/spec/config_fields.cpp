#include "spec/config_fields.h"

#include <cmath>

namespace sluice::spec {
namespace {

/// A JSON value for a message: short, whatever the file holds.
std::string quote(const Json* value) {
  if (value == nullptr) return "nothing";
  if (value->is_object()) return "an object";
  std::string text;
  if (value->is_array() && value->size() > 8) {
    text = fmt::format("a list of {}", value->size());
  } else {
    text = dump_json(*value);
  }
  if (text.size() > 80) text = text.substr(0, 77) + "...";
  return text;
}

}  // namespace

void FieldErrors::add(ErrorCode code, std::string_view field, std::string_view found,
                      std::string_view needed) {
  if (!first_) first_ = make_error(code, "{}: {}: {} found, {} needed", what_, field, found, needed);
}

const Json* FieldReader::find(std::string_view key) const {
  if (!object_->is_object()) return nullptr;
  const auto it = object_->find(key);
  return it == object_->end() || it->is_null() ? nullptr : &*it;
}

void FieldReader::fail(std::string_view key, std::string_view found, std::string_view needed,
                       ErrorCode code) const {
  errors_->add(code, prefix_ + std::string(key), found, needed);
}

void FieldReader::fail(std::string_view key, std::string_view needed, ErrorCode code) const {
  fail(key, quote(find(key)), needed, code);
}

std::optional<std::int64_t> FieldReader::as_integer(std::string_view key, const Json& value, std::int64_t low,
                                                    std::int64_t high) const {
  // nlohmann keeps a non-negative integer as unsigned; one above int64 must not wrap.
  if (value.is_number_unsigned()) {
    const auto n = value.get<std::uint64_t>();
    if (high >= 0 && n <= static_cast<std::uint64_t>(high) && static_cast<std::int64_t>(n) >= low) {
      return static_cast<std::int64_t>(n);
    }
  } else if (value.is_number_integer()) {
    const auto n = value.get<std::int64_t>();
    if (n >= low && n <= high) return n;
  }
  fail(key, quote(&value), fmt::format("an integer from {} to {}", low, high));
  return std::nullopt;
}

std::optional<std::int64_t> FieldReader::integer(std::string_view key, std::int64_t low,
                                                 std::int64_t high) const {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  return as_integer(key, *value, low, high);
}

std::int64_t FieldReader::integer(std::string_view key, std::int64_t fallback, std::int64_t low,
                                  std::int64_t high) const {
  return integer(key, low, high).value_or(fallback);
}

std::optional<double> FieldReader::number(std::string_view key, double low, double high) const {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (value->is_number()) {
    const auto n = value->get<double>();
    if (std::isfinite(n) && n >= low && n <= high) return n;
  }
  fail(key, quote(value), fmt::format("a number from {} to {}", low, high));
  return std::nullopt;
}

double FieldReader::number(std::string_view key, double fallback, double low, double high) const {
  return number(key, low, high).value_or(fallback);
}

bool FieldReader::boolean(std::string_view key, bool fallback) const {
  const Json* value = find(key);
  if (value == nullptr) return fallback;
  if (value->is_boolean()) return value->get<bool>();
  fail(key, "true or false");
  return fallback;
}

std::string FieldReader::text(std::string_view key, std::string_view fallback) const {
  const Json* value = find(key);
  if (value == nullptr) return std::string(fallback);
  if (value->is_string()) return value->get<std::string>();
  fail(key, "a string");
  return std::string(fallback);
}

std::optional<std::vector<std::int64_t>> FieldReader::integers(std::string_view key, std::int64_t low,
                                                               std::int64_t high, std::size_t most) const {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  std::vector<std::int64_t> list;
  if (!value->is_array() || value->size() > most) {
    fail(key, fmt::format("a list of at most {} integers", most));
    return list;
  }
  for (const Json& item : *value) {
    const auto n = as_integer(key, item, low, high);
    if (!n) return list;
    list.push_back(*n);
  }
  return list;
}

FieldReader FieldReader::object(std::string_view key) const {
  static const Json kEmpty = Json::object();
  const Json* value = find(key);
  if (value != nullptr && !value->is_object()) fail(key, "an object");
  const bool usable = value != nullptr && value->is_object();
  return {usable ? *value : kEmpty, prefix_ + std::string(key) + ".", *errors_};
}

}  // namespace sluice::spec
