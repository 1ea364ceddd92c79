#include "backend/cpu/cpu_backend.h"

#include <algorithm>
#include <cstring>

#include "backend/cpu/row_kernels.h"
#include "backend/cpu/split.h"
#include "backend/scalar/math.h"
#include "base/numbers.h"

namespace sluice::backend {

constexpr std::int64_t kKernelScratch = std::max(cpu::kLinearScratch, cpu::kIntegerScratch);

CpuBackend::CpuBackend(int threads, bool exact)
    : team_(threads > 0 ? threads : ThreadTeam::default_size()), exact_(exact) {
  thread_scratch_.get(team_.size() * kKernelScratch);
  packed_.resize(static_cast<std::size_t>(team_.size()));
}

float* CpuBackend::kernel_scratch(int thread) {
  return thread_scratch_.get(team_.size() * kKernelScratch) + thread * kKernelScratch;
}

// --- rows and streams ---------------------------------------------------------------------------------

void CpuBackend::embed_rows(const Matrix& table, Dev<const std::int32_t> ids, std::int64_t rows,
                            Dev<float> out) {
  split(rows, kPerElement * static_cast<double>(table.in), [&](int, std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      cpu::decode_row(table, ids.address()[r], out.address() + r * table.in);
    }
  });
}

void CpuBackend::scatter_add_rows(Dev<const float> y, Dev<const std::uint32_t> index, Dev<const float> weight,
                                  std::int64_t rows, std::int64_t width, Dev<float> out) {
  for (std::int64_t r = 0; r < rows; ++r) {
    cpu::add_scaled(y.address() + r * width, weight.address()[r], width,
                    out.address() + std::int64_t{index.address()[r]} * width);
  }
}

void CpuBackend::shared_add_rows(Dev<const float> x, Dev<const float> y, Dev<const std::uint16_t> gate,
                                 std::int64_t rows, std::int64_t width, Dev<float> out) {
  split(rows, kPerElement * static_cast<double>(width), [&](int, std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      cpu::shared_add_row(x.address() + r * width, y.address() + r * width, gate.address(), width,
                          out.address() + r * width);
    }
  });
}

void CpuBackend::gated_add_rows(Dev<const float> y, Dev<const float> gate, std::int64_t rows,
                                std::int64_t width, Dev<float> out) {
  for (std::int64_t r = 0; r < rows; ++r) {
    const auto factor = static_cast<float>(scalar::sigmoid(gate.address()[r]));
    cpu::add_scaled(y.address() + r * width, factor, width, out.address() + r * width);
  }
}

void CpuBackend::silu_rows(Dev<float> x, std::int64_t count, float div) {
  split(count, kPerFunction, [&](int, std::int64_t begin, std::int64_t end) {
    cpu::silu_range(x.address() + begin, end - begin, div);
  });
}

void CpuBackend::silu_multiply(Dev<const float> gate, Dev<const float> up, std::int64_t count,
                               Dev<float> out) {
  split(count, kPerFunction, [&](int, std::int64_t begin, std::int64_t end) {
    cpu::silu_multiply_range(gate.address() + begin, up.address() + begin, end - begin,
                             out.address() + begin);
  });
}

void CpuBackend::replicate(WideShape shape, Dev<const float> e, Dev<float> wide) {
  const auto bytes = static_cast<std::size_t>(shape.width) * sizeof(float);
  for (std::int64_t r = 0; r < shape.rows; ++r) {
    for (std::int64_t s = 0; s < shape.streams; ++s) {
      std::memcpy(wide.address() + (r * shape.streams + s) * shape.width, e.address() + r * shape.width,
                  bytes);
    }
  }
}

void CpuBackend::group_norm(WideShape shape, Dev<const float> x, Dev<const float> w, float shift, float eps,
                            Dev<float> y) {
  const std::int64_t n = shape.width;
  split(shape.rows * shape.streams, kPerElement * static_cast<double>(n),
        [&](int, std::int64_t begin, std::int64_t end) {
          for (std::int64_t i = begin; i < end; ++i) {
            cpu::norm_stream(x.address() + i * n, w.address() + i % shape.streams * n, shift, eps, n,
                             y.address() + i * n);
          }
        });
}

void CpuBackend::inject(WideShape shape, Dev<const float> out, Dev<const float> gate, Dev<float> wide) {
  const std::int64_t n = shape.width;
  split(shape.rows * shape.streams, kPerElement * static_cast<double>(n),
        [&](int, std::int64_t begin, std::int64_t end) {
          for (std::int64_t i = begin; i < end; ++i) {
            cpu::add_scaled(out.address() + i / shape.streams * n,
                            cpu::inject_factor(gate.address()[i], shape.streams), n, wide.address() + i * n);
          }
        });
}

void CpuBackend::norm_prepare(WideShape shape, Dev<const float> out, Dev<const float> gate, Dev<float> wide,
                              Dev<const float> w, float eps, Dev<float> y, const HalfStreams* halves) {
  const std::int64_t n = shape.width;
  const bool injects = out && gate;
  split(shape.rows * shape.streams, 2 * kPerElement * static_cast<double>(n),
        [&](int, std::int64_t begin, std::int64_t end) {
          for (std::int64_t i = begin; i < end; ++i) {
            float* stream = wide.address() + i * n;
            if (injects) {
              cpu::add_scaled(out.address() + i / shape.streams * n,
                              cpu::inject_factor(gate.address()[i], shape.streams), n, stream);
            }
            cpu::norm_stream(stream, w.address() + i % shape.streams * n, 0, eps, n, y.address() + i * n);
          }
        });
  if (halves == nullptr) return;
  const std::int64_t count = shape.rows * shape.streams * n;
  for (std::int64_t i = 0; i < count; i += 2) {
    halves->even.address()[i / 2] = to_half(y.address()[i]).bits;
    halves->odd.address()[i / 2] = to_half(y.address()[i + 1]).bits;
  }
  for (std::int64_t i = 0; i < count; i += 32) {
    float sum = 0;
    for (std::int64_t j = i; j < i + 32; ++j) sum += y.address()[j];
    halves->sums.address()[i / 32] = sum;
  }
}

void CpuBackend::hc_mix(WideShape shape, Dev<const float> u, Dev<const float> normed, Dev<float> mixed) {
  const std::int64_t n = shape.width;
  const std::int64_t wide = shape.streams * n;
  split(shape.rows * n, kPerFunction * static_cast<double>(shape.streams),
        [&](int, std::int64_t begin, std::int64_t end) {
          while (begin < end) {
            const std::int64_t r = begin / n;
            const std::int64_t last = std::min(end, (r + 1) * n);
            cpu::mix_range(u.address() + r * wide, normed.address() + r * wide, shape.streams, n,
                           begin - r * n, last - r * n, mixed.address() + r * n);
            begin = last;
          }
        });
}

void CpuBackend::combine_experts(Dev<const float> y, Dev<const float> weight, std::int64_t rows,
                                 std::int64_t slots, std::int64_t width, Dev<float> out) {
  split(rows * width, kPerElement * static_cast<double>(slots),
        [&](int, std::int64_t begin, std::int64_t end) {
          while (begin < end) {
            const std::int64_t r = begin / width;
            const std::int64_t last = std::min(end, (r + 1) * width);
            cpu::combine_range(y.address() + r * slots * width, weight.address() + r * slots, slots, width,
                               begin - r * width, last - r * width, out.address() + r * width);
            begin = last;
          }
        });
}

void CpuBackend::ple_gate(WideShape shape, Dev<const float> key, Dev<const float> query,
                          Dev<const float> value, Dev<float> gated) {
  const std::int64_t n = shape.width;
  split(shape.rows * shape.streams, kPerElement * static_cast<double>(n),
        [&](int, std::int64_t begin, std::int64_t end) {
          for (std::int64_t i = begin; i < end; ++i) {
            cpu::ple_gate_stream(key.address() + i * n, query.address() + i * n,
                                 value.address() + i / shape.streams * n, n, gated.address() + i * n);
          }
        });
}

void CpuBackend::causal_conv(ConvShape shape, Dev<const float> in, Dev<const float> w, Ring ring,
                             std::int64_t base, std::int64_t rows, Dev<const float> add, Dev<float> out) {
  if (shape.kernel > cpu::kMaxConvKernel) {
    return ScalarBackend::causal_conv(shape, in, w, ring, base, rows, add, out);
  }
  split(shape.channels, 1.5 * kPerFunction * static_cast<double>(rows),
        [&](int, std::int64_t begin, std::int64_t end) {
          cpu::conv_range(shape, in.address(), w.address(), ring, base, rows, add.address(), out.address(),
                          begin, end);
        });
}

void CpuBackend::delta_gates(Dev<const float> a, Dev<const float> b, Dev<const float> a_log,
                             Dev<const float> dt_bias, std::int64_t rows, std::int64_t value_heads,
                             Dev<float> decay, Dev<float> beta) {
  split(rows, 4 * kPerFunction * static_cast<double>(value_heads),
        [&](int, std::int64_t begin, std::int64_t end) {
          for (std::int64_t r = begin; r < end; ++r) {
            const std::int64_t at = r * value_heads;
            cpu::delta_gates_row(a.address() + at, b.address() + at, a_log.address(), dt_bias.address(),
                                 value_heads, decay.address() + at, beta.address() + at);
          }
        });
}

void CpuBackend::delta_gate_norm(Dev<const float> y, Dev<const float> z, Dev<const float> w, float eps,
                                 GateKind gate, std::int64_t rows, std::int64_t heads, std::int64_t dim,
                                 Dev<float> out) {
  split(rows * heads, kPerFunction * static_cast<double>(dim),
        [&](int, std::int64_t begin, std::int64_t end) {
          for (std::int64_t i = begin; i < end; ++i) {
            cpu::gate_norm_head(y.address() + i * dim, z.address() + i * dim, w.address(), eps, gate, dim,
                                out.address() + i * dim);
          }
        });
}

void CpuBackend::norm_rope(HeadsIn in, Dev<const float> x, Dev<const float> w, float eps, const Rope& rope,
                           std::int64_t rows, Dev<float> out) {
  const std::int64_t half = rope.dims / 2;
  split(rows * in.heads, kPerElement * static_cast<double>(in.dim),
        [&](int, std::int64_t begin, std::int64_t end) {
          for (std::int64_t i = begin; i < end; ++i) {
            const std::int64_t r = i / in.heads;
            cpu::norm_rope_head(x.address() + r * in.row_stride + i % in.heads * in.head_stride, w.address(),
                                eps, in.dim, rope.cos.address() + r * half, rope.sin.address() + r * half,
                                half, out.address() + i * in.dim);
          }
        });
}

void CpuBackend::attention_gate(HeadsIn in, Dev<const float> gate, std::int64_t rows, Dev<float> out) {
  split(rows * in.heads, kPerFunction * static_cast<double>(in.dim),
        [&](int, std::int64_t begin, std::int64_t end) {
          for (std::int64_t i = begin; i < end; ++i) {
            cpu::sigmoid_multiply(
                gate.address() + i / in.heads * in.row_stride + i % in.heads * in.head_stride, in.dim,
                out.address() + i * in.dim);
          }
        });
}

void CpuBackend::index_block_keys(IndexShape shape, Dev<const float> raw_keys, std::int64_t first,
                                  std::int64_t last, Dev<const float> w, float eps, const Rope& rope,
                                  Dev<float> block_keys) {
  const std::int64_t dim = shape.head_dim;
  const std::int64_t half = rope.dims / 2;
  split(last - first, 4 * kPerElement * static_cast<double>(dim),
        [&](int, std::int64_t begin, std::int64_t end) {
          for (std::int64_t i = begin; i < end; ++i) {
            float* key = block_keys.address() + (first + i) * dim;
            cpu::mean_rows(raw_keys.address() + (first + i) * shape.ratio * dim, shape.ratio, dim, key);
            cpu::norm_rope_head(key, w.address(), eps, dim, rope.cos.address() + i * half,
                                rope.sin.address() + i * half, half, key);
          }
        });
}

}  // namespace sluice::backend
