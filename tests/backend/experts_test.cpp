// Router and experts: exact choices, and outputs that do not depend on company, order or placement.
#include <algorithm>
#include <limits>
#include <numeric>

#include "backend/on_backend.h"

namespace sluice::backend {
namespace {

class Router : public OnBackend {};

/// The definition: sort by (value descending, index ascending), NaN after every number.
std::vector<std::uint32_t> sorted(const std::vector<float>& row) {
  std::vector<std::uint32_t> order(row.size());
  std::iota(order.begin(), order.end(), 0U);
  std::stable_sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
    if (std::isnan(row[a])) return false;
    return std::isnan(row[b]) || row[a] > row[b];
  });
  return order;
}

TEST_P(Router, ChoosesWhatASortWouldAtAnySize) {
  Numbers numbers(1);
  for (const std::int64_t n : {4, 10, 16, 31, 40, 96, 512, 513}) {
    for (const std::int64_t k :
         {std::int64_t{1}, std::int64_t{3}, std::int64_t{4}, std::int64_t{8}, std::int64_t{10}, n}) {
      if (k > n) continue;
      for (const std::int64_t rows : {1, 3, 8}) {
        std::vector<float> logits;
        std::vector<std::uint32_t> expected;
        for (std::int64_t r = 0; r < rows; ++r) {
          std::vector<float> row(static_cast<std::size_t>(n));
          // Few levels, so that most choices are among equals, and some NaN.
          for (float& v : row) {
            v = numbers.below(12) == 0 ? NAN
                                       : static_cast<float>(numbers.below(r % 2 == 0 ? 9 : 1000)) * 0.01F;
          }
          const auto order = sorted(row);
          expected.insert(expected.end(), order.begin(), order.begin() + k);
          logits.insert(logits.end(), row.begin(), row.end());
        }
        const auto index = memory<std::uint32_t>(rows * k);
        const auto weight = memory<float>(rows * k);
        backend().router_topk(upload(logits), rows, n, k, true, index, weight);
        EXPECT_EQ(download(index, rows * k), expected) << n << " " << k;
      }
    }
  }
}

TEST_P(Router, TopTenOf512SumsToOneAndKeepsTheSoftmax) {
  Numbers numbers(2);
  const std::int64_t rows = 8;
  const auto logits = numbers.floats(rows * 512, -6, 6);
  const auto index = memory<std::uint32_t>(rows * 10);
  const auto weight = memory<float>(rows * 10);
  for (const bool renormalise : {true, false}) {
    backend().router_topk(upload(logits), rows, 512, 10, renormalise, index, weight);
    const auto chosen = download(index, rows * 10);
    const auto found = download(weight, rows * 10);
    std::vector<float> expected;
    for (std::size_t r = 0; r < static_cast<std::size_t>(rows); ++r) {
      double total = 0;
      for (std::size_t i = 0; i < 512; ++i) total += std::exp(static_cast<double>(logits[r * 512 + i]));
      double kept = 0;
      for (std::size_t i = 0; i < 10; ++i)
        kept += std::exp(static_cast<double>(logits[r * 512 + chosen[r * 10 + i]]));
      for (std::size_t i = 0; i < 10; ++i) {
        const double power = std::exp(static_cast<double>(logits[r * 512 + chosen[r * 10 + i]]));
        expected.push_back(static_cast<float>(power / (renormalise ? kept : total)));
      }
    }
    EXPECT_LT(relative_l2(found, expected), 2e-6);
  }
}

TEST_P(Router, ExtremeAndUnusableLogitsGiveUsableWeights) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  const std::vector<float> logits{NAN,    NAN,    NAN,    NAN,    //
                                  -kInf,  -kInf,  -kInf,  -kInf,  //
                                  1e30F,  -1e30F, 1e30F,  0,      //
                                  NAN,    -3,     NAN,    NAN,    //
                                  -3e38F, -3e38F, -3e38F, 3e38F};
  const auto index = memory<std::uint32_t>(5 * 2);
  const auto weight = memory<float>(5 * 2);
  for (const bool renormalise : {true, false}) {
    backend().router_topk(upload(logits), 5, 4, 2, renormalise, index, weight);
    EXPECT_EQ(download(index, 10), (std::vector<std::uint32_t>{0, 1, 0, 1, 0, 2, 1, 0, 3, 0}));
    for (const float w : download(weight, 10)) {
      EXPECT_TRUE(w >= 0 && w <= 1) << w;
    }
  }
  EXPECT_EQ(download(weight, 10)[6], 1);  // the one number among NaN takes everything
}

SLUICE_ON_EVERY_BACKEND(Router);

/// Random experts in records of chosen formats, and the rows' choices.
struct ExpertSetup {
  ExpertGeometry geometry{64, 96, 32};
  std::int64_t rows = 0, slots = 0;
  std::vector<Format> formats;
  std::vector<HostMatrix> matrices;  // gate, up, down of each expert
  std::vector<std::vector<std::byte>> records;
  std::vector<std::vector<std::uint32_t>> chosen;  // [row] ascending expert ids
};

class Experts : public OnBackend {
 protected:
  static ExpertSetup make(std::uint32_t seed, std::int64_t rows, std::int64_t slots, std::int64_t experts) {
    Numbers numbers(seed);
    ExpertSetup s;
    s.rows = rows;
    s.slots = slots;
    for (std::int64_t e = 0; e < experts; ++e) {
      const Format format = kEveryFormat[static_cast<std::size_t>(e) % std::size(kEveryFormat)];
      const RecordLayout layout{s.geometry, format};
      std::vector<std::byte> record(static_cast<std::size_t>(layout.bytes()));
      for (int which = 0; which < 3; ++which) {
        const bool down = which == 2;
        HostMatrix m = random_matrix(numbers, format, down ? s.geometry.hidden : s.geometry.inter,
                                     down ? s.geometry.inter : s.geometry.hidden, s.geometry.group);
        std::copy(m.data.begin(), m.data.end(), record.begin() + layout.matrix_offset(which));
        const auto put = [&record](std::int64_t offset, const std::vector<std::uint16_t>& from) {
          if (!from.empty()) std::memcpy(record.data() + offset, from.data(), from.size() * 2);
        };
        put(layout.scales_offset(which), m.scales);
        put(layout.biases_offset(which), m.biases);
        s.matrices.push_back(std::move(m));
      }
      s.formats.push_back(format);
      s.records.push_back(std::move(record));
    }
    for (std::int64_t r = 0; r < rows; ++r) {
      std::vector<std::uint32_t> ids;
      while (static_cast<std::int64_t>(ids.size()) < slots) {
        const std::uint32_t id = numbers.below(static_cast<std::uint32_t>(experts));
        if (std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(id);
      }
      std::sort(ids.begin(), ids.end());
      s.chosen.push_back(ids);
    }
    return s;
  }

  std::vector<Dev<std::byte>> upload_records(const ExpertSetup& s) {
    std::vector<Dev<std::byte>> all;
    for (const auto& record : s.records) all.push_back(upload(record));
    return all;
  }

  /// Runs the union in the given order of experts, cut into calls at the given places, and combines.
  std::vector<float> run(const ExpertSetup& s, const std::vector<Dev<std::byte>>& records,
                         const std::vector<std::uint32_t>& order, const std::vector<std::int64_t>& cuts,
                         Dev<float> x, Dev<float> weight, std::int64_t first_row, std::int64_t rows) {
    std::vector<ExpertEntry> entries;
    std::vector<std::uint32_t> begin{0};
    std::vector<std::uint32_t> pair_row;
    std::vector<std::uint32_t> pair_slot;
    for (const std::uint32_t e : order) {
      for (std::int64_t r = 0; r < rows; ++r) {
        const auto& ids = s.chosen[static_cast<std::size_t>(first_row + r)];
        const auto found = std::find(ids.begin(), ids.end(), e);
        if (found == ids.end()) continue;
        pair_row.push_back(static_cast<std::uint32_t>(r));
        pair_slot.push_back(static_cast<std::uint32_t>(found - ids.begin()));
      }
      entries.push_back(ExpertEntry::make(records[e].address(), s.formats[e]));
      begin.push_back(static_cast<std::uint32_t>(pair_row.size()));
    }
    ExpertBatch batch{s.geometry,       rows, s.slots, upload(entries), upload(begin), upload(pair_row),
                      upload(pair_slot)};
    const std::int64_t hidden = s.geometry.hidden;
    const auto y = upload(std::vector<float>(static_cast<std::size_t>(rows * s.slots * hidden), NAN));
    std::int64_t from = 0;
    for (std::size_t i = 0; i <= cuts.size(); ++i) {
      const std::int64_t to = i < cuts.size() ? cuts[i] : static_cast<std::int64_t>(order.size());
      const std::int64_t pairs =
          std::int64_t{begin[static_cast<std::size_t>(to)]} - begin[static_cast<std::size_t>(from)];
      backend().experts(batch, from, to, pairs, x + first_row * hidden, y);
      from = to;
    }
    const auto out = memory<float>(rows * hidden);
    backend().combine_experts(y, weight + first_row * s.slots, rows, s.slots, hidden, out);
    return download(out, rows * hidden);
  }

  static std::vector<std::uint32_t> ascending(const ExpertSetup& s) {
    std::vector<std::uint32_t> order(s.records.size());
    std::iota(order.begin(), order.end(), 0U);
    return order;
  }
};

TEST_P(Experts, MatchTheFormulaInEveryFormat) {
  Numbers numbers(3);
  const ExpertSetup s = make(4, 5, 4, 12);
  const std::int64_t hidden = s.geometry.hidden;
  const std::int64_t inter = s.geometry.inter;
  const auto x = numbers.floats(s.rows * hidden);
  const auto weight = numbers.floats(s.rows * s.slots, 0.1F, 1);
  std::vector<float> expected;
  for (std::int64_t r = 0; r < s.rows; ++r) {
    std::vector<double> sum(static_cast<std::size_t>(hidden));
    const auto dot = [](const float* a, const auto* b, std::int64_t count) {
      double total = 0;
      for (std::int64_t i = 0; i < count; ++i) total += static_cast<double>(a[i]) * b[i];
      return total;
    };
    for (std::int64_t slot = 0; slot < s.slots; ++slot) {
      const std::size_t e = s.chosen[static_cast<std::size_t>(r)][static_cast<std::size_t>(slot)];
      std::vector<double> h;
      for (std::int64_t o = 0; o < inter; ++o) {
        const float* in = x.data() + r * hidden;
        const double gate = dot(s.matrices[3 * e].values.data() + o * hidden, in, hidden);
        const double up = dot(s.matrices[3 * e + 1].values.data() + o * hidden, in, hidden);
        h.push_back(gate / (1 + std::exp(-gate)) * up);
      }
      for (std::int64_t o = 0; o < hidden; ++o) {
        sum[static_cast<std::size_t>(o)] +=
            weight[static_cast<std::size_t>(r * s.slots + slot)] *
            dot(s.matrices[3 * e + 2].values.data() + o * inter, h.data(), inter);
      }
    }
    for (const double v : sum) expected.push_back(static_cast<float>(v));
  }
  const auto found = run(s, upload_records(s), ascending(s), {}, upload(x), upload(weight), 0, s.rows);
  EXPECT_LT(relative_l2(found, expected), rounded(5e-6));
}

TEST_P(Experts, TheSumDoesNotDependOnWhichRecordsArriveFirst) {
  Numbers numbers(5);
  const ExpertSetup s = make(6, 4, 5, 14);
  const auto records = upload_records(s);
  const auto x = upload(numbers.floats(s.rows * s.geometry.hidden));
  const auto weight = upload(numbers.floats(s.rows * s.slots, 0.1F, 1));
  const auto whole = bits_of_values(run(s, records, ascending(s), {}, x, weight, 0, s.rows));
  for (std::int64_t cut = 0; cut <= 14; ++cut) {
    EXPECT_EQ(bits_of_values(run(s, records, ascending(s), {cut}, x, weight, 0, s.rows)), whole) << cut;
  }
  auto order = ascending(s);
  for (int trial = 0; trial < 8; ++trial) {
    for (std::size_t i = order.size(); i > 1; --i)
      std::swap(order[i - 1], order[numbers.below(static_cast<std::uint32_t>(i))]);
    const std::int64_t cut = numbers.below(14);
    EXPECT_EQ(bits_of_values(run(s, records, order, {cut, cut + 1}, x, weight, 0, s.rows)), whole);
  }
}

TEST_P(Experts, ARowsBitsDoNotDependOnTheRowsBesideIt) {
  Numbers numbers(7);
  const ExpertSetup s = make(8, 97, 4, 6);  // many pairs an entry
  const auto records = upload_records(s);
  const std::int64_t hidden = s.geometry.hidden;
  const auto x = upload(numbers.floats(s.rows * hidden));
  const auto weight = upload(numbers.floats(s.rows * s.slots, 0.1F, 1));
  std::vector<float> alone;
  for (std::int64_t r = 0; r < s.rows; ++r) {
    const auto row = run(s, records, ascending(s), {}, x, weight, r, 1);
    alone.insert(alone.end(), row.begin(), row.end());
  }
  for (const std::int64_t rows : {1, 2, 3, 4, 5, 7, 8, 9, 11, 12, 13, 19, 40, 60, 61, 90, 97}) {
    const auto together = run(s, records, ascending(s), {}, x, weight, 0, rows);
    EXPECT_EQ(bits_of_values(together), bits_of_values(std::span(alone).first(together.size()))) << rows;
  }
}

TEST_P(Experts, MovingARecordChangesNothing) {
  Numbers numbers(9);
  const ExpertSetup s = make(10, 3, 4, 8);
  const auto x = upload(numbers.floats(s.rows * s.geometry.hidden));
  const auto weight = upload(numbers.floats(s.rows * s.slots, 0.1F, 1));
  const auto first = run(s, upload_records(s), ascending(s), {}, x, weight, 0, s.rows);
  const auto second = run(s, upload_records(s), ascending(s), {}, x, weight, 0, s.rows);
  EXPECT_EQ(bits_of_values(first), bits_of_values(second));
}

TEST_P(Experts, AnEntryWithoutPairsIsNotRead) {
  const ExpertSetup s = make(11, 1, 1, 2);
  const auto x = upload(Numbers(12).floats(s.geometry.hidden));
  const std::vector<ExpertEntry> entries{ExpertEntry::make(nullptr, Format::kQ4)};
  const std::vector<std::uint32_t> begin{0, 0};
  const ExpertBatch batch{
      s.geometry, 1, 1, upload(entries), upload(begin), memory<std::uint32_t>(1), memory<std::uint32_t>(1)};
  const auto y = upload(std::vector<float>(static_cast<std::size_t>(s.geometry.hidden), 3.0F));
  backend().experts(batch, 0, 1, 0, x, y);
  backend().experts(batch, 1, 1, 0, x, y);
  EXPECT_EQ(download(y, s.geometry.hidden),
            std::vector<float>(static_cast<std::size_t>(s.geometry.hidden), 3.0F));
}

TEST_P(Experts, CombineSkipsSlotsOfWeightZeroWhateverTheyHold) {
  const std::vector<float> y{1,   2,   NAN, NAN, 3,   4,  //
                             NAN, NAN, NAN, NAN, NAN, NAN};
  const std::vector<float> weight{0.5F, 0, 2, 0, 0, 0};
  const auto out = upload(std::vector<float>{9, 9, 9, 9});
  backend().combine_experts(upload(y), upload(weight), 2, 3, 2, out);
  EXPECT_EQ(download(out, 4), (std::vector<float>{6.5F, 9, 0, 0}));
}

SLUICE_ON_EVERY_BACKEND(Experts);

}  // namespace
}  // namespace sluice::backend
