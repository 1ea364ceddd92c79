// Projections and experts at shapes that matrix units take: whole blocks of 64 inputs.
#include "backend/on_backend.h"

namespace sluice::backend {
namespace {

class Blocks : public OnBackend {
 protected:
  /// |y - W x| / |W x|, W x in double.
  double error(const HostMatrix& m, const std::vector<float>& x, std::int64_t rows,
               const std::vector<float>& y) {
    std::vector<float> expected;
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t o = 0; o < m.out; ++o) {
        double sum = 0;
        for (std::int64_t i = 0; i < m.in; ++i) {
          sum += static_cast<double>(m.values[static_cast<std::size_t>(o * m.in + i)]) *
                 x[static_cast<std::size_t>(r * m.in + i)];
        }
        expected.push_back(static_cast<float>(sum));
      }
    }
    return relative_l2(y, expected);
  }
};

struct Shape {
  std::int64_t out, in;
  int group;
};
// Few outputs and many, a last tile and a last segment that are not full, scales for one block and for
// several.
constexpr Shape kShapes[] = {{4, 640, 64}, {33, 64, 64}, {136, 320, 64}, {200, 1024, 128}, {80, 2560, 64}};

TEST_P(Blocks, ProjectionsMatchTheValuesOfEveryFormat) {
  Numbers numbers(31);
  for (const Format format : kEveryFormat) {
    for (const Shape& s : kShapes) {
      const HostMatrix m = random_matrix(numbers, format, s.out, s.in, s.group);
      for (const std::int64_t rows : {1, 5, 9, 40}) {
        if (rows * s.out * s.in > 4'000'000) continue;
        const auto x = numbers.floats(rows * s.in);
        const auto y = memory<float>(rows * s.out);
        backend().linear(upload(m), upload(x), rows, y);
        // Few outputs are gates: a GPU computes them finely.
        const bool coded =
            is_quantised(format) && (s.out > 64 || bits_of(format) < 4 || backend().rounds_inputs());
        EXPECT_LT(error(m, x, rows, download(y, rows * s.out)), coded ? rounded(2e-6) : 2e-6)
            << bits_of(format) << " bits, " << s.out << " x " << s.in << ", " << rows << " rows";
      }
    }
  }
}

// Both sides of every place where a backend may take another kernel.
TEST_P(Blocks, ARowsBitsDoNotDependOnTheRowsBesideIt) {
  Numbers numbers(32);
  for (const Format format : kEveryFormat) {
    for (const Shape& s : {Shape{136, 576, 64}, Shape{70, 256, 128}}) {
      const Matrix w = upload(random_matrix(numbers, format, s.out, s.in, s.group));
      const std::int64_t most = 75;
      const auto x = upload(numbers.floats(most * s.in));
      const auto y = memory<float>(most * s.out);
      std::vector<float> alone;
      for (std::int64_t r = 0; r < most; ++r) {
        backend().linear(w, x + r * s.in, 1, y);
        const auto row = download(y, s.out);
        alone.insert(alone.end(), row.begin(), row.end());
      }
      for (const std::int64_t rows : {2, 8, 9, 31, 32, 64, 75}) {
        backend().linear(w, x, rows, y);
        const auto together = download(y, rows * s.out);
        EXPECT_EQ(bits_of_values(together),
                  bits_of_values(std::span(alone).first(static_cast<std::size_t>(rows * s.out))))
            << bits_of(format) << " bits, " << rows << " rows";
      }
    }
  }
}

// More rows than a tile has, and more inputs than a span: the last tile, segment and span are not full.
TEST_P(Blocks, RowsOfSeveralTilesAndSpansKeepTheirBits) {
  Numbers numbers(35);
  const std::int64_t rows = 200;
  const std::int64_t out = 72;
  const std::int64_t in = 2880;
  const auto x = upload(numbers.floats(rows * in));
  const auto y = memory<float>(rows * out);
  for (const Format format : {Format::kQ4, Format::kQ8, Format::kQ3, Format::kQ2}) {
    const Matrix w = upload(random_matrix(numbers, format, out, in, 64));
    backend().linear(w, x, rows, y);
    const auto together = download(y, rows * out);
    for (const std::int64_t row : {0, 7, 63, 64, 127, 128, 191, 192, 199}) {
      backend().linear(w, x + row * in, 1, y);
      EXPECT_EQ(bits_of_values(download(y, out)),
                bits_of_values(std::span(together).subspan(static_cast<std::size_t>(row * out),
                                                           static_cast<std::size_t>(out))))
          << bits_of(format) << " bits, row " << row;
    }
  }
}

// Activations of any size a float has: they are scaled before they are rounded.
TEST_P(Blocks, LargeAndSmallActivationsKeepTheirPrecision) {
  Numbers numbers(33);
  const HostMatrix m = random_matrix(numbers, Format::kQ4, 80, 512, 64);
  for (const float size : {1e-30F, 1e-6F, 1e7F, 1e30F}) {
    auto x = numbers.floats(512, -size, size);
    for (std::size_t i = 256; i < 512; ++i) x[i] *= 1e-3F;  // each segment has its own scale
    const auto y = memory<float>(80);
    backend().linear(upload(m), upload(x), 1, y);
    EXPECT_LT(error(m, x, 1, download(y, 80)), rounded(2e-6)) << size;
  }
  const auto y = memory<float>(80);
  backend().linear(upload(m), upload(std::vector<float>(512)), 1, y);
  EXPECT_EQ(download(y, 80), std::vector<float>(80));
}

// One row at a time against all at once: few rows of an expert, and many.
TEST_P(Blocks, ARowsExpertsDoNotDependOnTheRowsBesideIt) {
  Numbers numbers(34);
  const ExpertGeometry geometry{192, 128, 64};
  const std::int64_t rows = 90;
  const std::int64_t slots = 2;
  std::vector<ExpertEntry> entries;
  std::vector<std::vector<std::uint32_t>> chosen(4);  // rows of each expert: 90, 45, 45 and none
  for (std::uint32_t r = 0; r < rows; ++r) {
    chosen[0].push_back(r);
    chosen[1 + r % 2].push_back(r);
  }
  for (const Format format : {Format::kQ4, Format::kQ3, Format::kQ2, Format::kBf16}) {
    const RecordLayout layout{geometry, format};
    std::vector<std::byte> record(static_cast<std::size_t>(layout.bytes()));
    for (int which = 0; which < 3; ++which) {
      const HostMatrix m = random_matrix(numbers, format, which == 2 ? 192 : 128, which == 2 ? 128 : 192, 64);
      std::copy(m.data.begin(), m.data.end(), record.begin() + layout.matrix_offset(which));
      if (m.scales.empty()) continue;
      std::memcpy(record.data() + layout.scales_offset(which), m.scales.data(), m.scales.size() * 2);
      std::memcpy(record.data() + layout.biases_offset(which), m.biases.data(), m.biases.size() * 2);
    }
    entries.push_back(ExpertEntry::make(upload(record).address(), format));
  }
  const auto x = upload(numbers.floats(rows * geometry.hidden));
  const auto run = [&](std::uint32_t first, std::uint32_t count) {
    std::vector<std::uint32_t> begin{0};
    std::vector<std::uint32_t> pair_row;
    std::vector<std::uint32_t> pair_slot;
    for (std::size_t e = 0; e < entries.size(); ++e) {
      for (const std::uint32_t r : chosen[e]) {
        if (r < first || r >= first + count) continue;
        pair_row.push_back(r - first);
        pair_slot.push_back(e == 0 ? 0 : 1);
      }
      begin.push_back(static_cast<std::uint32_t>(pair_row.size()));
    }
    const ExpertBatch batch{geometry,         count, slots, upload(entries), upload(begin), upload(pair_row),
                            upload(pair_slot)};
    const auto y = memory<float>(count * slots * geometry.hidden);
    backend().experts(batch, 0, static_cast<std::int64_t>(entries.size()), begin.back(),
                      x + first * geometry.hidden, y);
    return download(y, count * slots * geometry.hidden);
  };
  std::vector<float> alone;
  for (std::uint32_t r = 0; r < rows; ++r) {
    const auto row = run(r, 1);
    alone.insert(alone.end(), row.begin(), row.end());
  }
  EXPECT_EQ(bits_of_values(run(0, rows)), bits_of_values(alone));
}

SLUICE_ON_EVERY_BACKEND(Blocks);
INSTANTIATE_TEST_SUITE_P(Narrow, Blocks, testing::Values(BackendChoice{"emulated_narrow"}), choice_name);

}  // namespace
}  // namespace sluice::backend
