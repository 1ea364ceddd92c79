// What every test of operations starts from: a backend by name, its memory, and reproducible numbers.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <ostream>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "backend/create.h"
#include "backend/gpu/emulated/emulated_device.h"
#include "backend/gpu/gpu_backend.h"
#include "base/numbers.h"
#include "quant/codes.h"

namespace sluice::backend {

struct BackendChoice {
  std::string name;
  int threads = 1;
  bool exact = false;
};

/// Every backend must pass every test: one that cannot be created is a failure, not a test left out. A GPU is
/// asked for by SLUICE_TEST_CUDA in the environment (scripts/device-check).
inline std::vector<BackendChoice> every_backend() {
  std::vector<BackendChoice> all = {
      {"scalar", 1}, {"cpu", 1, true}, {"cpu", 3, true}, {"cpu", 3}, {"emulated", 1}};
  if (std::getenv("SLUICE_TEST_CUDA") != nullptr) all.push_back({"cuda", 1});
  return all;
}

/// The emulated device as those that do not multiply wide.
inline Result<std::unique_ptr<Backend>> emulated_narrow() {
  SLUICE_ASSIGN(auto device, gpu::open_emulated_device(1, false));
  return std::unique_ptr<Backend>(std::make_unique<GpuBackend>("emulated", std::move(device)));
}

inline void PrintTo(const BackendChoice& choice, std::ostream* out) {
  *out << choice.name << ", " << choice.threads << " threads" << (choice.exact ? ", exact" : "");
}

inline std::string choice_name(const testing::TestParamInfo<BackendChoice>& choice) {
  return choice.param.name + (choice.param.threads > 1 ? std::to_string(choice.param.threads) : "") +
         (choice.param.exact ? "_exact" : "");
}

/// Bits, so that NaN equals itself and -0 does not equal 0.
inline std::vector<std::uint32_t> bits_of_values(std::span<const float> values) {
  std::vector<std::uint32_t> bits(values.size());
  if (!bits.empty()) std::memcpy(bits.data(), values.data(), values.size_bytes());
  return bits;
}

/// |a - b| / |b|
inline double relative_l2(std::span<const float> a, std::span<const float> b) {
  double difference = 0;
  double norm = 0;
  for (std::size_t i = 0; i < b.size(); ++i) {
    const double d = static_cast<double>(a[i]) - b[i];
    difference += d * d;
    norm += static_cast<double>(b[i]) * b[i];
  }
  return std::sqrt(norm > 0 ? difference / norm : difference);
}

class Numbers {
 public:
  explicit Numbers(std::uint32_t seed) : engine_(seed) {}

  std::uint32_t below(std::uint32_t bound) { return static_cast<std::uint32_t>(engine_() % bound); }

  /// Uniform in [low, high), the same on every platform.
  float uniform(float low, float high) {
    return low + (high - low) * static_cast<float>(engine_() >> 8) * 0x1p-24F;
  }
  std::vector<float> floats(std::int64_t count, float low = -1, float high = 1) {
    std::vector<float> values(static_cast<std::size_t>(count));
    for (float& v : values) v = uniform(low, high);
    return values;
  }

 private:
  std::mt19937 engine_;
};

/// A weight matrix in host memory, with the numbers it stands for computed from its codes.
struct HostMatrix {
  Format format = Format::kF32;
  std::int64_t out = 0, in = 0;
  int group = 64;
  std::vector<std::byte> data;
  std::vector<std::uint16_t> scales, biases;
  std::vector<float> values;  // [out][in]
};

HostMatrix random_matrix(Numbers& numbers, Format format, std::int64_t out, std::int64_t in, int group);

constexpr Format kEveryFormat[] = {Format::kF32, Format::kBf16, Format::kQ4,
                                   Format::kQ8,  Format::kQ3,   Format::kQ2};

/// A fixture with one backend and helpers that move data by upload and download only.
class OnBackend : public testing::TestWithParam<BackendChoice> {
 protected:
  void SetUp() override {
    auto made = GetParam().name == "emulated_narrow"
                    ? emulated_narrow()
                    : create_backend(GetParam().name, {GetParam().threads, 0, GetParam().exact});
    ASSERT_TRUE(made.ok()) << made.error().message;
    backend_ = std::move(made).value();
  }

  Backend& backend() { return *backend_; }
  /// An error that a backend of floats keeps to; matrix units multiply rounded activations
  /// (kernels/columns.h), and so do integer products (cpu/integer_kernels.h).
  [[nodiscard]] double rounded(double error) const {
    if (GetParam().name == "scalar" || GetParam().exact) return error;
    return GetParam().name == "cpu" ? 5e-5 : 1e-3;
  }

  template <class T>
  Dev<T> memory(std::int64_t count) {
    auto buffer = backend_->allocate(static_cast<std::size_t>(count) * sizeof(T));
    EXPECT_TRUE(buffer.ok());
    buffers_.push_back(std::move(buffer).value());
    return buffers_.back()->template as<T>();
  }

  template <class T>
  void write(Dev<T> to, const std::vector<T>& values) {
    backend_->upload(Dev<std::byte>(reinterpret_cast<std::byte*>(to.address())),
                     std::as_bytes(std::span(values)));
  }

  template <class T>
  Dev<T> upload(const std::vector<T>& values) {
    const auto to = memory<T>(static_cast<std::int64_t>(values.size()));
    write(to, values);
    return to;
  }

  template <class T>
  std::vector<T> download(Dev<T> from, std::int64_t count) {
    std::vector<T> values(static_cast<std::size_t>(count));
    backend_->download(std::as_writable_bytes(std::span(values)),
                       Dev<const std::byte>(reinterpret_cast<const std::byte*>(from.address())));
    const auto status = backend_->status();
    EXPECT_TRUE(status.ok()) << status.error().message;
    return values;
  }

  Matrix upload(const HostMatrix& m) {
    Matrix w{m.format, m.out, m.in, m.group, upload(m.data), {}, {}};
    if (is_quantised(m.format)) {
      w.scales = upload(m.scales);
      w.biases = upload(m.biases);
    }
    return w;
  }

 private:
  std::unique_ptr<Backend> backend_;
  std::vector<std::unique_ptr<Buffer>> buffers_;
};

#define SLUICE_ON_EVERY_BACKEND(Suite)                                                          \
  INSTANTIATE_TEST_SUITE_P(Every, Suite, testing::ValuesIn(::sluice::backend::every_backend()), \
                           ::sluice::backend::choice_name)

}  // namespace sluice::backend
