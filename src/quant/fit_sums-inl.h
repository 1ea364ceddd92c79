// The inner loops of fitting: codes for a scale and a bias, and the sums over their errors. Included once
// for each Highway target.
#if defined(SLUICE_QUANT_FIT_SUMS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SLUICE_QUANT_FIT_SUMS_INL_H_
#undef SLUICE_QUANT_FIT_SUMS_INL_H_
#else
#define SLUICE_QUANT_FIT_SUMS_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"
#include "quant/codes.h"
#include "quant/fit_step.h"

HWY_BEFORE_NAMESPACE();
namespace sluice::quant::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using D = hn::CappedTag<float, 16>;
using V = hn::Vec<D>;
using D4 = hn::FixedTag<float, 4>;

constexpr std::size_t kLanes = hn::MaxLanes(D());
constexpr std::size_t kStripe = 16;  // values a step, on every target
constexpr std::size_t kVecs = kStripe / kLanes;
static_assert(kLanes == 4 || kLanes == 8 || kLanes == 16);

/// Sixteen lanes, in as many vectors as the target needs.
struct Striped {
  // Written out, since what a compiler adds is compiled for the least target, where NEON vectors have no
  // constructor.
  HWY_INLINE Striped() {}  // NOLINT(modernize-use-equals-default)
  V v[kVecs];
};

HWY_INLINE void clear(Striped& a) {
  for (std::size_t i = 0; i < kVecs; ++i) a.v[i] = hn::Zero(D());
}

template <class DF>
HWY_INLINE hn::Vec<D4> fold_to_four(DF df, hn::Vec<DF> v) {
  if constexpr (hn::MaxLanes(df) == 4) {
    return v;
  } else {
    const hn::Half<DF> half;
    return fold_to_four(half, hn::Add(hn::LowerHalf(half, v), hn::UpperHalf(half, v)));
  }
}

/// Adds lanes that are 8 apart, then 4, 2 and 1.
HWY_INLINE double total(Striped a) {
  for (std::size_t n = kVecs / 2; n > 0; n /= 2) {
    for (std::size_t i = 0; i < n; ++i) a.v[i] = hn::Add(a.v[i], a.v[i + n]);
  }
  alignas(16) float lanes[4];
  hn::Store(fold_to_four(D(), a.v[0]), D4(), lanes);
  return static_cast<double>((lanes[0] + lanes[2]) + (lanes[1] + lanes[3]));
}

/// A group: `count` values, a multiple of 16, and their weights (null where all are 1).
struct Group {
  const float* values;
  const float* weights;
  std::size_t count;
  double weight;  // the sum of the weights
};

/// Rounds values to codes of one format.
template <spec::Format kFormat>
class Coder {
 public:
  explicit HWY_INLINE Coder(Affine a)
      : zero_(hn::Zero(D())),
        top_(hn::Set(D(), static_cast<float>(kLevels.top))),
        mul_(hn::Set(D(), kLevels.mul)),
        add_(hn::Set(D(), kLevels.add)),
        scale_(hn::Set(D(), a.scale)),
        bias_(hn::Set(D(), a.bias)),
        first_(hn::Set(D(), kLevels.add * a.scale + a.bias)),
        inverse_(hn::Set(D(), inverse(a.scale))) {}

  HWY_INLINE V code(V x) const {
    const V t = hn::Mul(hn::Sub(x, first_), inverse_);
    return hn::Round(hn::Min(hn::Max(t, zero_), top_));
  }
  HWY_INLINE V level(V code) const { return kLevels.mul == 1 ? code : hn::Add(hn::Mul(code, mul_), add_); }
  HWY_INLINE V value(V level) const { return hn::Add(hn::Mul(level, scale_), bias_); }

 private:
  static constexpr Levels kLevels = levels_of(kFormat);
  /// A scale too small to divide by stands for a constant.
  static HWY_INLINE float inverse(float scale) {
    const float step = kLevels.mul * scale;
    return step < 0x1p-100F && step > -0x1p-100F ? 0.0F : 1 / step;
  }

  V zero_, top_, mul_, add_, scale_, bias_, first_, inverse_;
};

/// What `a` makes of a group.
template <spec::Format kFormat, bool kWeighted>
HWY_INLINE Sums sums_of(const Group& group, Affine a) {
  const D d;
  const Coder<kFormat> coder(a);
  Striped e2, e, eu, u, u2;
  clear(e2);
  clear(e);
  clear(eu);
  clear(u);
  clear(u2);
  for (std::size_t at = 0; at < group.count; at += kStripe) {
    for (std::size_t i = 0; i < kVecs; ++i) {
      const V x = hn::LoadU(d, group.values + at + i * kLanes);
      const V level = coder.level(coder.code(x));
      const V error = hn::Sub(x, coder.value(level));
      V we = error;
      V wu = level;
      if constexpr (kWeighted) {
        const V w = hn::LoadU(d, group.weights + at + i * kLanes);
        we = hn::Mul(w, error);
        wu = hn::Mul(w, level);
      }
      e2.v[i] = hn::Add(e2.v[i], hn::Mul(we, error));
      e.v[i] = hn::Add(e.v[i], we);
      eu.v[i] = hn::Add(eu.v[i], hn::Mul(we, level));
      u.v[i] = hn::Add(u.v[i], wu);
      u2.v[i] = hn::Add(u2.v[i], hn::Mul(wu, level));
    }
  }
  return {total(e2), total(e), total(eu), total(u), total(u2)};
}

/// Writes the codes that sums_of measured.
template <spec::Format kFormat>
HWY_INLINE void write_codes(const Group& group, Affine a, std::uint8_t* codes) {
  const D d;
  const hn::RebindToSigned<D> di;
  const Coder<kFormat> coder(a);
  for (std::size_t at = 0; at < group.count; at += kStripe) {
    alignas(64) std::int32_t whole[kStripe];
    for (std::size_t i = 0; i < kVecs; ++i) {
      const V code = coder.code(hn::LoadU(d, group.values + at + i * kLanes));
      hn::Store(hn::ConvertTo(di, code), di, whole + i * kLanes);
    }
    for (std::size_t i = 0; i < kStripe; ++i) codes[at + i] = static_cast<std::uint8_t>(whole[i]);
  }
}

/// Least and largest of `count` values, a multiple of 16.
HWY_INLINE void range_of(const float* values, std::size_t count, float& low, float& high) {
  const D d;
  V least = hn::LoadU(d, values), most = least;
  for (std::size_t at = kLanes; at < count; at += kLanes) {
    const V x = hn::LoadU(d, values + at);
    least = hn::Min(least, x);
    most = hn::Max(most, x);
  }
  low = hn::GetLane(hn::MinOfLanes(d, least));
  high = hn::GetLane(hn::MaxOfLanes(d, most));
}

}  // namespace sluice::quant::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // SLUICE_QUANT_FIT_SUMS_INL_H_
