// The operations as kernels on a device. The same for every device: only Device differs.
//
// How a kernel splits work never changes an order of summation (kernels/*.h state it for each).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "backend/gpu/device.h"

namespace sluice::backend {

class GpuBackend : public Backend {
 public:
  GpuBackend(std::string name, std::unique_ptr<gpu::Device> device)
      : name_(std::move(name)), device_(std::move(device)) {}

  [[nodiscard]] std::string_view name() const override { return name_; }
  [[nodiscard]] gpu::Device& device() { return *device_; }

  Result<std::unique_ptr<Buffer>> allocate(std::size_t bytes) override;
  Result<std::unique_ptr<Buffer>> allocate_host(std::size_t bytes) override;
  [[nodiscard]] std::optional<std::uint64_t> device_memory() const override { return device_->free_bytes(); }
  void upload(Dev<std::byte> to, std::span<const std::byte> from) override;
  void download(std::span<std::byte> to, Dev<const std::byte> from) override;
  void copy(Dev<std::byte> to, Dev<const std::byte> from, std::size_t bytes) override;
  void zero(Dev<std::byte> to, std::size_t bytes) override;
  void copy_beside(Dev<std::byte> to, Dev<const std::byte> from, std::size_t bytes) override;
  void join_copies() override;
  void synchronise() override;
  [[nodiscard]] Result<void> status() const override;

  void embed_rows(const Matrix& table, Dev<const std::int32_t> ids, std::int64_t rows,
                  Dev<float> out) override;
  void gather_rows(Dev<const float> x, Dev<const std::uint32_t> index, std::int64_t rows, std::int64_t width,
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
  void replicate(WideShape shape, Dev<const float> e, Dev<float> wide) override;
  void group_norm(WideShape shape, Dev<const float> x, Dev<const float> w, float shift, float eps,
                  Dev<float> y) override;
  void inject(WideShape shape, Dev<const float> out, Dev<const float> gate, Dev<float> wide) override;
  void norm_prepare(WideShape shape, Dev<const float> out, Dev<const float> gate, Dev<float> wide,
                    Dev<const float> w, float eps, Dev<float> y, const HalfStreams* halves) override;
  void hc_mix(WideShape shape, Dev<const float> u, Dev<const float> normed, Dev<float> mixed) override;
  void mtp_fold(WideShape shape, Dev<const float> fe, Dev<const float> fh, Dev<float> wide) override;
  void router_topk(Dev<const float> logits, std::int64_t rows, std::int64_t n, std::int64_t k,
                   bool renormalise, Dev<std::uint32_t> index, Dev<float> weight) override;
  void experts(const ExpertBatch& batch, std::int64_t first, std::int64_t last, std::int64_t pairs,
               Dev<const float> x, Dev<float> y) override;
  [[nodiscard]] bool has_moe() const override { return true; }
  void moe(const Moe& moe, Dev<const float> x, Dev<float> out) override;
  void linear_many(std::span<const Projection> parts, Dev<const float> x, std::int64_t rows) override;
  void hyper_read(WideShape shape, Dev<const float> out, Dev<const float> out_gate, Dev<float> wide,
                  const HyperRead& read) override;
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
  void delta_step(const DeltaStep& s) override;
  void norm_rope(HeadsIn in, Dev<const float> x, Dev<const float> w, float eps, const Rope& rope,
                 std::int64_t rows, Dev<float> out) override;
  void norm_rope_many(std::span<const HeadsPart> parts, float eps) override;
  void attention(AttentionShape shape, Dev<const float> q, Dev<const float> keys, Dev<const float> values,
                 const TokenSelection& selection, std::int64_t rows, Dev<float> out) override;
  void attention_q8(AttentionShape shape, Dev<const float> q, const KeysValuesQ8& cache,
                    const TokenSelection& selection, std::int64_t rows, Dev<float> out) override;
  void quantise_q8(Dev<const float> x, std::int64_t groups, Dev<std::int8_t> codes,
                   Dev<std::uint16_t> scales) override;
  void attention_gate(HeadsIn in, Dev<const float> gate, std::int64_t rows, Dev<float> out) override;
  void softmax_selected(Dev<const float> scores, Dev<const std::uint32_t> block_mask, std::int64_t rows,
                        std::int64_t stride, std::int64_t queries, std::int64_t base, std::int64_t ratio,
                        std::int64_t mask_words, Dev<std::uint16_t> out) override;
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
  /// Device memory for the inside of one operation: it grows to the largest use and is kept; contents are
  /// undefined. The operations that share one follow each other on the device.
  class Workspace {
   public:
    template <class T>
    Dev<T> get(GpuBackend& backend, std::int64_t count) {
      return Dev<T>(reinterpret_cast<T*>(bytes(backend, static_cast<std::size_t>(count) * sizeof(T))));
    }

   private:
    std::uint64_t bytes(GpuBackend& backend, std::size_t needed);
    std::unique_ptr<Buffer> buffer_;
  };

  /// Groups of `threads` for `count` elements.
  static std::uint32_t groups(std::int64_t count, std::int64_t each) {
    return static_cast<std::uint32_t>((count + each - 1) / each);
  }
  /// y = W x, or silu(W x / div).
  void matvec(const Matrix& w, Dev<const float> x, std::int64_t rows, Dev<float> y, bool silu, float div);
  /// Projections of at most 8 rows whose matrices are plain or of 4 or 8 bits, in as few launches as
  /// possible.
  void project(std::span<const Projection> parts, Dev<const float> x, std::int64_t rows, bool silu,
               float div);
  /// Rounds rows for the matrix units; the result lives until the next call.
  kernels::Prepared prepare_columns(Dev<const float> x, std::int64_t rows, std::int64_t in);
  /// The same for a step of several rows; whoever launches it rounds them.
  kernels::RoundArgs rounding(Dev<const float> x, std::int64_t rows, std::int64_t in);
  /// The same for wide multiplications.
  kernels::Prepared prepare_wide(const kernels::WideRows& from, Dev<const float> x, std::int64_t tiles,
                                 std::int64_t in);
  /// For gemm: of rows in order.
  kernels::Prepared prepare_rows(Dev<const float> x, std::int64_t rows, std::int64_t in);
  /// matvec() of many rows, for matrices whose products are the matrix units'.
  void gemm(const Matrix& w, const kernels::Prepared& columns, std::int64_t rows, Dev<float> y, bool silu,
            float div);
  void experts_of_many(const ExpertBatch& batch, const kernels::ExpertsArgs& args, std::int64_t entries,
                       std::int64_t pairs, Dev<const float> x);
  template <class Launch>
  void attend(kernels::AttentionTask task, std::int64_t rows, std::int64_t most, Launch launch);
  kernels::GroupArgs group_args(const Moe& moe);
  void group_experts(const kernels::GroupArgs& args);
  bool moe_of_few(const Moe& moe, Dev<const float> x, Dev<float> out);
  /// An operation that cannot be served fails the backend: status() tells.
  void refuse(std::string why);

  std::string name_;
  std::unique_ptr<gpu::Device> device_;
  std::string refused_;
  // What delta_step may not read before the kernel before has ended.
  std::uint64_t last_state_ = 0, last_ring_ = 0;
  Workspace expert_hidden_;  // [pairs][inter]
  Workspace expert_tiles_, group_scratch_;
  Workspace hyper_sums_;
  Workspace rounded_words_, rounded_sides_;
  Workspace prepared_words_, prepared_sums_, prepared_downs_;
  Workspace attention_partial_;
};

}  // namespace sluice::backend
