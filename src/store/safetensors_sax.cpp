#include "store/safetensors_sax.h"

#include <limits>
#include <nlohmann/json.hpp>

namespace sluice::store {
namespace {

using Sax = nlohmann::json_sax<nlohmann::json>;

/// Events with everything refused; handlers allow what their format has.
class StrictSax : public Sax {
 public:
  explicit StrictSax(std::string_view what) : what_(what) {}
  [[nodiscard]] const std::optional<Error>& error() const { return error_; }

  bool null() override { return refuse("null"); }
  bool boolean(bool) override { return refuse("a boolean"); }
  bool number_integer(number_integer_t) override { return refuse("a negative number"); }
  bool number_unsigned(number_unsigned_t) override { return refuse("a number"); }
  bool number_float(number_float_t, const string_t&) override {
    return refuse("a fractional or huge number");
  }
  bool string(string_t&) override { return refuse("a string"); }
  bool binary(binary_t&) override { return refuse("binary data"); }
  bool start_object(std::size_t) override { return refuse("an object"); }
  bool key(string_t&) override { return refuse("a key"); }
  bool end_object() override { return refuse("the end of an object"); }
  bool start_array(std::size_t) override { return refuse("a list"); }
  bool end_array() override { return refuse("the end of a list"); }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception&) override {
    if (!error_) {
      error_ =
          make_error(ErrorCode::kCorrupt, "{}: the header is not valid JSON at byte {}", what_, position);
    }
    return false;
  }

 protected:
  bool fail(std::string_view message) {
    if (!error_) error_ = make_error(ErrorCode::kCorrupt, "{}: {}", what_, message);
    return false;
  }
  virtual bool refuse(std::string_view found) {
    return fail(fmt::format("{} found in the wrong place", found));
  }

 private:
  std::string what_;
  std::optional<Error> error_;
};

class HeaderSax final : public StrictSax {
 public:
  HeaderSax(std::string_view what, std::vector<RawTensor>& tensors,
            std::map<std::string, std::string>& metadata)
      : StrictSax(what), tensors_(&tensors), metadata_(&metadata) {}

  bool start_object(std::size_t) override {
    switch (place_) {
      case Place::kStart:
        place_ = Place::kTop;
        return true;
      case Place::kEntry:
        place_ = current_.name == "__metadata__" ? Place::kMetadata : Place::kTensor;
        return true;
      default:
        return refuse("an object");
    }
  }

  bool key(string_t& text) override {
    switch (place_) {
      case Place::kTop:
        current_ = {};
        current_.name = std::move(text);
        seen_ = 0;
        place_ = Place::kEntry;
        return true;
      case Place::kMetadata:
        metadata_key_ = std::move(text);
        place_ = Place::kMetadataValue;
        return true;
      case Place::kTensor:
        if (text == "dtype") return enter(Place::kDtype, 1, text);
        if (text == "shape") return enter(Place::kShape, 2, text);
        if (text == "data_offsets") return enter(Place::kOffsets, 4, text);
        return fail(fmt::format("tensor {}: unknown field \"{}\"", current_.name, text.substr(0, 64)));
      default:
        return refuse("a key");
    }
  }

  bool string(string_t& text) override {
    if (place_ == Place::kDtype) {
      current_.dtype = std::move(text);
      place_ = Place::kTensor;
      return true;
    }
    if (place_ == Place::kMetadataValue) {
      if (!metadata_->emplace(metadata_key_, std::move(text)).second) {
        return fail(fmt::format("metadata \"{}\" occurs twice", metadata_key_.substr(0, 64)));
      }
      place_ = Place::kMetadata;
      return true;
    }
    return refuse("a string");
  }

  bool start_array(std::size_t) override {
    if (place_ != Place::kShape && place_ != Place::kOffsets) return refuse("a list");
    if (in_list_) return refuse("a list in a list");
    in_list_ = true;
    count_ = 0;
    return true;
  }

  bool number_unsigned(number_unsigned_t n) override {
    if (!in_list_) return refuse("a number");
    if (n > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
      return fail(fmt::format("tensor {}: {} is too large", current_.name, n));
    }
    if (place_ == Place::kShape) {
      if (++count_ > kMaxRank)
        return fail(fmt::format("tensor {}: more than {} dimensions", current_.name, kMaxRank));
      current_.shape.push_back(static_cast<std::int64_t>(n));
    } else {
      if (++count_ > 2) return fail(fmt::format("tensor {}: more than two data_offsets", current_.name));
      (count_ == 1 ? current_.begin : current_.end) = n;
    }
    return true;
  }

  bool end_array() override {
    if (place_ == Place::kOffsets && count_ != 2) {
      return fail(fmt::format("tensor {}: {} data_offsets found, 2 needed", current_.name, count_));
    }
    in_list_ = false;
    place_ = Place::kTensor;
    return true;
  }

  bool end_object() override {
    if (place_ == Place::kTop) {
      place_ = Place::kDone;
      return true;
    }
    if (place_ == Place::kTensor) {
      if (seen_ != 7) {
        return fail(fmt::format("tensor {}: dtype, shape and data_offsets needed", current_.name));
      }
      tensors_->push_back(std::move(current_));
    }
    place_ = Place::kTop;
    return true;
  }

 protected:
  bool refuse(std::string_view found) override {
    if (current_.name.empty()) return fail(fmt::format("{} found in the wrong place of the header", found));
    return fail(fmt::format("tensor {}: {} found in the wrong place", current_.name, found));
  }

 private:
  static constexpr std::size_t kMaxRank = 32;
  enum class Place {
    kStart,
    kTop,
    kEntry,
    kMetadata,
    kMetadataValue,
    kTensor,
    kDtype,
    kShape,
    kOffsets,
    kDone
  };

  bool enter(Place place, unsigned bit, std::string_view field) {
    if ((seen_ & bit) != 0) return fail(fmt::format("tensor {}: {} occurs twice", current_.name, field));
    seen_ |= bit;
    place_ = place;
    return true;
  }

  std::vector<RawTensor>* tensors_;
  std::map<std::string, std::string>* metadata_;
  Place place_ = Place::kStart;
  RawTensor current_;
  std::string metadata_key_;
  unsigned seen_ = 0;  // dtype 1, shape 2, data_offsets 4
  std::size_t count_ = 0;
  bool in_list_ = false;
};

/// Takes the strings of one top-level object and skips all else.
class StringMapSax final : public StrictSax {
 public:
  StringMapSax(std::string_view what, std::string_view wanted) : StrictSax(what), wanted_(wanted) {}

  std::vector<std::pair<std::string, std::string>> entries;
  bool found = false;

  bool null() override { return scalar(); }
  bool boolean(bool) override { return scalar(); }
  bool number_integer(number_integer_t) override { return scalar(); }
  bool number_unsigned(number_unsigned_t) override { return scalar(); }
  bool number_float(number_float_t, const string_t&) override { return scalar(); }
  bool start_object(std::size_t) override {
    if (inside()) return refuse("an object");
    if (depth_ == 1 && key_ == wanted_) {
      if (found) return fail(fmt::format("{} occurs twice", wanted_));
      found = true;
      taking_ = true;
    }
    ++depth_;
    return true;
  }
  bool end_object() override {
    if (--depth_ == 1) taking_ = false;
    return true;
  }
  bool start_array(std::size_t) override {
    if (depth_ == 0 || inside()) return refuse("a list");
    ++depth_;
    return true;
  }
  bool end_array() override {
    --depth_;
    return true;
  }
  bool key(string_t& text) override {
    if (depth_ == 1 || inside()) key_ = std::move(text);
    return true;
  }
  bool string(string_t& text) override {
    if (!inside()) return scalar();
    entries.emplace_back(key_, std::move(text));
    return true;
  }

 private:
  [[nodiscard]] bool inside() const { return taking_; }
  bool scalar() {
    if (depth_ == 0 || inside()) return refuse("something that is no string");
    return true;
  }

  std::string wanted_;
  std::string key_;
  std::size_t depth_ = 0;
  bool taking_ = false;
};

template <class Handler>
Result<void> run(std::string_view text, std::string_view what, Handler& handler) {
  try {
    const bool done = nlohmann::json::sax_parse(text.begin(), text.end(), static_cast<Sax*>(&handler));
    if (handler.error()) return *handler.error();
    if (!done) return make_error(ErrorCode::kCorrupt, "{}: the header is not valid JSON", what);
  } catch (const nlohmann::json::exception& e) {
    return make_error(ErrorCode::kCorrupt, "{}: the header is not valid JSON: {}", what, e.what());
  }
  return {};
}

}  // namespace

Result<void> parse_header_json(std::string_view text, std::string_view what, std::vector<RawTensor>& tensors,
                               std::map<std::string, std::string>& metadata) {
  HeaderSax handler(what, tensors, metadata);
  return run(text, what, handler);
}

Result<std::vector<std::pair<std::string, std::string>>> parse_string_map(std::string_view text,
                                                                          std::string_view key,
                                                                          std::string_view what,
                                                                          bool& found) {
  StringMapSax handler(what, key);
  SLUICE_TRY(run(text, what, handler));
  found = handler.found;
  return std::move(handler.entries);
}

}  // namespace sluice::store
