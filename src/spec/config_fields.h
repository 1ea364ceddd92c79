// Typed, bounded reading of JSON fields with one error for the whole object.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/result.h"

namespace sluice::spec {

/// The first error found while reading a config. Shared by the readers of its objects, so that a parser can
/// read every field in a row and look once at the end.
class FieldErrors {
 public:
  explicit FieldErrors(std::string_view what) : what_(what) {}

  /// Records "what: field: found, needed" unless there is an error already.
  void add(ErrorCode code, std::string_view field, std::string_view found, std::string_view needed);
  [[nodiscard]] const std::optional<Error>& first() const { return first_; }

 private:
  std::string what_;
  std::optional<Error> first_;
};

/// Fields of one JSON object. A missing field and `null` are the same thing. Every getter returns a value
/// inside its bounds even after an error, so that parsing can go on safely.
class FieldReader {
 public:
  /// `prefix` names the object in messages: "text_config." or "". Neither object nor errors are owned.
  FieldReader(const Json& object, std::string prefix, FieldErrors& errors)
      : object_(&object), prefix_(std::move(prefix)), errors_(&errors) {}

  /// The value, or nullptr when missing or null.
  [[nodiscard]] const Json* find(std::string_view key) const;
  [[nodiscard]] bool has(std::string_view key) const { return find(key) != nullptr; }

  [[nodiscard]] std::optional<std::int64_t> integer(std::string_view key, std::int64_t low,
                                                    std::int64_t high) const;
  [[nodiscard]] std::int64_t integer(std::string_view key, std::int64_t fallback, std::int64_t low,
                                     std::int64_t high) const;
  [[nodiscard]] std::optional<double> number(std::string_view key, double low, double high) const;
  [[nodiscard]] double number(std::string_view key, double fallback, double low, double high) const;
  [[nodiscard]] bool boolean(std::string_view key, bool fallback) const;
  [[nodiscard]] std::string text(std::string_view key, std::string_view fallback) const;
  /// A list of integers; nullopt when missing. At most `most` entries.
  [[nodiscard]] std::optional<std::vector<std::int64_t>> integers(std::string_view key, std::int64_t low,
                                                                  std::int64_t high, std::size_t most) const;
  /// The object under `key`, or an empty one.
  [[nodiscard]] FieldReader object(std::string_view key) const;

  void fail(std::string_view key, std::string_view found, std::string_view needed,
            ErrorCode code = ErrorCode::kInvalidArgument) const;
  /// As above, quoting the value found.
  void fail(std::string_view key, std::string_view needed,
            ErrorCode code = ErrorCode::kInvalidArgument) const;

 private:
  [[nodiscard]] std::optional<std::int64_t> as_integer(std::string_view key, const Json& value,
                                                       std::int64_t low, std::int64_t high) const;

  const Json* object_;
  std::string prefix_;
  FieldErrors* errors_;
};

}  // namespace sluice::spec
