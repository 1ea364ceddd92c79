// The CPU backend: SIMD kernels chosen at run time, rows and outputs split over a team of threads.
//
// How work is split never changes a result: every output element is computed by one thread, by the same
// instructions whatever the number of rows and threads (linear_kernels.h, attention_kernels.h state the
// orders of summation). Work of a few microseconds stays on the caller.
#pragma once

#include <vector>

#include "backend/cpu/attention_kernels.h"
#include "backend/cpu/integer_kernels.h"
#include "backend/cpu/linear_kernels.h"
#include "backend/scalar/scalar_backend.h"
#include "base/threads.h"

namespace sluice::backend {

/// Operations without a version here are inherited from the reference. Like the reference's, they return
/// when they are done. An object belongs to one caller thread.
class CpuBackend : public ScalarBackend {
 public:
  /// `threads` of 0: one for each physical core. `exact`: inputs of quantised matrices stay float32 instead
  /// of being rounded to 16-bit integers (integer_kernels.h).
  explicit CpuBackend(int threads = 0, bool exact = false);

  [[nodiscard]] std::string_view name() const override { return "cpu"; }
  [[nodiscard]] bool rounds_inputs() const override { return !exact_; }
  [[nodiscard]] int threads() const { return team_.size(); }

  void embed_rows(const Matrix& table, Dev<const std::int32_t> ids, std::int64_t rows,
                  Dev<float> out) override;
  void scatter_add_rows(Dev<const float> y, Dev<const std::uint32_t> index, Dev<const float> weight,
                        std::int64_t rows, std::int64_t width, Dev<float> out) override;
  void shared_add_rows(Dev<const float> x, Dev<const float> y, Dev<const std::uint16_t> gate,
                       std::int64_t rows, std::int64_t width, Dev<float> out) override;
  void gated_add_rows(Dev<const float> y, Dev<const float> gate, std::int64_t rows, std::int64_t width,
                      Dev<float> out) override;
  void silu_rows(Dev<float> x, std::int64_t count, float div) override;
  void argmax_rows(Dev<const float> x, std::int64_t rows, std::int64_t width,
                   Dev<std::int32_t> index) override;
  void linear(const Matrix& w, Dev<const float> x, std::int64_t rows, Dev<float> y) override;
  void linear_silu(const Matrix& w, Dev<const float> x, std::int64_t rows, float div, Dev<float> y) override;
  void linear_many(std::span<const Projection> parts, Dev<const float> x, std::int64_t rows) override;
  void replicate(WideShape shape, Dev<const float> e, Dev<float> wide) override;
  void group_norm(WideShape shape, Dev<const float> x, Dev<const float> w, float shift, float eps,
                  Dev<float> y) override;
  void inject(WideShape shape, Dev<const float> out, Dev<const float> gate, Dev<float> wide) override;
  void norm_prepare(WideShape shape, Dev<const float> out, Dev<const float> gate, Dev<float> wide,
                    Dev<const float> w, float eps, Dev<float> y, const HalfStreams* halves) override;
  void hc_mix(WideShape shape, Dev<const float> u, Dev<const float> normed, Dev<float> mixed) override;
  void router_topk(Dev<const float> logits, std::int64_t rows, std::int64_t n, std::int64_t k,
                   bool renormalise, Dev<std::uint32_t> index, Dev<float> weight) override;
  void experts(const ExpertBatch& batch, std::int64_t first, std::int64_t last, std::int64_t pairs,
               Dev<const float> x, Dev<float> y) override;
  void combine_experts(Dev<const float> y, Dev<const float> weight, std::int64_t rows, std::int64_t slots,
                       std::int64_t width, Dev<float> out) override;
  void silu_multiply(Dev<const float> gate, Dev<const float> up, std::int64_t count, Dev<float> out) override;
  void ple_gate(WideShape shape, Dev<const float> key, Dev<const float> query, Dev<const float> value,
                Dev<float> gated) override;
  void causal_conv(ConvShape shape, Dev<const float> in, Dev<const float> w, Ring ring, std::int64_t base,
                   std::int64_t rows, Dev<const float> add, Dev<float> out) override;
  void delta_gates(Dev<const float> a, Dev<const float> b, Dev<const float> a_log, Dev<const float> dt_bias,
                   std::int64_t rows, std::int64_t value_heads, Dev<float> decay, Dev<float> beta) override;
  void delta_scan(DeltaShape shape, Dev<const float> qkv, Dev<const float> decay, Dev<const float> beta,
                  std::int64_t rows, Dev<const float> state_in, Dev<float> state_out, Dev<float> y) override;
  void delta_gate_norm(Dev<const float> y, Dev<const float> z, Dev<const float> w, float eps, GateKind gate,
                       std::int64_t rows, std::int64_t heads, std::int64_t dim, Dev<float> out) override;
  void norm_rope(HeadsIn in, Dev<const float> x, Dev<const float> w, float eps, const Rope& rope,
                 std::int64_t rows, Dev<float> out) override;
  void attention(AttentionShape shape, Dev<const float> q, Dev<const float> keys, Dev<const float> values,
                 const TokenSelection& selection, std::int64_t rows, Dev<float> out) override;
  void attention_q8(AttentionShape shape, Dev<const float> q, const KeysValuesQ8& cache,
                    const TokenSelection& selection, std::int64_t rows, Dev<float> out) override;
  void quantise_q8(Dev<const float> x, std::int64_t groups, Dev<std::int8_t> codes,
                   Dev<std::uint16_t> scales) override;
  void attention_gate(HeadsIn in, Dev<const float> gate, std::int64_t rows, Dev<float> out) override;
  void index_block_keys(IndexShape shape, Dev<const float> raw_keys, std::int64_t first, std::int64_t last,
                        Dev<const float> w, float eps, const Rope& rope, Dev<float> block_keys) override;
  void index_scores(IndexShape shape, Dev<const float> q, Dev<const float> block_keys,
                    Dev<const std::uint32_t> blocks, std::int64_t rows, std::int64_t stride,
                    Dev<float> scores) override;
  void index_select(IndexShape shape, Dev<const float> scores, std::int64_t score_stride,
                    Dev<const std::uint32_t> visible, std::int64_t rows, Dev<std::uint32_t> tokens,
                    std::int64_t token_stride, Dev<std::uint32_t> count, Dev<std::uint8_t> dense,
                    Dev<std::uint32_t> mask, std::int64_t mask_words) override;

 private:
  /// Memory that grows to the largest use and is kept: no allocation in steady state. Contents are
  /// undefined; aligned to 64 bytes.
  template <class T>
  class Scratch {
   public:
    T* get(std::int64_t count) {
      const std::size_t bytes = static_cast<std::size_t>(count) * sizeof(T) + 64;
      if (bytes > bytes_.size()) bytes_.resize(bytes);
      const auto address = reinterpret_cast<std::uintptr_t>(bytes_.data());
      return reinterpret_cast<T*>(bytes_.data() + (64 - address % 64) % 64);
    }

   private:
    std::vector<std::byte> bytes_;
  };

  /// parallel_for over `count` items that take about `nanoseconds` each, on as many threads as pay off.
  template <class Fn>
  void split(std::int64_t count, double nanoseconds, const Fn& fn);

  /// fn(thread, piece, first unit, last unit) for the shares of a WorkLine that takes about `nanoseconds`.
  template <class Work, class Fn>
  void deal(const Work& work, double nanoseconds, const Fn& fn);

  /// Rows of x in `order`, [rows][padded(in)], in `to`.
  const float* arrange_rows(cpu::Order order, const float* x, std::int64_t rows, std::int64_t in,
                            Scratch<float>& to);
  void float_linear(const Matrix& w, Dev<const float> x, std::int64_t rows, Dev<float> y);
  void float_experts(const ExpertBatch& batch, std::int64_t first, std::int64_t last, Dev<const float> x,
                     Dev<float> y);

  /// Memory of quantised rows.
  struct IntegerBuffers {
    Scratch<std::int32_t> pairs;
    Scratch<float> scales, sums;
    /// For `copies` of them, one behind the other.
    cpu::IntegerRows get(const cpu::IntegerRows& layout, std::int64_t copies = 1);
  };
  [[nodiscard]] bool takes_integers(Format format, std::int64_t group, std::int64_t in) const;
  /// Quantises rows of x, one after another, into tiles.
  void quantise_rows(const float* x, std::span<const cpu::IntegerRows> tiles);
  /// Matrices that want the rows of x in the same order and groups.
  void integer_linear(std::span<const Projection> parts, const float* x, std::int64_t rows);
  void integer_experts(const ExpertBatch& batch, std::int64_t first, std::int64_t last, const float* x,
                       float* y);

  /// Rows over keys and values as `all` has them: of the first row and kv head.
  void attend(AttentionShape shape, const cpu::AttentionHeads& all, const TokenSelection& selection,
              std::int64_t rows, Dev<float> out);

  /// This thread's part of thread_scratch_.
  float* kernel_scratch(int thread);

  ThreadTeam team_;
  bool exact_;
  Scratch<float> thread_scratch_;  // [threads][kKernelScratch]
  IntegerBuffers integer_x_, integer_x_rest_;
  IntegerBuffers expert_x_[3];          // by Order; rows one by one
  IntegerBuffers expert_hidden_[3];     // by Order; pairs one by one
  std::vector<IntegerBuffers> packed_;  // [threads]: rows of an expert in tiles
  Scratch<float> arranged_[3];          // by Order
  Scratch<float> expert_gate_;          // [pairs][padded(inter)]
  Scratch<float> expert_up_;            // [pairs][padded(inter)]
  Scratch<float> attention_parts_;      // [parts] of attention_part_floats
  Scratch<float> attention_threads_;    // [threads] of the same, and the block's probabilities
  Scratch<std::uint32_t> select_keys_;  // [threads] of select_scratch and a mask
  Scratch<float> router_values_;        // [threads][n]
};

}  // namespace sluice::backend
