// Choices of a model that are nearly tied: a backend that rounds may decide them otherwise than the
// reference.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "backend/cpu/cpu_backend.h"
#include "backend/gpu/gpu_backend.h"

namespace sluice::test {

/// What one call of router_topk or index_select chose, and how clearly.
struct Choices {
  std::vector<float> gap;             // [rows] of the last chosen value over the best that was not
  std::vector<std::uint32_t> chosen;  // [rows][stride]
  std::vector<std::uint32_t> count;   // [rows] of selected tokens; empty for a router
};

/// The CPU backend with float32 inputs, keeping every choice in the order of the calls.
class ChoiceRecorder final : public backend::CpuBackend {
 public:
  ChoiceRecorder() : CpuBackend(1, true) {}
  [[nodiscard]] const std::vector<Choices>& choices() const { return choices_; }
  void forget() { choices_.clear(); }

  void router_topk(backend::Dev<const float> logits, std::int64_t rows, std::int64_t n, std::int64_t k,
                   bool renormalise, backend::Dev<std::uint32_t> index, backend::Dev<float> weight) override;
  void index_select(backend::IndexShape shape, backend::Dev<const float> scores, std::int64_t score_stride,
                    backend::Dev<const std::uint32_t> visible, std::int64_t rows,
                    backend::Dev<std::uint32_t> tokens, std::int64_t token_stride,
                    backend::Dev<std::uint32_t> count, backend::Dev<std::uint8_t> dense,
                    backend::Dev<std::uint32_t> mask, std::int64_t mask_words) override;

 private:
  std::vector<Choices> choices_;
};

/// A GPU backend that takes the recorded choice wherever the gap is below `nearly_tied`, and its own
/// elsewhere: one row that chooses otherwise moves the state and keys that all rows after it see.
class GuidedGpu final : public backend::GpuBackend {
 public:
  GuidedGpu(std::unique_ptr<gpu::Device> device, float nearly_tied)
      : GpuBackend("guided", std::move(device)), nearly_tied_(nearly_tied) {}
  /// The choice is an operation of its own then.
  [[nodiscard]] bool has_moe() const override { return false; }
  /// For the next run, which makes the same calls.
  void follow(const std::vector<Choices>& choices) { choices_ = &choices, next_ = 0; }
  /// The gaps of the reference at choices that fell otherwise, of all runs.
  [[nodiscard]] const std::vector<float>& otherwise() const { return otherwise_; }

  void router_topk(backend::Dev<const float> logits, std::int64_t rows, std::int64_t n, std::int64_t k,
                   bool renormalise, backend::Dev<std::uint32_t> index, backend::Dev<float> weight) override;
  void index_select(backend::IndexShape shape, backend::Dev<const float> scores, std::int64_t score_stride,
                    backend::Dev<const std::uint32_t> visible, std::int64_t rows,
                    backend::Dev<std::uint32_t> tokens, std::int64_t token_stride,
                    backend::Dev<std::uint32_t> count, backend::Dev<std::uint8_t> dense,
                    backend::Dev<std::uint32_t> mask, std::int64_t mask_words) override;

 private:
  /// The recorded choices of this call; throws if it had other rows.
  const Choices& next(std::int64_t rows);

  float nearly_tied_;
  const std::vector<Choices>* choices_ = nullptr;
  std::size_t next_ = 0;
  std::vector<float> otherwise_;
};

}  // namespace sluice::test
