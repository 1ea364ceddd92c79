// Tests of the CPU backend on every SIMD target of this machine, against the reference.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "backend/cpu/integer_kernels.h"
#include "backend/cpu/linear_kernels.h"
#include "backend/on_backend.h"
#include "hwy/targets.h"

namespace sluice::backend {

template <class T>
Dev<T> dev(std::vector<T>& values) {
  return Dev<T>(values.data());
}
template <class T>
Dev<const T> dev(const std::vector<T>& values) {
  return Dev<const T>(values.data());
}

/// A host matrix as the backends of this machine take it: by address.
inline Matrix view(const HostMatrix& m) {
  return {m.format, m.out, m.in, m.group, dev(m.data), dev(m.scales), dev(m.biases)};
}

inline std::vector<std::int64_t> every_target() {
  std::vector<std::int64_t> all;
  for (std::int64_t rest = hwy::SupportedTargets() & (cpu::compiled_targets() | cpu::integer_targets());
       rest != 0; rest &= rest - 1) {
    all.push_back(rest & -rest);
  }
  return all;
}

/// Of a backend with float32 inputs, and of one that rounds those of quantised matrices to integers: the
/// same, unless the operation has any.
struct Tolerance {
  Tolerance(double both) : exact(both), rounded(both) {}  // NOLINT: implicit by design
  Tolerance(double exact_inputs, double rounded_inputs) : exact(exact_inputs), rounded(rounded_inputs) {}
  double exact, rounded;
};

/// The parameter is a Highway target.
class OnTarget : public testing::TestWithParam<std::int64_t> {
 protected:
  /// Kernels that are not compiled for a target take the next below it.
  void SetUp() override {
    const std::int64_t below = cpu::compiled_targets() & -GetParam();
    hwy::SetSupportedTargetsForTest(GetParam() | (below & -below));
  }
  void TearDown() override { hwy::SetSupportedTargetsForTest(0); }

  /// Runs `operation(backend, out)` on the reference and with one, two and three threads: the threads must
  /// agree in every bit, and with the reference within `tolerance` (relative L2). Returns the bits of
  /// float32 inputs.
  template <class Operation>
  std::vector<float> check(std::int64_t count, Tolerance tolerance, const Operation& operation) {
    std::vector<float> expected(static_cast<std::size_t>(count));
    operation(static_cast<Backend&>(reference_), expected);
    std::vector<float> exact;
    for (auto* team : {&exact_, &rounding_}) {
      std::vector<float> first;
      for (auto& backend : *team) {
        std::vector<float> out(static_cast<std::size_t>(count));
        operation(static_cast<Backend&>(backend), out);
        if (first.empty()) {
          first = out;
          EXPECT_LE(relative_l2(out, expected), team == &exact_ ? tolerance.exact : tolerance.rounded);
        } else {
          EXPECT_EQ(bits_of_values(out), bits_of_values(first)) << backend.threads() << " threads";
        }
      }
      if (exact.empty()) exact = first;
    }
    return exact;
  }

  ScalarBackend reference_;
  std::array<CpuBackend, 3> exact_{CpuBackend(1, true), CpuBackend(2, true), CpuBackend(3, true)};
  std::array<CpuBackend, 3> rounding_{CpuBackend(1), CpuBackend(2), CpuBackend(3)};
  CpuBackend &one_ = rounding_[0], &two_ = rounding_[1], &three_ = rounding_[2];
};

inline std::string target_name(const testing::TestParamInfo<std::int64_t>& target) {
  return hwy::TargetName(target.param);
}

#define SLUICE_ON_EVERY_TARGET(Suite)                                                          \
  INSTANTIATE_TEST_SUITE_P(Every, Suite, testing::ValuesIn(::sluice::backend::every_target()), \
                           ::sluice::backend::target_name)

}  // namespace sluice::backend
