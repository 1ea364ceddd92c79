// Quantising with error feedback: each weight makes up, as far as inputs go together, for the errors of those
// before it in its row.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "base/threads.h"
#include "quant/matrix.h"

namespace sluice::quant {

/// What inputs have in common: the factors of their second moments, H = S U D U^T S with S diagonal, U upper
/// triangular with ones on its diagonal and D diagonal. An error e in a row of weights costs e^T H e.
class InputFactor {
 public:
  InputFactor() = default;

  /// Of the correlations in the lower triangle of a second moment, row by row ([n (n + 1) / 2]); S is left to
  /// whoever knows the inputs' sizes. `damping` is added to the diagonal, that is 1: it is the doubt in
  /// correlations measured on a text.
  ///
  /// kInvalidArgument: sizes do not fit, or no such moment exists (values not finite, negative squares).
  static Result<InputFactor> of_moment(std::int64_t n, std::span<const float> moment, double damping);

  /// Of independent inputs with these mean squares and means.
  static InputFactor of_means(std::span<const float> squares, std::span<const float> means);

  [[nodiscard]] std::int64_t size() const { return static_cast<std::int64_t>(left_.size()); }
  /// U[j][k] for j < k: column k, [k] numbers.
  [[nodiscard]] std::span<const float> column(std::int64_t k) const {
    return std::span(upper_).subspan(static_cast<std::size_t>(k * (k - 1) / 2), static_cast<std::size_t>(k));
  }
  /// D: what is left of an input's square once those before it are known.
  [[nodiscard]] std::span<const float> left() const { return left_; }

 private:
  std::vector<float> upper_;  // columns, one after another
  std::vector<float> left_;
};

/// As quantise_matrix for quantised formats, minimising e^T S U D U^T S e of each row: from left to right,
/// each group is fitted to its weights with the errors so far passed on, then coded weight by weight. `sizes`
/// [in] is S: the inputs' root mean squares. Returns the sum of that error over rows.
///
/// Results are the same bits on any SIMD target.
///
/// kInvalidArgument: sizes do not fit, a value is not finite.
Result<double> quantise_with_feedback(const MatrixShape& shape, std::span<const float> values,
                                      std::span<const float> sizes, const InputFactor& factor,
                                      const MutableMatrixParts& out);

}  // namespace sluice::quant
