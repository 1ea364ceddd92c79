// Kernels over rows of activations, each on one thread: norms, gates, activations, convolution. An element's
// bits do not depend on its place in a vector, so ranges may be cut anywhere.
#pragma once

#include <cstdint>

#include "backend/backend.h"

namespace sluice::backend::cpu {

/// x = silu(x / div).
void silu_range(float* x, std::int64_t count, float div);
/// out = silu(gate) * up; out may be gate or up.
void silu_multiply_range(const float* gate, const float* up, std::int64_t count, float* out);
/// to += factor * from.
void add_scaled(const float* from, float factor, std::int64_t count, float* to);

/// y = x * rsqrt(mean of x^2 + eps) * (w + shift) over one stream.
void norm_stream(const float* x, const float* w, float shift, float eps, std::int64_t n, float* y);
/// 2 sigmoid(gate / streams): what a stream takes of an injected output.
float inject_factor(float gate, std::int64_t streams);
/// Elements [first, last) of one row: mean over streams of sigmoid(u) * normed; u, normed [streams][n].
void mix_range(const float* u, const float* normed, std::int64_t streams, std::int64_t n, std::int64_t first,
               std::int64_t last, float* mixed);

/// Elements [first, last) of one row's weighted sum over slots; y [slots][width].
void combine_range(const float* y, const float* weight, std::int64_t slots, std::int64_t width,
                   std::int64_t first, std::int64_t last, float* out);
/// out += sigmoid(gate . x) * y over one row.
void shared_add_row(const float* x, const float* y, const std::uint16_t* gate, std::int64_t width,
                    float* out);

/// One (row, stream) of ple_gate.
void ple_gate_stream(const float* key, const float* query, const float* value, std::int64_t n, float* gated);

/// Largest kernel that conv_range takes.
constexpr std::int64_t kMaxConvKernel = 16;
/// causal_conv of channels [first, last), including their part of the ring.
void conv_range(Backend::ConvShape shape, const float* in, const float* w, Ring ring, std::int64_t base,
                std::int64_t rows, const float* add, float* out, std::int64_t first, std::int64_t last);

/// One row of delta_gates.
void delta_gates_row(const float* a, const float* b, const float* a_log, const float* dt_bias,
                     std::int64_t heads, float* decay, float* beta);
/// One head of delta_gate_norm.
void gate_norm_head(const float* y, const float* z, const float* w, float eps, GateKind gate,
                    std::int64_t dim, float* out);

/// One head of norm_rope; cos and sin [half].
void norm_rope_head(const float* x, const float* w, float eps, std::int64_t dim, const float* cos,
                    const float* sin, std::int64_t half, float* out);
/// mean[i] = mean over `count` rows of x[row][i].
void mean_rows(const float* x, std::int64_t count, std::int64_t dim, float* mean);
/// out *= sigmoid(gate).
void sigmoid_multiply(const float* gate, std::int64_t count, float* out);

/// Functions of simd-inl.h over arrays, for tests.
enum class Function : std::uint8_t { kExp, kSigmoid, kSilu, kSoftplus };
void apply_function(Function function, const float* x, std::int64_t count, float* out);

}  // namespace sluice::backend::cpu
