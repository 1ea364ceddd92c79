// Expert records between formats: what one stands for, fitting one, dropping bits of one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/result.h"
#include "base/threads.h"
#include "quant/feedback.h"
#include "quant/matrix.h"
#include "spec/formats.h"

namespace sluice::quant {

/// Matrix `which` of a record: 0 gate and 1 up [inter][hidden], 2 down [hidden][inter].
MatrixShape record_matrix(const spec::RecordLayout& layout, int which);

/// Where matrix `which` lies in a record of layout.bytes() bytes (asserted).
MatrixParts record_parts(const spec::RecordLayout& layout, std::span<const std::byte> record, int which);
MutableMatrixParts record_parts(const spec::RecordLayout& layout, std::span<std::byte> record, int which);

/// Weights in the three matrices of a record.
constexpr std::int64_t record_weights(const spec::RecordLayout& layout) {
  return 3 * layout.geometry.hidden * layout.geometry.inter;
}

/// The float32 values of a record in any format: gate [inter][hidden], up [inter][hidden], down
/// [hidden][inter], one behind the other.
///
/// kInvalidArgument: `record` is not layout.bytes() long or `out` not record_weights(layout).
Result<void> record_values(const spec::RecordLayout& layout, std::span<const std::byte> record,
                           std::span<float> out);

/// How much each input's squared error counts: finite, not negative. Empty: all alike.
struct RecordImportance {
  std::span<const float> hidden;  // [hidden], inputs of gate and up
  std::span<const float> inter;   // [inter], inputs of down
  /// With the above, how the inputs go together, for error feedback (feedback.h); null: not at all.
  const InputFactor* hidden_factor = nullptr;
  const InputFactor* inter_factor = nullptr;
  /// Without a factor: the errors of large weights count more, and 3 bits stay near 4 (quantise_matrix).
  bool by_size = false;
};

/// Stores values as record_values gives them in the format and group of `layout`, with the least error that
/// fit_row finds, and returns its weighted sum. Making a low-bit record of the best values at hand, rather
/// than truncating a 4-bit one, is what operations.md calls refitting.
///
/// Errors as for quantise_matrix, naming the matrix.
Result<double> quantise_record(const spec::RecordLayout& layout, std::span<const float> values,
                               const RecordImportance& importance, std::span<std::byte> out,
                               ThreadTeam* team = nullptr);

/// Makes a 3- or 2-bit record of a 4-bit one by dropping bits of the codes; scales and biases stay bit for
/// bit (operations.md, "Low-bit record layout").
///
/// kInvalidArgument: formats, geometries or sizes do not fit.
Result<void> truncate_record(const spec::RecordLayout& q4_layout, std::span<const std::byte> q4_record,
                             const spec::RecordLayout& low_layout, std::span<std::byte> out);

}  // namespace sluice::quant
