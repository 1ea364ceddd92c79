#include "quant/record.h"

#include <array>
#include <cassert>
#include <cmath>
#include <cstring>
#include <string_view>
#include <vector>

#include "quant/codes.h"

namespace sluice::quant {
namespace {

using spec::Format;
using spec::RecordLayout;

constexpr std::array<std::string_view, 3> kNames{"gate", "up", "down"};

Result<void> check_size(std::string_view what, std::size_t found, std::int64_t needed) {
  if (found == static_cast<std::size_t>(needed)) return {};
  return make_error(ErrorCode::kInvalidArgument, "expert record: {}: found {}, needed {}", what, found,
                    needed);
}

Error in_matrix(int which, const Error& error) {
  return make_error(error.code, "expert record, {}: {}", kNames[static_cast<std::size_t>(which)],
                    error.message);
}

Result<void> check_geometry(const RecordLayout& layout) {
  const auto& g = layout.geometry;
  if (g.hidden <= 0 || g.inter <= 0 || g.hidden > (std::int64_t{1} << 24) ||
      g.inter > (std::int64_t{1} << 24)) {
    return make_error(ErrorCode::kInvalidArgument, "expert record: hidden {} and inter {} have no size",
                      g.hidden, g.inter);
  }
  if (!spec::is_quantised(layout.format)) return {};
  if (g.group <= 0 || g.group % 32 != 0 || g.hidden % g.group != 0 || g.inter % g.group != 0) {
    return make_error(ErrorCode::kInvalidArgument,
                      "expert record: groups of {} for hidden {} and inter {}: needed a multiple of 32 that "
                      "divides both",
                      g.group, g.hidden, g.inter);
  }
  return {};
}

template <class Byte>
BasicMatrixParts<Byte> parts_of(const RecordLayout& layout, std::span<Byte> record, int which) {
  assert(record.size() == static_cast<std::size_t>(layout.bytes()));
  const auto at = [&](std::int64_t offset, std::int64_t bytes) {
    return record.subspan(static_cast<std::size_t>(offset), static_cast<std::size_t>(bytes));
  };
  return {at(layout.matrix_offset(which), layout.matrix_bytes()),
          at(layout.scales_offset(which), layout.scale_bytes()),
          at(layout.biases_offset(which), layout.scale_bytes())};
}

std::vector<float> roots_of(std::span<const float> squares) {
  std::vector<float> roots(squares.begin(), squares.end());
  for (float& root : roots) root = std::sqrt(root);
  return roots;
}

template <class T>
std::span<T> third(std::span<T> all, int which) {
  return all.subspan(all.size() / 3 * static_cast<std::size_t>(which), all.size() / 3);
}

}  // namespace

MatrixShape record_matrix(const RecordLayout& layout, int which) {
  const auto& g = layout.geometry;
  return which == 2 ? MatrixShape{layout.format, g.hidden, g.inter, g.group}
                    : MatrixShape{layout.format, g.inter, g.hidden, g.group};
}

MatrixParts record_parts(const RecordLayout& layout, std::span<const std::byte> record, int which) {
  return parts_of(layout, record, which);
}

MutableMatrixParts record_parts(const RecordLayout& layout, std::span<std::byte> record, int which) {
  return parts_of(layout, record, which);
}

Result<void> record_values(const RecordLayout& layout, std::span<const std::byte> record,
                           std::span<float> out) {
  SLUICE_TRY(check_geometry(layout));
  SLUICE_TRY(check_size("bytes", record.size(), layout.bytes()));
  SLUICE_TRY(check_size("room for weights", out.size(), record_weights(layout)));
  for (int which = 0; which < 3; ++which) {
    const auto done = dequantise_rows(record_matrix(layout, which), record_parts(layout, record, which), 0,
                                      third(out, which));
    if (!done) return in_matrix(which, done.error());
  }
  return {};
}

Result<double> quantise_record(const RecordLayout& layout, std::span<const float> values,
                               const RecordImportance& importance, std::span<std::byte> out,
                               ThreadTeam* team) {
  SLUICE_TRY(check_geometry(layout));
  SLUICE_TRY(check_size("weights", values.size(), record_weights(layout)));
  SLUICE_TRY(check_size("room for bytes", out.size(), layout.bytes()));
  double error = 0;
  for (int which = 0; which < 3; ++which) {
    const MatrixShape shape = record_matrix(layout, which);
    const auto weights = which == 2 ? importance.inter : importance.hidden;
    const InputFactor* factor = which == 2 ? importance.inter_factor : importance.hidden_factor;
    const auto parts = record_parts(layout, out, which);
    const auto one =
        factor == nullptr || weights.empty()
            ? quantise_matrix(shape, third(values, which), weights, parts, team, importance.by_size)
            : quantise_with_feedback(shape, third(values, which), roots_of(weights), *factor, parts);
    if (!one) return in_matrix(which, one.error());
    error += *one;
  }
  return error;
}

Result<void> truncate_record(const RecordLayout& q4_layout, std::span<const std::byte> q4_record,
                             const RecordLayout& low_layout, std::span<std::byte> out) {
  SLUICE_TRY(check_geometry(q4_layout));
  if (q4_layout.format != Format::kQ4 ||
      (low_layout.format != Format::kQ3 && low_layout.format != Format::kQ2)) {
    return make_error(ErrorCode::kInvalidArgument,
                      "expert record: codes of {} bits cannot be truncated to {}: needed 4 to 3 or 2",
                      spec::bits_of(q4_layout.format), spec::bits_of(low_layout.format));
  }
  const auto &from = q4_layout.geometry, &to = low_layout.geometry;
  if (from.hidden != to.hidden || from.inter != to.inter || from.group != to.group) {
    return make_error(ErrorCode::kInvalidArgument,
                      "expert record: found hidden {}, inter {}, group {}, needed those of the 4-bit record: "
                      "{}, {}, {}",
                      to.hidden, to.inter, to.group, from.hidden, from.inter, from.group);
  }
  SLUICE_TRY(check_size("bytes of 4 bits", q4_record.size(), q4_layout.bytes()));
  SLUICE_TRY(check_size("room for bytes", out.size(), low_layout.bytes()));
  // Rows are whole chunks, so all codes are one run; so are all scales and biases.
  const auto codes = static_cast<std::size_t>(3 * q4_layout.matrix_bytes());
  const auto low_codes = static_cast<std::size_t>(3 * low_layout.matrix_bytes());
  truncate_codes(low_layout.format, q4_record.first(codes), out.first(low_codes));
  std::memcpy(out.data() + low_codes, q4_record.data() + codes, q4_record.size() - codes);
  return {};
}

}  // namespace sluice::quant
