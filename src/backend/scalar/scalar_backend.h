// The reference: every operation as plain loops on one thread, sums in double, written to be read.
// It is what other backends are compared with, and what a faster backend inherits until it has its own
// version.
#pragma once

#include "backend/backend.h"

namespace sluice::backend {

class ScalarBackend : public Backend {
 public:
  [[nodiscard]] std::string_view name() const override;
  Result<std::unique_ptr<Buffer>> allocate(std::size_t bytes) override;
  Result<std::unique_ptr<Buffer>> allocate_host(std::size_t bytes) override;
  Result<std::unique_ptr<Buffer>> adopt(AlignedBuffer contents) override;
  [[nodiscard]] bool in_host_memory() const override { return true; }
  void upload(Dev<std::byte> to, std::span<const std::byte> from) override;
  void download(std::span<std::byte> to, Dev<const std::byte> from) override;
  void copy(Dev<std::byte> to, Dev<const std::byte> from, std::size_t bytes) override;
  void zero(Dev<std::byte> to, std::size_t bytes) override;
  void synchronise() override;
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
};

}  // namespace sluice::backend
