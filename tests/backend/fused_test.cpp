// What a decode step's few rows take in few launches gives the bits that the same rows have among many.
#include <algorithm>
#include <cmath>

#include "backend/on_backend.h"

namespace sluice::backend {
namespace {

constexpr std::int64_t kMany = 9;  // more rows than any fused kernel takes
constexpr std::int64_t kFew[] = {1, 2, 3, 4, 7, 8};

class Fused : public OnBackend {
 protected:
  std::vector<std::uint32_t> bits(Dev<float> from, std::int64_t count) {
    return bits_of_values(download(from, count));
  }
  static std::vector<std::uint32_t> head(const std::vector<std::uint32_t>& all, std::int64_t count) {
    return {all.begin(), all.begin() + count};
  }
};

TEST_P(Fused, ReadsOfTheWideResidual) {
  Numbers numbers(41);
  for (const Format format : {Format::kQ4, Format::kQ8}) {
    for (const std::int64_t width : {256, 1024}) {
      const std::int64_t streams = 4;
      const std::int64_t lowrank = 192;  // scales that no two blocks share a word with in every row
      const std::int64_t all = kMany * streams * width;
      const auto down = upload(random_matrix(numbers, format, lowrank, streams * width, 64));
      const auto up = upload(random_matrix(numbers, format, streams * width, lowrank, 64));
      const auto norm = upload(numbers.floats(streams * width));
      const auto wide = numbers.floats(all);
      const auto out = upload(numbers.floats(kMany * width));
      const auto gate = upload(numbers.floats(kMany * streams));
      for (const Format gates : {Format::kBf16, Format::kQ4}) {
        const auto inject = upload(random_matrix(numbers, gates, streams, streams * width, 64));
        for (const bool injects : {true, false}) {
          std::vector<std::uint32_t> mixed_bits;
          std::vector<std::uint32_t> gate_bits;
          std::vector<std::uint32_t> wide_bits;
          const auto run = [&](std::int64_t rows) {
            const auto residual = upload(wide);
            const auto mixed = memory<float>(rows * width);
            const auto inject_gate = memory<float>(rows * streams);
            const Backend::HyperRead read{down,
                                          up,
                                          inject,
                                          norm,
                                          1e-6F,
                                          memory<float>(rows * streams * width),
                                          memory<float>(rows * lowrank),
                                          memory<float>(rows * streams * width),
                                          mixed,
                                          inject_gate};
            backend().hyper_read({rows, streams, width}, injects ? out : Dev<float>(),
                                 injects ? gate : Dev<float>(), residual, read);
            mixed_bits = bits(mixed, rows * width);
            gate_bits = bits(inject_gate, rows * streams);
            wide_bits = bits(residual, rows * streams * width);
          };
          run(kMany);
          const auto mixed_all = mixed_bits;
          const auto gate_all = gate_bits;
          const auto wide_all = wide_bits;
          for (const std::int64_t rows : kFew) {
            run(rows);
            EXPECT_EQ(mixed_bits, head(mixed_all, rows * width)) << rows << " rows, width " << width;
            EXPECT_EQ(gate_bits, head(gate_all, rows * streams)) << rows << " rows, width " << width;
            EXPECT_EQ(wide_bits, head(wide_all, rows * streams * width)) << rows << " rows, width " << width;
          }
        }
      }
    }
  }
}

TEST_P(Fused, ProjectionsOfOneInput) {
  Numbers numbers(42);
  for (const std::int64_t in : {512, 2560, 5632}) {
    const auto x = upload(numbers.floats(kMany * in));
    std::vector<Matrix> matrices;
    for (const Format format : {Format::kQ4, Format::kQ4, Format::kQ8, Format::kQ4}) {
      const std::int64_t tiles = 5 + static_cast<std::int64_t>(numbers.below(9));
      matrices.push_back(upload(random_matrix(numbers, format, 16 * tiles, in, 64)));
    }
    for (const Format format : {Format::kBf16, Format::kQ8}) {
      matrices.push_back(upload(random_matrix(numbers, format, 12, in, 64)));
    }
    const auto run = [&](std::int64_t rows) {
      std::vector<Backend::Projection> parts;
      for (const Matrix& w : matrices) parts.push_back({w, memory<float>(rows * w.out)});
      backend().linear_many(parts, x, rows);
      std::vector<std::vector<std::uint32_t>> all;
      for (const auto& part : parts) all.push_back(bits(part.y, rows * part.w.out));
      return all;
    };
    const auto all = run(kMany);
    for (const std::int64_t rows : kFew) {
      const auto few = run(rows);
      for (std::size_t i = 0; i < matrices.size(); ++i) {
        EXPECT_EQ(few[i], head(all[i], rows * matrices[i].out)) << "matrix " << i << ", " << rows << " rows";
      }
    }
  }
}

TEST_P(Fused, StepsOfDeltaNet) {
  Numbers numbers(44);
  for (const GateKind gate : {GateKind::kSigmoid, GateKind::kSilu}) {
    const DeltaShape shape{2, 6, 128, 128};
    const std::int64_t channels = 2 * 2 * 128 + 6 * 128;
    const std::int64_t values = 6 * 128;
    const std::int64_t state = values * 128;
    const std::int64_t span = 3 + 8;
    // From the start on, so that the first rows have fewer taps.
    std::int64_t all = 0;
    for (const std::int64_t rows : kFew) all += rows;
    Backend::DeltaStep step;
    step.shape = shape;
    step.kernel = 4;
    step.eps = 1e-6F;
    step.gate = gate;
    const auto qkv = upload(numbers.floats(all * channels));
    const auto a = upload(numbers.floats(all * 6));
    const auto b = upload(numbers.floats(all * 6));
    const auto z = upload(numbers.floats(all * values, -4, 4));
    step.conv = upload(numbers.floats(channels * 4));
    step.a_log = upload(numbers.floats(6));
    step.dt_bias = upload(numbers.floats(6));
    step.norm = upload(numbers.floats(128));
    const auto start = numbers.floats(state, -0.1F, 0.1F);
    const auto run = [&](bool together) {
      step.ring = {upload(std::vector<float>(static_cast<std::size_t>(span * channels), NAN)), span};
      const Dev<float> states[] = {upload(start), memory<float>(state)};
      std::vector<std::vector<std::uint32_t>> found;
      std::int64_t base = 0;
      std::size_t current = 0;
      for (const std::int64_t rows : kFew) {
        step.base = base;
        step.rows = rows;
        step.qkv = qkv + base * channels;
        step.a = a + base * 6;
        step.b = b + base * 6;
        step.z = z + base * values;
        step.state_in = states[current];
        current = 1 - current;
        step.state_out = states[current];
        step.conv_out = memory<float>(rows * channels);
        step.decay = memory<float>(rows * 6);
        step.beta = memory<float>(rows * 6);
        step.y = memory<float>(rows * values);
        step.out = memory<float>(rows * values);
        if (together) {
          backend().delta_step(step);
        } else {
          backend().Backend::delta_step(step);
        }
        found.push_back(bits(step.out, rows * values));
        found.push_back(bits(step.state_out, state));
        found.push_back(bits(step.conv_out, rows * channels));
        found.push_back(bits(step.decay, rows * 6));
        found.push_back(bits(step.beta, rows * 6));
        base += rows;
      }
      found.push_back(bits(step.ring.data, span * channels));
      return found;
    };
    EXPECT_EQ(run(true), run(false));
  }
}

class FusedExperts : public Fused {
 protected:
  static constexpr std::int64_t kExperts = 7, kSlots = 3;

  Dev<std::byte> record(Numbers& numbers, const ExpertGeometry& g, Format format) {
    const RecordLayout layout{g, format};
    std::vector<std::byte> bytes(static_cast<std::size_t>(layout.bytes()));
    for (int which = 0; which < 3; ++which) {
      const bool down = which == 2;
      const HostMatrix m =
          random_matrix(numbers, format, down ? g.hidden : g.inter, down ? g.inter : g.hidden, g.group);
      std::copy(m.data.begin(), m.data.end(), bytes.begin() + layout.matrix_offset(which));
      std::memcpy(bytes.data() + layout.scales_offset(which), m.scales.data(), m.scales.size() * 2);
      std::memcpy(bytes.data() + layout.biases_offset(which), m.biases.data(), m.biases.size() * 2);
    }
    return upload(bytes);
  }
};

TEST_P(FusedExperts, OfEveryPrecision) {
  if (!backend().has_moe()) return;
  Numbers numbers(43);
  const ExpertGeometry g{512, 128, 64};
  // The shared expert goes with those of its precision, with any, or by itself.
  for (const auto& [shared, coded] :
       {std::pair{Format::kQ4, Format::kQ4}, std::pair{Format::kQ2, Format::kQ4},
        std::pair{Format::kQ8, Format::kQ4}, std::pair{Format::kQ4, Format::kQ2},
        std::pair{Format::kQ4, Format::kQ8}}) {
    std::vector<ExpertEntry> entries;
    std::uint32_t formats = 0;
    for (std::int64_t e = 0; e < kExperts; ++e) {
      const Format formats_of_three[] = {coded, Format::kQ2, Format::kQ3};
      const Format format = formats_of_three[static_cast<std::size_t>(e) % 3];
      formats |= 1U << static_cast<unsigned>(format);
      entries.push_back(ExpertEntry::make(record(numbers, g, format).address(), format));
    }
    Backend::Moe moe{upload(random_matrix(numbers, Format::kBf16, kExperts, g.hidden, 64)),
                     upload(random_matrix(numbers, shared, g.inter, g.hidden, 64)),
                     upload(random_matrix(numbers, shared, g.inter, g.hidden, 64)),
                     upload(random_matrix(numbers, shared, g.hidden, g.inter, 64)),
                     upload(random_matrix(numbers, Format::kBf16, 1, g.hidden, 64))};
    moe.table = upload(entries);
    moe.experts = kExperts;
    const auto x = upload(numbers.floats(kMany * g.hidden));
    const auto run = [&](std::int64_t rows) {
      const std::int64_t pairs = rows * kSlots;
      moe.grouped.most = std::min(kExperts, pairs);
      moe.grouped.entries = memory<ExpertEntry>(moe.grouped.most);
      moe.grouped.begin = memory<std::uint32_t>(moe.grouped.most + 1);
      moe.grouped.pair_row = memory<std::uint32_t>(pairs);
      moe.grouped.pair_slot = memory<std::uint32_t>(pairs);
      moe.grouped.slot_weight = memory<float>(pairs);
      moe.grouped.batch = {g,
                           rows,
                           kSlots,
                           moe.grouped.entries,
                           moe.grouped.begin,
                           moe.grouped.pair_row,
                           moe.grouped.pair_slot,
                           formats};
      moe.router_logits = memory<float>(rows * kExperts);
      moe.router_index = memory<std::uint32_t>(pairs);
      moe.router_weight = memory<float>(pairs);
      moe.expert_out = memory<float>(pairs * g.hidden);
      moe.gate = memory<float>(rows * g.inter);
      moe.up = memory<float>(rows * g.inter);
      moe.shared_out = memory<float>(rows * g.hidden);
      moe.shared_weight = memory<float>(rows);
      const auto out = memory<float>(rows * g.hidden);
      backend().moe(moe, x, out);
      return bits(out, rows * g.hidden);
    };
    for (const bool renormalise : {true, false}) {
      moe.renormalise = renormalise;
      const auto all = run(kMany);
      for (const std::int64_t rows : kFew) {
        EXPECT_EQ(run(rows), head(all, rows * g.hidden)) << rows << " rows, shared " << bits_of(shared);
      }
    }
  }
}

SLUICE_ON_EVERY_BACKEND(Fused);
SLUICE_ON_EVERY_BACKEND(FusedExperts);

}  // namespace
}  // namespace sluice::backend
