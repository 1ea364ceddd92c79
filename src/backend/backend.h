// The operations of a model step, as one interface that every backend implements (operations.md).
//
// Addresses are device addresses (Dev<T>); rows are tokens; tensors are float32, dense and row-major
// unless said otherwise. Each output element's order of summation is a function of its length alone:
// it does not depend on how many rows share a call, nor on the number of threads.
// Operations are issued in order and may run asynchronously until download or synchronise.
// Arguments are validated by the layers above: an operation called with a wrong shape is a programming
// error. `formula` notes point to the sections of the model description in docs/model.md.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include "backend/types.h"
#include "base/buffer.h"
#include "base/result.h"

namespace sluice::backend {

/// Memory of one backend; released with the object.
class Buffer {
 public:
  virtual ~Buffer() = default;
  [[nodiscard]] virtual std::byte* address() = 0;
  [[nodiscard]] virtual std::size_t size() const = 0;
  /// Memory of the host that is kept in place for a device: pages of it cannot be given back to the system.
  [[nodiscard]] virtual bool pinned() const { return false; }

  template <class T>
  [[nodiscard]] Dev<T> as(std::int64_t offset_elements = 0) {
    return Dev<T>(reinterpret_cast<T*>(address()) + offset_elements);
  }
};

/// How the wide residual is read and written: streams G of width n.
struct WideShape {
  std::int64_t rows = 0;
  std::int64_t streams = 0;  // G
  std::int64_t width = 0;    // n, hidden
};

/// Gated DeltaNet of one layer (model.md 3.8).
struct DeltaShape {
  std::int64_t key_heads = 0, value_heads = 0;  // value head j uses key head j / (value_heads / key_heads)
  std::int64_t key_dim = 0, value_dim = 0;
};

/// Indexer of one layer (model.md 3.7).
struct IndexShape {
  std::int64_t heads = 0, head_dim = 0;
  std::int64_t ratio = 0;         // tokens a block
  std::int64_t block_budget = 0;  // blocks a query may choose
};

/// Attention heads of one layer; query head h reads kv head h / (heads / kv_heads).
struct AttentionShape {
  std::int64_t heads = 0, kv_heads = 0, head_dim = 0;
};

enum class GateKind : std::uint8_t { kSigmoid, kSilu };

/// The tokens each query row may attend to. Row r sees `count[r]` tokens: the list `tokens[r * stride ...]`,
/// ascending, or simply 0 .. count[r] - 1 where dense[r] is 1.
struct TokenSelection {
  Dev<const std::uint32_t> tokens;  // [rows][stride]
  std::int64_t stride = 0;
  Dev<const std::uint32_t> count;  // [rows]
  Dev<const std::uint8_t> dense;   // [rows]; null: no row is
  /// No count is larger. Counts lie on the device: this says how much work a device should be given, and it
  /// is wasted where it says too much. Never 0 where a row sees a token.
  std::int64_t most = 0;
};

/// Values of keys, and of values, that share a scale in 8 bits.
constexpr std::int64_t kQ8Group = 32;

/// Keys and values in 8 bits: [tokens][kv_heads][dim], with a half scale for each kQ8Group of them.
struct KeysValuesQ8 {
  Dev<std::int8_t> keys;
  Dev<std::uint16_t> key_scales;  // [tokens][kv_heads * dim / kQ8Group]
  Dev<std::int8_t> values;
  Dev<std::uint16_t> value_scales;
};

class Backend {
 public:
  virtual ~Backend() = default;
  [[nodiscard]] virtual std::string_view name() const = 0;
  /// Whether inputs of quantised matrices are rounded to 16-bit integers: about 1e-5 of an output.
  [[nodiscard]] virtual bool rounds_inputs() const { return false; }

  // --- memory -----------------------------------------------------------------------------------
  /// Zeroed memory, aligned to 64 bytes at least. Fails with kOutOfMemory.
  virtual Result<std::unique_ptr<Buffer>> allocate(std::size_t bytes) = 0;
  /// Memory of the host that operations read at the same address, aligned to 4096 bytes; what lies there is
  /// undefined. Nothing on the device may use a part of it while the host changes that. Fails with
  /// kOutOfMemory, or with kUnsupported where a device has no such addresses.
  virtual Result<std::unique_ptr<Buffer>> allocate_host(std::size_t bytes) = 0;
  /// Memory with these contents: the same where operations read the host's, else a copy. Fails with
  /// kOutOfMemory.
  virtual Result<std::unique_ptr<Buffer>> adopt(AlignedBuffer contents) {
    SLUICE_ASSIGN(auto buffer, allocate(contents.size()));
    upload(buffer->as<std::byte>(), contents.bytes());
    return buffer;
  }
  /// Whether allocate() gives memory that any thread of the host may fill as it is.
  [[nodiscard]] virtual bool in_host_memory() const { return false; }
  /// Bytes that are free in the device's memory; none where its memory is the host's.
  [[nodiscard]] virtual std::optional<std::uint64_t> device_memory() const { return std::nullopt; }
  /// Host to device; returns once `from` may be reused.
  virtual void upload(Dev<std::byte> to, std::span<const std::byte> from) = 0;
  /// Device to host; waits for every operation issued before it.
  virtual void download(std::span<std::byte> to, Dev<const std::byte> from) = 0;
  virtual void copy(Dev<std::byte> to, Dev<const std::byte> from, std::size_t bytes) = 0;
  virtual void zero(Dev<std::byte> to, std::size_t bytes) = 0;
  /// The same as copy(), beside the operations: it waits for those issued before it, and of those after it
  /// only what follows join_copies() waits for it. `from` may be memory of allocate_host().
  virtual void copy_beside(Dev<std::byte> to, Dev<const std::byte> from, std::size_t bytes) {
    copy(to, from, bytes);
  }
  /// Operations issued from now on wait for every copy_beside() before.
  virtual void join_copies() {}
  /// Waits for every operation and copy issued before.
  virtual void synchronise() = 0;
  /// The first failure of an operation, if there was one: operations themselves say nothing. After one their
  /// outputs are worthless.
  [[nodiscard]] virtual Result<void> status() const { return {}; }

  // --- row utilities ----------------------------------------------------------------------------
  /// out[r] = row ids[r] of `table`, dequantised. ids must be below table.out.
  virtual void embed_rows(const Matrix& table, Dev<const std::int32_t> ids, std::int64_t rows,
                          Dev<float> out) = 0;
  /// out[r] = x[index[r]]; rows of `width`.
  virtual void gather_rows(Dev<const float> x, Dev<const std::uint32_t> index, std::int64_t rows,
                           std::int64_t width, Dev<float> out) = 0;
  /// out[index[r]] += weight[r] * y[r], in ascending r.
  virtual void scatter_add_rows(Dev<const float> y, Dev<const std::uint32_t> index, Dev<const float> weight,
                                std::int64_t rows, std::int64_t width, Dev<float> out) = 0;
  /// out[r] += sigmoid(gate . x[r]) * y[r]; x, y and out [rows][width], gate bf16 [width].
  virtual void shared_add_rows(Dev<const float> x, Dev<const float> y, Dev<const std::uint16_t> gate,
                               std::int64_t rows, std::int64_t width, Dev<float> out) = 0;
  /// out[r] += sigmoid(gate[r]) * y[r]; y and out [rows][width], gate [rows].
  virtual void gated_add_rows(Dev<const float> y, Dev<const float> gate, std::int64_t rows,
                              std::int64_t width, Dev<float> out) = 0;
  /// x = silu(x / div) in place.
  virtual void silu_rows(Dev<float> x, std::int64_t count, float div) = 0;
  /// index[r] = position of the largest of x[r][0 .. width), the lowest on ties. NaN never wins.
  virtual void argmax_rows(Dev<const float> x, std::int64_t rows, std::int64_t width,
                           Dev<std::int32_t> index) = 0;

  // --- projections ------------------------------------------------------------------------------
  /// y[r] = W x[r]; x [rows][in], y [rows][out]. Any number of rows; a row's bits do not depend on it.
  virtual void linear(const Matrix& w, Dev<const float> x, std::int64_t rows, Dev<float> y) = 0;
  /// y[r] = silu((W x[r]) / div): the bottleneck of a hyper-connection.
  virtual void linear_silu(const Matrix& w, Dev<const float> x, std::int64_t rows, float div,
                           Dev<float> y) = 0;

  struct Projection {
    Matrix w;
    Dev<float> y;
  };
  /// Projections of the same rows: linear() for each of them.
  virtual void linear_many(std::span<const Projection> parts, Dev<const float> x, std::int64_t rows) {
    for (const Projection& part : parts) linear(part.w, x, rows, part.y);
  }

  // --- hyper-connections (model.md 3.3) ---------------------------------------------------------
  /// wide[r][s][i] = e[r][i].
  virtual void replicate(WideShape shape, Dev<const float> e, Dev<float> wide) = 0;
  /// y = x * rsqrt(mean of x^2 over a stream + eps) * (w + shift), a mean for each (row, stream); w [G][n].
  virtual void group_norm(WideShape shape, Dev<const float> x, Dev<const float> w, float shift, float eps,
                          Dev<float> y) = 0;
  /// wide[r][s] += out[r] * 2 sigmoid(gate[r][s] / G); out [rows][n], gate [rows][G].
  virtual void inject(WideShape shape, Dev<const float> out, Dev<const float> gate, Dev<float> wide) = 0;
  /// Where the normalised streams also go in half precision, for kernels that read codes in pairs.
  struct HalfStreams {
    Dev<std::uint16_t> even, odd;  // half [rows][G * n / 2]: elements 0, 2, 4 ... and 1, 3, 5 ... of y
    Dev<float> sums;               // [rows][G * n / 32]: sums of y over 32 elements
  };
  /// The fused read: optionally injects (out and gate not null) into wide in place, then y =
  /// group_norm(wide). `halves` may be null.
  virtual void norm_prepare(WideShape shape, Dev<const float> out, Dev<const float> gate, Dev<float> wide,
                            Dev<const float> w, float eps, Dev<float> y, const HalfStreams* halves) = 0;
  /// The whole read of the wide residual: norm_prepare (with out and out_gate, if they are not null), then
  /// low = linear_silu(down, normed, G), u = up low, mixed = hc_mix(u, normed) and, if inject has outputs,
  /// inject_gate = inject normed. normed, u [rows][G][n] and low [rows][lowrank] are scratch: what they hold
  /// afterwards is not said. inject_gate and out_gate are different memory.
  struct HyperRead {
    Matrix down, up, inject;
    Dev<const float> norm;  // [G][n]
    float eps = 0;
    Dev<float> normed, low, u;
    Dev<float> mixed;        // [rows][n]
    Dev<float> inject_gate;  // [rows][G]
  };
  virtual void hyper_read(WideShape shape, Dev<const float> out, Dev<const float> out_gate, Dev<float> wide,
                          const HyperRead& read) {
    norm_prepare(shape, out, out_gate, wide, read.norm, read.eps, read.normed, nullptr);
    linear_silu(read.down, read.normed, shape.rows, static_cast<float>(shape.streams), read.low);
    linear(read.up, read.low, shape.rows, read.u);
    hc_mix(shape, read.u, read.normed, read.mixed);
    if (read.inject.out > 0) linear(read.inject, read.normed, shape.rows, read.inject_gate);
  }
  /// mixed[r][i] = mean over streams of sigmoid(u[r][s][i]) * normed[r][s][i].
  virtual void hc_mix(WideShape shape, Dev<const float> u, Dev<const float> normed, Dev<float> mixed) = 0;
  /// wide[r][s] = fe[r] + fh[r][s]: the MTP head's input.
  virtual void mtp_fold(WideShape shape, Dev<const float> fe, Dev<const float> fh, Dev<float> wide) = 0;

  // --- experts (model.md 3.9) -------------------------------------------------------------------
  /// Softmax over n logits, the k largest by value with ties to the lowest index, in descending order;
  /// weights divided by their sum when `renormalise`. index and weight [rows][k]. NaN logits rank last.
  virtual void router_topk(Dev<const float> logits, std::int64_t rows, std::int64_t n, std::int64_t k,
                           bool renormalise, Dev<std::uint32_t> index, Dev<float> weight) = 0;
  /// For entries first .. last - 1 of the batch: y[row][slot] = down(silu(gate x[row]) * (up x[row])) for
  /// each of their pairs. x [rows][hidden], y [rows][slots][hidden]. Called once for resident entries and
  /// again for late ones. `pairs` is the number of pairs of those entries.
  virtual void experts(const ExpertBatch& batch, std::int64_t first, std::int64_t last, std::int64_t pairs,
                       Dev<const float> x, Dev<float> y) = 0;
  /// Whether moe() is there: on devices that would have to wait for the host otherwise.
  [[nodiscard]] virtual bool has_moe() const { return false; }
  /// What a batch's arrays are made of, when the device makes them.
  struct GroupedExperts {
    ExpertBatch batch;                       // geometry, rows, slots; its arrays are those below
    std::int64_t most = 0;                   // entries: min(experts, rows * slots)
    Dev<ExpertEntry> entries;                // [most]
    Dev<std::uint32_t> begin;                // [most + 1]
    Dev<std::uint32_t> pair_row, pair_slot;  // [rows * slots]
    Dev<float> slot_weight;                  // [rows][slots]: each row's weights by slot
  };
  /// A layer's experts whose records are all in the backend's memory.
  struct Moe {
    Matrix router, shared_gate, shared_up, shared_down, shared_scalar;
    Dev<const ExpertEntry> table;  // [experts]
    std::int64_t experts = 0;
    bool renormalise = true;
    GroupedExperts grouped;
    Dev<float> router_logits;              // [rows][experts]
    Dev<std::uint32_t> router_index;       // [rows][slots]
    Dev<float> router_weight;              // [rows][slots]
    Dev<float> expert_out;                 // [rows][slots][hidden]
    Dev<float> gate, up;                   // [rows][shared inter]
    Dev<float> shared_out, shared_weight;  // [rows][hidden], [rows]
  };
  /// out = the weighted sum of the chosen experts and the gated shared expert of x [rows][hidden]: the
  /// router, router_topk, experts, combine_experts and the shared expert, without waiting for the host. All
  /// of Moe but its weights is scratch.
  virtual void moe(const Moe& /*moe*/, Dev<const float> /*x*/, Dev<float> /*out*/) {}
  /// out[r] = sum over slots in ascending order of weight[r][slot] * y[r][slot]; slots of weight 0 are
  /// skipped, whatever y holds there.
  virtual void combine_experts(Dev<const float> y, Dev<const float> weight, std::int64_t rows,
                               std::int64_t slots, std::int64_t width, Dev<float> out) = 0;
  /// out[i] = silu(gate[i]) * up[i].
  virtual void silu_multiply(Dev<const float> gate, Dev<const float> up, std::int64_t count,
                             Dev<float> out) = 0;

  // --- n-gram embedding (model.md 3.10) ---------------------------------------------------------
  /// gated[r][s] = sigmoid(sign(d) sqrt(max(|d|, 1e-6))) * value[r] with d = key[r][s] . query[r][s] /
  /// sqrt(n); sign(0) = 0. value [rows][n].
  virtual void ple_gate(WideShape shape, Dev<const float> key, Dev<const float> query, Dev<const float> value,
                        Dev<float> gated) = 0;

  /// Depthwise causal convolution with silu: out[r][c] = silu(sum_i w[c][i] * in[p - (kernel - 1 - i)
  /// dilation][c]) at position p = base + r. Positions from `base` on come from `in` [rows][channels],
  /// earlier ones from the ring, those below 0 are zero. The ring then holds the last `span` positions. w
  /// [channels][kernel]. With `add` (same shape as out) out += add.
  struct ConvShape {
    std::int64_t channels = 0, kernel = 0, dilation = 1;
  };
  virtual void causal_conv(ConvShape shape, Dev<const float> in, Dev<const float> w, Ring ring,
                           std::int64_t base, std::int64_t rows, Dev<const float> add, Dev<float> out) = 0;

  // --- Gated DeltaNet (model.md 3.8) ------------------------------------------------------------
  /// beta[r][j] = sigmoid(b[r][j]); decay[r][j] = exp(-exp(a_log[j]) softplus(a[r][j] + dt_bias[j])).
  virtual void delta_gates(Dev<const float> a, Dev<const float> b, Dev<const float> a_log,
                           Dev<const float> dt_bias, std::int64_t rows, std::int64_t value_heads,
                           Dev<float> decay, Dev<float> beta) = 0;
  /// The recurrence over rows in order. qkv [rows][2 Gk dk + Gv dv] after the convolution; q and k are
  /// l2-normalised here, q also scaled by dk^-0.5. state_in and state_out [Gv][dk][dv]; they may be the same.
  /// y [rows][Gv][dv], or null when only the state is wanted.
  virtual void delta_scan(DeltaShape shape, Dev<const float> qkv, Dev<const float> decay,
                          Dev<const float> beta, std::int64_t rows, Dev<const float> state_in,
                          Dev<float> state_out, Dev<float> y) = 0;
  /// out = y * rsqrt(mean of y^2 over a head + eps) * w * gate(z); y, z, out [rows][heads][dim], w [dim].
  virtual void delta_gate_norm(Dev<const float> y, Dev<const float> z, Dev<const float> w, float eps,
                               GateKind gate, std::int64_t rows, std::int64_t heads, std::int64_t dim,
                               Dev<float> out) = 0;
  /// Rows of one sequence from the projections to the last one: delta_gates, causal_conv, delta_scan and
  /// delta_gate_norm. conv_out, decay and beta are kept; y is scratch.
  struct DeltaStep {
    DeltaShape shape;
    std::int64_t kernel = 0, base = 0, rows = 0;
    Dev<const float> qkv, a, b, z;                // [rows][...]
    Dev<const float> conv, a_log, dt_bias, norm;  // weights
    float eps = 0;
    GateKind gate = GateKind::kSigmoid;
    Ring ring;
    Dev<const float> state_in;
    Dev<float> state_out, conv_out, decay, beta, y, out;
  };
  virtual void delta_step(const DeltaStep& s) {
    const DeltaShape& d = s.shape;
    const std::int64_t channels = 2 * d.key_heads * d.key_dim + d.value_heads * d.value_dim;
    delta_gates(s.a, s.b, s.a_log, s.dt_bias, s.rows, d.value_heads, s.decay, s.beta);
    causal_conv({channels, s.kernel, 1}, s.qkv, s.conv, s.ring, s.base, s.rows, {}, s.conv_out);
    delta_scan(d, s.conv_out, s.decay, s.beta, s.rows, s.state_in, s.state_out, s.y);
    delta_gate_norm(s.y, s.z, s.norm, s.eps, s.gate, s.rows, d.value_heads, d.value_dim, s.out);
  }

  // --- attention (model.md 3.5, 3.6) ------------------------------------------------------------
  /// Per head: RMS norm with weight w [dim] (the effective multiplier), then rotation. Head h of row r is
  /// read at x[r * row_stride + h * head_stride] and written to out[r][h][dim].
  struct HeadsIn {
    std::int64_t heads = 0, dim = 0, row_stride = 0, head_stride = 0;
  };
  virtual void norm_rope(HeadsIn in, Dev<const float> x, Dev<const float> w, float eps, const Rope& rope,
                         std::int64_t rows, Dev<float> out) = 0;
  /// Heads of one kind: norm_rope(), or without w a copy of rows that lie as they are wanted.
  struct HeadsPart {
    HeadsIn in;
    Dev<const float> x, w;
    Rope rope;
    std::int64_t rows = 0;
    Dev<float> out;
  };
  virtual void norm_rope_many(std::span<const HeadsPart> parts, float eps) {
    for (const HeadsPart& part : parts) {
      if (part.w) {
        norm_rope(part.in, part.x, part.w, eps, part.rope, part.rows, part.out);
      } else {
        copy(Dev(reinterpret_cast<std::byte*>(part.out.address())),
             Dev(reinterpret_cast<const std::byte*>(part.x.address())),
             static_cast<std::size_t>(part.rows * part.in.row_stride) * sizeof(float));
      }
    }
  }
  /// out[r][h] = softmax(q . k * dim^-0.5) v over the row's selection. q and out [rows][heads][dim];
  /// keys and values [tokens][kv_heads][dim]. A row that sees no token gives zeros.
  virtual void attention(AttentionShape shape, Dev<const float> q, Dev<const float> keys,
                         Dev<const float> values, const TokenSelection& selection, std::int64_t rows,
                         Dev<float> out) = 0;
  /// The same over 8-bit keys and values; head_dim a multiple of 32.
  virtual void attention_q8(AttentionShape shape, Dev<const float> q, const KeysValuesQ8& cache,
                            const TokenSelection& selection, std::int64_t rows, Dev<float> out) = 0;
  /// Rounds `groups` groups of 32 numbers to 8 bits each and a half scale for all: scale = max |x| / 127 as a
  /// half, code = x / scale to the nearest, ties to even. A group with a number that is not finite becomes
  /// NaN as a whole.
  virtual void quantise_q8(Dev<const float> x, std::int64_t groups, Dev<std::int8_t> codes,
                           Dev<std::uint16_t> scales) = 0;
  /// out[r][h][i] *= sigmoid(gate) with gate of head h at qg[r * row_stride + h * head_stride + i].
  virtual void attention_gate(HeadsIn in, Dev<const float> gate, std::int64_t rows, Dev<float> out) = 0;
  /// Prefill softmax: scores [rows][stride] in the base-2 domain; row r belongs to query r % queries, at
  /// position base + r % queries; key t is visible if t <= position and its block's bit is set in block_mask
  /// [queries][mask_words], or if it lies in the incomplete last block. Half probabilities out, 0 elsewhere.
  virtual void softmax_selected(Dev<const float> scores, Dev<const std::uint32_t> block_mask,
                                std::int64_t rows, std::int64_t stride, std::int64_t queries,
                                std::int64_t base, std::int64_t ratio, std::int64_t mask_words,
                                Dev<std::uint16_t> out) = 0;

  // --- sparse selection (model.md 3.7) ----------------------------------------------------------
  /// Keys of blocks first .. last - 1: mean of `ratio` raw keys [tokens][head_dim], RMS norm with w
  /// [head_dim], rotation with row b - first of `rope` (tables of each block's first position). block_keys
  /// [blocks][head_dim].
  virtual void index_block_keys(IndexShape shape, Dev<const float> raw_keys, std::int64_t first,
                                std::int64_t last, Dev<const float> w, float eps, const Rope& rope,
                                Dev<float> block_keys) = 0;
  /// scores[r][b] = sum over heads of relu(q[r][h] . key[b]) / sqrt(head_dim) for b < blocks[r], 0 above;
  /// q [rows][heads][head_dim], scores [rows][stride].
  virtual void index_scores(IndexShape shape, Dev<const float> q, Dev<const float> block_keys,
                            Dev<const std::uint32_t> blocks, std::int64_t rows, std::int64_t stride,
                            Dev<float> scores) = 0;
  /// Exact top-k blocks of each row: the largest scores, ties to the lowest block, NaN last. Row r sees
  /// visible[r] tokens, visible / ratio complete blocks and the tail. tokens [rows][token_stride]: the chosen
  /// blocks' tokens and the tail, ascending, then 0xffffffff. mask [rows][mask_words]: a bit a chosen block;
  /// may be null. A row of at most block_budget complete blocks is dense: dense[r] = 1, count[r] =
  /// visible[r], its list is not written; otherwise dense[r] = 0.
  virtual void index_select(IndexShape shape, Dev<const float> scores, std::int64_t score_stride,
                            Dev<const std::uint32_t> visible, std::int64_t rows, Dev<std::uint32_t> tokens,
                            std::int64_t token_stride, Dev<std::uint32_t> count, Dev<std::uint8_t> dense,
                            Dev<std::uint32_t> mask, std::int64_t mask_words) = 0;
};

}  // namespace sluice::backend
