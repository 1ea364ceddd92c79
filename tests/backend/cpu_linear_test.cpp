// Projections and experts of the CPU backend at the widths of the released model.
#include <numeric>

#include "backend/cpu_on_target.h"

namespace sluice::backend {
namespace {

class CpuLinear : public OnTarget {};
constexpr double kRounded = 1e-4;  // outputs of experts are rounded twice and pass a silu
SLUICE_ON_EVERY_TARGET(CpuLinear);

TEST_P(CpuLinear, EveryFormatAgreesWithTheReferenceAtRealWidths) {
  Numbers numbers(1);
  for (const Format format : kEveryFormat) {
    for (const std::int64_t in : {640, 2560, 10240}) {
      const auto m = random_matrix(numbers, format, in == 2560 ? 515 : 37, in, 64);
      for (const std::int64_t rows : {1, 3, 61}) {
        SCOPED_TRACE(testing::Message()
                     << "format " << static_cast<int>(format) << ", in " << in << ", rows " << rows);
        const auto x = numbers.floats(rows * in);
        check(rows * m.out, {5e-7, kRounded},
              [&](Backend& b, std::vector<float>& y) { b.linear(view(m), dev(x), rows, dev(y)); });
      }
    }
  }
}

TEST_P(CpuLinear, OddWidthsAndGroups) {
  Numbers numbers(2);
  const auto check_one = [&](Format format, std::int64_t out, std::int64_t in, int group) {
    const auto m = random_matrix(numbers, format, out, in, group);
    for (const std::int64_t rows : {1, 2, 7, 9}) {
      SCOPED_TRACE(testing::Message() << "format " << static_cast<int>(format) << ", " << out << " x " << in
                                      << ", groups of " << group << ", rows " << rows);
      const auto x = numbers.floats(rows * in);
      check(rows * out, {1e-6, kRounded},
            [&](Backend& b, std::vector<float>& y) { b.linear(view(m), dev(x), rows, dev(y)); });
    }
  };
  for (const Format format : {Format::kF32, Format::kBf16}) {
    for (const std::int64_t in : {1, 5, 31, 33, 100, 513, 2561}) check_one(format, 6, in, 64);
  }
  for (const Format format : {Format::kQ4, Format::kQ8, Format::kQ3, Format::kQ2}) {
    check_one(format, 1, 32, 32);
    check_one(format, 3, 352, 32);
    check_one(format, 5, 640, 128);
    check_one(format, 18, 576, 96);
    check_one(format, 4, 2048, 1024);
    check_one(format, 7, 1600, 64);
  }
}

TEST_P(CpuLinear, ARowsBitsDoNotDependOnItsCompany) {
  Numbers numbers(3);
  const std::int64_t most = 97;
  for (const Format format : kEveryFormat) {
    const std::int64_t in = format == Format::kF32 ? 2570 : 2560;
    const auto m = random_matrix(numbers, format, 50, in, 64);
    const auto x = numbers.floats(most * in);
    for (auto* team : {&exact_, &rounding_}) {
      std::vector<float> alone(static_cast<std::size_t>(most * m.out));
      for (std::int64_t r = 0; r < most; ++r) {
        (*team)[0].linear(view(m), dev(x) + r * in, 1, dev(alone) + r * m.out);
      }
      for (const std::int64_t rows : {2, 3, 4, 5, 6, 7, 8, 9, 13, 33, 64, 97}) {
        std::vector<float> together(static_cast<std::size_t>(rows * m.out));
        (*team)[1].linear(view(m), dev(x), rows, dev(together));
        EXPECT_EQ(bits_of_values(together), bits_of_values(std::span(alone).first(together.size())))
            << "format " << static_cast<int>(format) << ", rows " << rows;
      }
    }
  }
}

TEST_P(CpuLinear, SiluOfTheBottleneck) {
  Numbers numbers(4);
  const auto m = random_matrix(numbers, Format::kQ4, 320, 10240, 64);
  const auto x = numbers.floats(2 * 10240, -0.1F, 0.1F);
  check(2 * 320, {1e-6, kRounded},
        [&](Backend& b, std::vector<float>& y) { b.linear_silu(view(m), dev(x), 2, 4, dev(y)); });
}

TEST_P(CpuLinear, EmbeddedRowsAreTheExactWeights) {
  Numbers numbers(5);
  const std::vector<std::int32_t> ids{6, 0, 3};
  for (const Format format : kEveryFormat) {
    const auto m = random_matrix(numbers, format, 7, format == Format::kBf16 ? 77 : 2560, 64);
    check(3 * m.in, 0,
          [&](Backend& b, std::vector<float>& out) { b.embed_rows(view(m), dev(ids), 3, dev(out)); });
  }
}

/// Random records of mixed formats, and rows that choose among them.
class ExpertCase {
 public:
  ExpertCase(Numbers& numbers, ExpertGeometry geometry, std::span<const Format> formats, std::int64_t rows,
             std::int64_t slots)
      : geometry_(geometry), rows_(rows), slots_(slots) {
    for (const Format format : formats) {
      std::vector<std::byte> record(static_cast<std::size_t>(RecordLayout{geometry, format}.bytes()));
      const RecordParts parts = record_parts({geometry, format}, dev(std::as_const(record)));
      for (const Matrix* part : {&parts.gate, &parts.up, &parts.down}) {
        const auto m = random_matrix(numbers, format, part->out, part->in, geometry.group);
        const auto put = [&](const void* to, const auto& from) {
          if (!from.empty()) {
            std::memcpy(const_cast<void*>(to), from.data(), from.size() * sizeof(from[0]));
          }
        };
        put(part->data.address(), m.data);
        put(part->scales.address(), m.scales);
        put(part->biases.address(), m.biases);
      }
      records_.push_back(std::move(record));
      entries_.push_back(ExpertEntry::make(records_.back().data(), format));
    }
    // Row r takes `slots` neighbouring entries from a random one on.
    std::vector<std::vector<std::pair<std::uint32_t, std::uint32_t>>> chosen(formats.size());
    for (std::int64_t r = 0; r < rows; ++r) {
      const std::uint32_t from = numbers.below(static_cast<std::uint32_t>(formats.size()));
      for (std::int64_t s = 0; s < slots; ++s) {
        chosen[(from + static_cast<std::size_t>(s)) % formats.size()].emplace_back(r, s);
      }
    }
    for (const auto& pairs : chosen) {
      begin_.push_back(static_cast<std::uint32_t>(pair_row_.size()));
      for (const auto& [row, slot] : pairs) {
        pair_row_.push_back(row);
        pair_slot_.push_back(slot);
      }
    }
    begin_.push_back(static_cast<std::uint32_t>(pair_row_.size()));
    x_ = numbers.floats(rows * geometry.hidden, -0.2F, 0.2F);
  }

  [[nodiscard]] ExpertBatch batch() const {
    return {geometry_, rows_, slots_, dev(entries_), dev(begin_), dev(pair_row_), dev(pair_slot_)};
  }
  [[nodiscard]] std::int64_t outputs() const { return rows_ * slots_ * geometry_.hidden; }
  [[nodiscard]] std::int64_t entries() const { return static_cast<std::int64_t>(entries_.size()); }
  [[nodiscard]] std::int64_t pairs() const { return static_cast<std::int64_t>(pair_row_.size()); }
  [[nodiscard]] Dev<const float> x() const { return dev(x_); }

 private:
  ExpertGeometry geometry_;
  std::int64_t rows_, slots_;
  std::vector<std::vector<std::byte>> records_;
  std::vector<ExpertEntry> entries_;
  std::vector<std::uint32_t> begin_, pair_row_, pair_slot_;
  std::vector<float> x_;
};

TEST_P(CpuLinear, ExpertsAtRealWidths) {
  Numbers numbers(6);
  const Format formats[] = {Format::kQ4, Format::kQ3, Format::kQ2};
  const ExpertCase c(numbers, {2560, 640, 64}, formats, 2, 2);
  check(c.outputs(), {1e-6, kRounded}, [&](Backend& b, std::vector<float>& y) {
    b.experts(c.batch(), 0, c.entries(), c.pairs(), c.x(), dev(y));
  });
}

TEST_P(CpuLinear, ExpertsOfEveryFormatForManyRowsAndOddSizes) {
  Numbers numbers(7);
  for (const std::int64_t rows : {1, 5, 33, 150}) {
    const ExpertCase c(numbers, {128, 96, 32}, kEveryFormat, rows, 3);
    check(c.outputs(), {1e-6, kRounded}, [&](Backend& b, std::vector<float>& y) {
      b.experts(c.batch(), 0, c.entries(), c.pairs(), c.x(), dev(y));
    });
  }
  const Format floats[] = {Format::kF32, Format::kBf16};
  const ExpertCase odd(numbers, {50, 37, 64}, floats, 4, 2);
  check(odd.outputs(), 1e-6, [&](Backend& b, std::vector<float>& y) {
    b.experts(odd.batch(), 0, odd.entries(), odd.pairs(), odd.x(), dev(y));
  });
}

TEST_P(CpuLinear, LateExpertsGetTheSameBits) {
  Numbers numbers(8);
  const ExpertCase c(numbers, {256, 64, 64}, kEveryFormat, 20, 4);
  for (auto* team : {&exact_, &rounding_}) {
    std::vector<float> at_once(static_cast<std::size_t>(c.outputs()));
    (*team)[1].experts(c.batch(), 0, c.entries(), c.pairs(), c.x(), dev(at_once));
    std::vector<float> in_parts(at_once.size());
    const auto batch = c.batch();
    for (std::int64_t u = 0; u < c.entries(); ++u) {
      const std::int64_t pairs = batch.begin.address()[u + 1] - std::int64_t{batch.begin.address()[u]};
      (*team)[0].experts(batch, u, u + 1, pairs, c.x(), dev(in_parts));
    }
    EXPECT_EQ(bits_of_values(in_parts), bits_of_values(at_once));
  }
}

TEST_P(CpuLinear, AnExpertsRowHasTheSameBitsInEveryBatch) {
  Numbers numbers(9);
  const Format formats[] = {Format::kQ4};
  const ExpertCase many(numbers, {2560, 640, 64}, formats, 70, 1);
  std::vector<float> together(static_cast<std::size_t>(many.outputs()));
  std::vector<float> rounded(together.size());
  exact_[2].experts(many.batch(), 0, 1, many.pairs(), many.x(), dev(together));
  rounding_[2].experts(many.batch(), 0, 1, many.pairs(), many.x(), dev(rounded));
  for (const std::int64_t count : {1, 2, 3, 5, 7, 8, 9}) {
    std::vector<std::uint32_t> rows(static_cast<std::size_t>(count));
    std::iota(rows.begin(), rows.end(), 0U);
    const std::vector<std::uint32_t> begin{0, static_cast<std::uint32_t>(count)};
    const std::vector<std::uint32_t> slots(rows.size());
    ExpertBatch batch = many.batch();
    batch.rows = count;
    batch.begin = dev(begin);
    batch.pair_row = dev(std::as_const(rows));
    batch.pair_slot = dev(slots);
    std::vector<float> few(static_cast<std::size_t>(count * 2560));
    exact_[0].experts(batch, 0, 1, count, many.x(), dev(few));
    EXPECT_EQ(bits_of_values(few), bits_of_values(std::span(together).first(few.size()))) << count << " rows";
    rounding_[0].experts(batch, 0, 1, count, many.x(), dev(few));
    EXPECT_EQ(bits_of_values(few), bits_of_values(std::span(rounded).first(few.size()))) << count << " rows";
  }
}

TEST_P(CpuLinear, AnEntryNobodyChoseIsNotRead) {
  const std::vector<ExpertEntry> entries{ExpertEntry::make(nullptr, Format::kQ4)};
  const std::vector<std::uint32_t> begin{0, 0};
  const ExpertBatch batch{{256, 64, 64}, 1, 1, dev(entries), dev(begin), {}, {}};
  one_.experts(batch, 0, 1, 0, {}, {});
}

}  // namespace
}  // namespace sluice::backend
