// The emulated device itself: that it computes what the dialect says, and finds what kernels do wrong.
#include "backend/gpu/emulated/emulated_device.h"

#include <gmock/gmock.h>

#include <array>
#include <cmath>
#include <limits>

#include "backend/gpu/emulated/grid.h"
#include "backend/on_backend.h"
#include "dialect/composed.h"
#include "kernels/dialect_kernels.h"

namespace sluice::kernels {
namespace {

struct TouchArgs {
  Global<f32> x;
  i64 at;
};
KERNEL(read_one, TouchArgs, 32) {
  KERNEL_THREAD(t);
  if (t.index == 5 && t.group_x == 2) args.x[0] = args.x[args.at];
}
KERNEL(write_one, TouchArgs, 32) {
  KERNEL_THREAD(t);
  if (t.index == 5 && t.group_x == 2) args.x[args.at] = 1;
}
KERNEL(read_four, TouchArgs, 32) {
  KERNEL_THREAD(t);
  if (t.index == 5 && t.group_x == 2) args.x[0] = load4f(args.x, args.at).x;
}
KERNEL(write_two, TouchArgs, 32) {
  KERNEL_THREAD(t);
  if (t.index == 5 && t.group_x == 2) store2(args.x, args.at, u32x2{1, 2});
}
KERNEL(touch_shared, TouchArgs, 32) {
  KERNEL_THREAD(t);
  SHARED(f32, kept, 32);
  if (t.index == 5 && t.group_x == 2) kept[args.at] = 1;
}
KERNEL(read_four_shared, TouchArgs, 32) {
  KERNEL_THREAD(t);
  SHARED(f32, kept, 32);
  kept[t.index] = 1;
  barrier(t);
  if (t.index == 5 && t.group_x == 2) args.x[0] = load4f(kept, args.at).x;
}
KERNEL(read_unwritten_shared, TouchArgs, 32) {
  KERNEL_THREAD(t);
  SHARED(f32, kept, 32);
  if (t.index == 0) args.x[t.group_x] = kept[args.at];
}
KERNEL(too_much_shared, TouchArgs, 32) {
  KERNEL_THREAD(t);
  SHARED(f32, first, emulated::kSharedBytes / 4);
  SHARED(f32, second, 4);
  if (args.at != 0) first[0] = second[0];
}

struct WaysArgs {
  i64 way;
};
KERNEL(part_ways, WaysArgs, 64) {
  KERNEL_THREAD(t);
  SHARED(f32, each, 2);
  switch (args.way) {
    case 0:  // one thread leaves before a barrier
      if (t.index == 7) return;
      barrier(t);
      return;
    case 1:  // a SIMD group does not come to the barrier
      if (t.simd == 0) barrier(t);
      return;
    case 2:  // a lane leaves before a collective
      if (t.lane == 7) return;
      simd_sum(t, 1);
      return;
    case 3:  // a lane is at another collective
      if (t.lane == 7) {
        simd_ballot(t, true);
      } else {
        simd_sum(t, 1);
      }
      return;
    case 4:  // a half of the lanes waits at a barrier, the others for their SIMD group
      if (t.lane < 16) {
        barrier(t);
      } else {
        simd_barrier(t);
      }
      return;
    case 5:  // SIMD groups wait at different places, which ends well
      if (t.simd == 0) simd_sum(t, 1);
      barrier(t);
      group_sum(t, 1, each, 2);
      return;
    default:
      return;
  }
}

/// Units of 8x8 tiles as Metal's, made of shuffles.
template <bool kBfloat>
struct PlainTiles {
  static f32 number(u32 word, u32 which) {
    const auto bits = static_cast<u16>(which == 0 ? word & 0xffffU : word >> 16);
    return kBfloat ? f32_of_bf16(bits) : f32_of_half(bits);
  }
  static TilePair multiply(const Thread& t, u32 a0, u32 b0, u32 a1, u32 b1) {
    const u32 row = tile_row(t.lane);
    const u32 column = tile_column(t.lane);
    TilePair sum{0, 0};
    for (u32 k = 0; k < 16; ++k) {
      const u32 a = simd_shuffle(t, k < 8 ? a0 : a1, tile_lane(row, k % 8 / 2 * 2));
      const u32 b = simd_shuffle(t, k < 8 ? b0 : b1, tile_lane(k % 8, column));
      sum.x += number(a, k % 2) * number(b, 0);
      sum.y += number(a, k % 2) * number(b, 1);
    }
    return sum;
  }
};
template <bool kBfloat>
void multiply_tiles(const ProbeMmaArgs& args, const Thread& t, Global<f32> to) {
  MmaA a;
  MmaB b;
  MmaC c;
  for (u32 i = 0; i < 4; ++i) a.r[i] = args.a[t.lane * 4 + i];
  for (u32 i = 0; i < 2; ++i) b.r[i] = args.b[t.lane * 2 + i];
  for (u32 i = 0; i < 4; ++i) c.r[i] = to[t.lane * 4 + i];
  mma_of_tiles<PlainTiles<kBfloat>>(t, c, a, b);
  for (u32 i = 0; i < 4; ++i) to[t.lane * 4 + i] = c.r[i];
}
KERNEL(mma_by_tiles, ProbeMmaArgs, 32) {
  KERNEL_THREAD(t);
  multiply_tiles<false>(args, t, args.c_f16);
  multiply_tiles<true>(args, t, args.c_bf16);
}

}  // namespace
}  // namespace sluice::kernels

namespace sluice::gpu {
namespace {

using backend::bits_of_values;
using backend::Numbers;
using testing::AllOf;
using testing::HasSubstr;

/// Memory of an emulated device, and kernels that are not in its list.
class EmulatedDevice : public testing::Test {
 protected:
  void SetUp() override {
    auto opened = open_emulated_device(1);
    ASSERT_TRUE(opened.ok()) << opened.error().message;
    device_ = std::move(opened).value();
  }
  void TearDown() override {
    for (const std::uint64_t address : addresses_) device_->free(address);
  }

  Device& device() { return *device_; }

  template <class T>
  T* allocate(std::size_t count) {
    auto address = device_->allocate(count * sizeof(T));
    EXPECT_TRUE(address.ok());
    addresses_.push_back(*address);
    return reinterpret_cast<T*>(*address);
  }
  template <class T>
  T* upload(const std::vector<T>& values) {
    T* to = allocate<T>(values.size());
    device_->upload(reinterpret_cast<std::uint64_t>(to), std::as_bytes(std::span(values)));
    return to;
  }
  template <class T>
  std::vector<T> download(const T* from, std::size_t count) {
    std::vector<T> values(count);
    device_->download(std::as_writable_bytes(std::span(values)), reinterpret_cast<std::uint64_t>(from));
    return values;
  }

  /// What went wrong, or nothing.
  template <auto kKernel, class Args>
  std::string run(std::uint32_t threads, std::uint32_t groups, const Args& args, int at_once = 1) {
    emulated::GridRunner runner(at_once);
    return run<kKernel>(runner, threads, groups, args);
  }
  template <auto kKernel, class Args>
  std::string run(emulated::GridRunner& runner, std::uint32_t threads, std::uint32_t groups,
                  const Args& args) {
    try {
      runner.run(&emulated::Erased<kKernel>::run, &args, threads, {groups});
    } catch (const emulated::Fault& fault) {
      return fault.what();
    }
    return "";
  }
  template <auto kKernel>
  std::string touch(float* x, std::int64_t at) {
    return run<kKernel>(32, 4, kernels::TouchArgs{x, at});
  }

 private:
  std::unique_ptr<Device> device_;
  std::vector<std::uint64_t> addresses_;
};

class DeviceFault : public EmulatedDevice {};

TEST_F(DeviceFault, ReadsAndWritesOutOfBoundsNameGroupThreadAndPlace) {
  float* x = upload(std::vector<float>(10));
  EXPECT_EQ(touch<&kernels::read_one>(x, 9), "");
  EXPECT_EQ(touch<&kernels::write_one>(x, 9), "");
  EXPECT_THAT(touch<&kernels::read_one>(x, 10),
              AllOf(HasSubstr("group (2, 0, 0), thread 5: read of 4 bytes out of bounds"),
                    HasSubstr("offset 40 of an allocation of 40 bytes")));
  EXPECT_THAT(touch<&kernels::write_one>(x, 10),
              HasSubstr("group (2, 0, 0), thread 5: write of 4 bytes out of bounds"));
  EXPECT_THAT(touch<&kernels::read_one>(x, -1), HasSubstr("out of bounds"));
  EXPECT_THAT(touch<&kernels::write_one>(x, std::int64_t{1} << 40), HasSubstr("out of bounds"));
  EXPECT_THAT(touch<&kernels::read_one>(nullptr, 0), HasSubstr("a null address"));
}

TEST_F(DeviceFault, WideAccessesMustBeAlignedAndInside) {
  float* x = upload(std::vector<float>(10));
  EXPECT_EQ(touch<&kernels::read_four>(x, 4), "");
  EXPECT_THAT(touch<&kernels::read_four>(x, 5), HasSubstr("read of 16 bytes out of bounds or not aligned"));
  EXPECT_THAT(touch<&kernels::read_four>(x, 8), HasSubstr("read of 16 bytes out of bounds"));
  EXPECT_EQ(touch<&kernels::write_two>(x, 8), "");
  EXPECT_THAT(touch<&kernels::write_two>(x, 3), HasSubstr("write of 8 bytes out of bounds or not aligned"));
}

TEST_F(DeviceFault, WhatNothingHasWrittenIsNotRead) {
  float* x = allocate<float>(10);
  EXPECT_THAT(touch<&kernels::read_one>(x, 3), AllOf(HasSubstr("group (2, 0, 0), thread 5"),
                                                     HasSubstr("read of 4 bytes that nothing has written")));
  EXPECT_EQ(touch<&kernels::write_one>(x, 3), "");
  EXPECT_EQ(touch<&kernels::read_one>(x, 3), "");
  EXPECT_THAT(touch<&kernels::read_four>(x, 0), HasSubstr("nothing has written"));
  // A copy of it is as unwritten as it is.
  float* y = allocate<float>(10);
  device().copy(reinterpret_cast<std::uint64_t>(y), reinterpret_cast<std::uint64_t>(x), 40);
  EXPECT_EQ(touch<&kernels::read_one>(y, 3), "");
  EXPECT_THAT(touch<&kernels::read_one>(y, 4), HasSubstr("nothing has written"));
  device().fill(reinterpret_cast<std::uint64_t>(y), 0, 40);
  EXPECT_EQ(touch<&kernels::read_one>(y, 4), "");
}

TEST_F(DeviceFault, FreedMemoryIsNobodys) {
  auto address = device().allocate(40);
  ASSERT_TRUE(address.ok());
  device().fill(*address, 0, 40);
  auto* x = reinterpret_cast<float*>(*address);
  EXPECT_EQ(touch<&kernels::read_one>(x, 1), "");
  device().free(*address);
  EXPECT_THAT(touch<&kernels::read_one>(x, 1), HasSubstr("no memory of the device lies there"));
  // Allocated again, it is poisoned again.
  address = device().allocate(40);
  ASSERT_TRUE(address.ok());
  EXPECT_THAT(touch<&kernels::read_one>(reinterpret_cast<float*>(*address), 1),
              HasSubstr("nothing has written"));
  device().free(*address);
}

TEST_F(DeviceFault, SharedMemoryHasBounds) {
  float* x = upload(std::vector<float>(4));
  EXPECT_EQ(touch<&kernels::touch_shared>(x, 31), "");
  EXPECT_THAT(touch<&kernels::touch_shared>(x, 32),
              HasSubstr("group (2, 0, 0), thread 5: access to element 32 of a shared array of 32"));
  EXPECT_THAT(touch<&kernels::touch_shared>(x, -1), HasSubstr("element -1 of a shared array of 32"));
  EXPECT_EQ(touch<&kernels::read_four_shared>(x, 28), "");
  EXPECT_THAT(touch<&kernels::read_four_shared>(x, 29), HasSubstr("element 29"));
  EXPECT_THAT(touch<&kernels::read_four_shared>(x, 2), HasSubstr("not aligned"));
  EXPECT_THAT(touch<&kernels::too_much_shared>(x, 0), HasSubstr("bytes of shared memory, a group has"));
}

TEST_F(DeviceFault, UnwrittenSharedMemoryIsNaN) {
  float* x = upload(std::vector<float>(4));
  EXPECT_EQ(touch<&kernels::read_unwritten_shared>(x, 3), "");
  for (const float v : download(x, 4)) EXPECT_TRUE(std::isnan(v));
}

TEST_F(DeviceFault, ThreadsThatPartWaysAreReported) {
  const auto part = [this](std::int64_t way) {
    return run<&kernels::part_ways>(64, 2, kernels::WaysArgs{way});
  };
  EXPECT_THAT(part(0), AllOf(HasSubstr("group (0, 0, 0): threads have diverged"),
                             HasSubstr("thread 7 has returned"), HasSubstr("thread 8 waits at barrier")));
  EXPECT_THAT(part(1), AllOf(HasSubstr("thread 0 waits at barrier"), HasSubstr("thread 32 has returned")));
  EXPECT_THAT(part(2), AllOf(HasSubstr("thread 7 has returned"), HasSubstr("thread 8 waits at simd_sum")));
  EXPECT_THAT(part(3), AllOf(HasSubstr("thread 7: is at simd_ballot while thread 0 waits at simd_sum")));
  EXPECT_THAT(part(4), HasSubstr("waits at barrier"));
  EXPECT_EQ(part(5), "");
  EXPECT_EQ(part(6), "");
}

TEST_F(DeviceFault, ARunnerGoesOnAfterAFault) {
  emulated::GridRunner runner(2);
  EXPECT_NE(run<&kernels::part_ways>(runner, 64, 6, kernels::WaysArgs{0}), "");
  EXPECT_EQ(run<&kernels::part_ways>(runner, 64, 6, kernels::WaysArgs{5}), "");
}

TEST_F(DeviceFault, StatusNamesTheKernelAndAFailedDeviceStaysFailed) {
  const auto bytes = [](const auto* p) { return reinterpret_cast<std::uint64_t>(p); };
  float* x = upload(std::vector<float>{1, 2, 3, 4});
  const std::uint32_t* index = upload(std::vector<std::uint32_t>{1, 7});
  float* out = upload(std::vector<float>{5, 5, 5, 5});
  const kernels::GatherRowsArgs wrong{x, index, out, 2};
  EXPECT_TRUE(device().status().ok());
  device().launch(Kernel::gather_rows, {1, 2}, wrong);
  ASSERT_FALSE(device().status().ok());
  const std::string said = device().status().error().message;
  EXPECT_EQ(device().status().error().code, ErrorCode::kDevice);
  EXPECT_THAT(said, AllOf(HasSubstr("kernel gather_rows"), HasSubstr("group (0, 1, 0), thread 0"),
                          HasSubstr("read of 4 bytes out of bounds")));
  // Nothing happens any more, whatever is asked for; the first failure is the one that is told.
  device().launch(Kernel::silu_rows, {1}, kernels::SiluRowsArgs{nullptr, 1, 1});
  const std::vector<float> nine{9};
  device().upload(bytes(x), std::as_bytes(std::span(nine)));
  EXPECT_EQ(device().status().error().message, said);
  EXPECT_EQ(download(x, 4), std::vector<float>(4));
  EXPECT_EQ(device().status().error().message, said);
  // Another device knows nothing of it.
  auto other = open_emulated_device(1);
  ASSERT_TRUE(other.ok());
  EXPECT_TRUE((*other)->status().ok());
  std::vector<float> read(4);
  (*other)->download(std::as_writable_bytes(std::span(read)), bytes(x));
  EXPECT_EQ(read, (std::vector<float>{1, 2, 3, 4}));
}

TEST_F(DeviceFault, CommandsOfTheHostHaveBoundsToo) {
  float* x = upload(std::vector<float>(4));
  std::vector<float> read(5, 1);
  device().download(std::as_writable_bytes(std::span(read)), reinterpret_cast<std::uint64_t>(x));
  EXPECT_EQ(read, std::vector<float>(5));
  ASSERT_FALSE(device().status().ok());
  EXPECT_THAT(device().status().error().message, HasSubstr("download of 20 bytes out of bounds"));
}

TEST_F(DeviceFault, ALaunchWithoutGroupsOrWithOtherArgumentsIsRefused) {
  device().launch(Kernel::silu_rows, {0}, kernels::SiluRowsArgs{nullptr, 1, 1});
  ASSERT_FALSE(device().status().ok());
  EXPECT_THAT(device().status().error().message, HasSubstr("kernel silu_rows: launched with an empty grid"));
  auto other = open_emulated_device(1);
  ASSERT_TRUE(other.ok());
  (*other)->launch(Kernel::silu_rows, {1}, kernels::TouchArgs{nullptr, 1});
  EXPECT_FALSE((*other)->status().ok());
}

class Dialect : public EmulatedDevice {};

TEST_F(Dialect, LanesExchangeValues) {
  const std::vector<float> x = Numbers(1).floats(128);
  const kernels::ProbeSimdArgs args{upload(x),
                                    allocate<float>(128),
                                    allocate<float>(128),
                                    allocate<float>(128),
                                    allocate<float>(128),
                                    allocate<std::uint32_t>(128)};
  const auto at = [](auto global) { return reinterpret_cast<float*>(global.address()); };
  ASSERT_EQ(run<&kernels::probe_simd>(64, 2, args), "");
  const auto sum = download(at(args.sum), 128);
  const auto max = download(at(args.max), 128);
  const auto reversed = download(at(args.reversed), 128);
  const auto neighbour = download(at(args.neighbour), 128);
  const auto positive = download(reinterpret_cast<std::uint32_t*>(args.positive.address()), 128);
  for (std::size_t first = 0; first < 128; first += 32) {
    double total = 0;
    float most = x[first];
    std::uint32_t bits = 0;
    for (std::size_t l = 0; l < 32; ++l) {
      total += x[first + l];
      most = std::max(most, x[first + l]);
      bits |= static_cast<std::uint32_t>(x[first + l] > 0) << l;
    }
    for (std::size_t l = 0; l < 32; ++l) {
      EXPECT_NEAR(sum[first + l], total, 1e-5);
      EXPECT_EQ(sum[first + l], sum[first]);
      EXPECT_EQ(max[first + l], most);
      EXPECT_EQ(reversed[first + l], x[first + 31 - l]);
      EXPECT_EQ(neighbour[first + l], x[first + (l ^ 1)]);
      EXPECT_EQ(positive[first + l], bits);
    }
  }
}

TEST_F(Dialect, MaximaPassOverNaN) {
  std::vector<float> x(64, -1);
  x[3] = x[40] = std::numeric_limits<float>::quiet_NaN();
  x[41] = 2;
  const kernels::ProbeSimdArgs args{upload(x),           allocate<float>(64), allocate<float>(64),
                                    allocate<float>(64), allocate<float>(64), allocate<std::uint32_t>(64)};
  ASSERT_EQ(run<&kernels::probe_simd>(64, 1, args), "");
  const auto max = download(reinterpret_cast<float*>(args.max.address()), 64);
  for (std::size_t i = 0; i < 64; ++i) EXPECT_EQ(max[i], i < 32 ? -1 : 2);
}

TEST_F(Dialect, GroupsReduceAndCountTheSameOnAnyNumberOfThreads) {
  constexpr std::uint32_t kGroups = 37;
  const std::vector<float> x = Numbers(2).floats(kGroups * 64);
  std::array<std::vector<std::uint32_t>, 2> sums;
  for (const int threads : {1, 2}) {
    const kernels::ProbeGroupArgs args{upload(x), allocate<float>(kGroups), allocate<float>(kGroups),
                                       allocate<std::uint32_t>(kGroups), allocate<float>(kGroups * 64)};
    ASSERT_EQ(run<&kernels::probe_group>(64, kGroups, args, threads), "");
    const auto sum = download(reinterpret_cast<float*>(args.sum.address()), kGroups);
    const auto max = download(reinterpret_cast<float*>(args.max.address()), kGroups);
    const auto count = download(reinterpret_cast<std::uint32_t*>(args.count.address()), kGroups);
    const auto turned = download(reinterpret_cast<float*>(args.turned.address()), kGroups * 64);
    for (std::size_t g = 0; g < kGroups; ++g) {
      double total = 0;
      float most = x[g * 64];
      std::uint32_t positive = 0;
      for (std::size_t i = 0; i < 64; ++i) {
        const float v = x[g * 64 + i];
        total += v;
        most = std::max(most, v);
        positive += v > 0 ? 1 : 0;
        EXPECT_EQ(turned[g * 64 + i], x[g * 64 + (i + 32) % 64]);
      }
      EXPECT_NEAR(sum[g], total, 1e-5);
      EXPECT_EQ(max[g], most);
      EXPECT_EQ(count[g], positive);
    }
    sums[static_cast<std::size_t>(threads - 1)] = bits_of_values(sum);
  }
  EXPECT_EQ(sums[0], sums[1]);
}

TEST_F(Dialect, EveryWidthMovesTheSameBytes) {
  const std::vector<float> x = Numbers(3).floats(1024);
  const float* from = upload(x);
  float* to = allocate<float>(1024);
  ASSERT_EQ(run<&kernels::probe_memory>(
                64, 1, kernels::ProbeMemoryArgs{from, to, reinterpret_cast<std::uint64_t>(from)}),
            "");
  EXPECT_EQ(download(to, 1024), x);
}

TEST_F(Dialect, NumbersAreAsTheHostComputesThem) {
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> x = {0, 1, -1, 0.5F, -3.25F, 20.5F, 1e-6F, -1e-3F, 100, -100, 70000, kNaN};
  float* to = allocate<float>(x.size() * kernels::kNumbers);
  ASSERT_EQ(run<&kernels::probe_numbers>(
                64, 1, kernels::ProbeNumbersArgs{upload(x), to, {static_cast<std::int64_t>(x.size())}}),
            "");
  const auto y = download(to, x.size() * kernels::kNumbers);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const float v = x[i];
    const float half = to_float(to_half(v));
    const std::array<float, kernels::kNumbers> expected = {
        half,
        to_float(to_bfloat16(v)),
        std::exp(v),
        std::exp2(v),
        std::log1p(std::fabs(v)),
        std::sqrt(std::fabs(v)),
        v * v + 1,
        v,
        v,
        std::fabs(v),
        static_cast<float>(std::popcount(std::bit_cast<std::uint32_t>(v))),
        1 / (1 + std::exp(-v)),
        v / (1 + std::exp(-v)),
        v > 20 ? v : std::log1p(std::exp(v)),
        v > 0 ? 1.0F : 0.0F,
        7,
        1023,
        8,
        110,
        std::isnan(v) ? 1.0F : 0.0F};
    for (std::size_t n = 0; n < expected.size(); ++n) {
      const float got = y[i * kernels::kNumbers + n];
      if (std::isnan(expected[n]) || std::isinf(expected[n])) {
        // Of NaN only that it stays one counts; max takes the number, min and max of NaN are not defined.
        if (n != 8 && n != 9 && n != 13) {
          EXPECT_EQ(std::isnan(got), std::isnan(expected[n])) << v << ", number " << n;
        }
      } else {
        EXPECT_NEAR(got, expected[n], 1e-6F * std::fabs(expected[n]) + 1e-37F) << v << ", number " << n;
      }
    }
  }
}

// --- the matrix primitive ---

/// A fragment's element in a lane: its row of a (column of b) and input.
struct Mma {
  std::array<std::array<float, 16>, 16> a;  // [row][input]
  std::array<std::array<float, 8>, 16> b;   // [input][column]
  std::array<std::array<float, 8>, 16> c;   // [row][column]
  std::vector<std::uint32_t> a_words, b_words;
  std::vector<float> c_values;
};

template <class Narrow>
Mma random_mma(std::uint32_t seed, const Narrow& narrow) {
  Numbers numbers(seed);
  Mma m{};
  const auto bits = [&](float& value) {
    const auto number = narrow(numbers.uniform(-2, 2));
    value = to_float(number);
    return static_cast<std::uint32_t>(number.bits);
  };
  for (std::size_t lane = 0; lane < 32; ++lane) {
    for (std::size_t word = 0; word < 4; ++word) {
      auto& row = m.a[lane / 4 + word % 2 * 8];
      const std::size_t input = lane % 4 * 2 + word / 2 * 8;
      const std::uint32_t low = bits(row[input]);
      m.a_words.push_back(low | bits(row[input + 1]) << 16);
    }
    for (std::size_t word = 0; word < 2; ++word) {
      const std::size_t input = lane % 4 * 2 + word * 8;
      const std::uint32_t low = bits(m.b[input][lane / 4]);
      m.b_words.push_back(low | bits(m.b[input + 1][lane / 4]) << 16);
    }
    for (std::size_t i = 0; i < 4; ++i) {
      m.c_values.push_back(numbers.uniform(-1, 1));
      m.c[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2] = m.c_values.back();
    }
  }
  return m;
}

void expect_product(const Mma& m, const std::vector<float>& got) {
  for (std::size_t lane = 0; lane < 32; ++lane) {
    for (std::size_t i = 0; i < 4; ++i) {
      const std::size_t row = lane / 4 + i / 2 * 8;
      const std::size_t column = lane % 4 * 2 + i % 2;
      double sum = m.c[row][column];
      for (std::size_t k = 0; k < 16; ++k) sum += static_cast<double>(m.a[row][k]) * m.b[k][column];
      EXPECT_NEAR(got[lane * 4 + i], sum, 1e-5) << "lane " << lane << ", " << i;
    }
  }
}

class MatrixUnits : public EmulatedDevice {
 protected:
  template <auto kKernel>
  void multiplies() {
    const Mma half = random_mma(4, [](float x) { return to_half(x); });
    float* c_half = upload(half.c_values);
    float* c_bfloat = upload(half.c_values);
    const kernels::ProbeMmaArgs halves{upload(half.a_words), upload(half.b_words), c_half, c_bfloat};
    ASSERT_EQ(run<kKernel>(32, 1, halves), "");
    expect_product(half, download(c_half, 128));

    const Mma bfloat = random_mma(5, [](float x) { return to_bfloat16(x); });
    c_half = upload(bfloat.c_values);
    c_bfloat = upload(bfloat.c_values);
    const kernels::ProbeMmaArgs bfloats{upload(bfloat.a_words), upload(bfloat.b_words), c_half, c_bfloat};
    ASSERT_EQ(run<kKernel>(32, 1, bfloats), "");
    expect_product(bfloat, download(c_bfloat, 128));
  }
};

TEST_F(MatrixUnits, MultiplyHalvesAndBfloats) {
  multiplies<&kernels::probe_mma>();
}

// --- what Metal composes (dialect/composed.h) ---

TEST_F(MatrixUnits, AreComposedOfTiles) {
  multiplies<&kernels::mma_by_tiles>();
}

TEST(Composed, LanesOfTilesAreAPermutation) {
  for (std::uint32_t lane = 0; lane < 32; ++lane) {
    const std::uint32_t quad = lane / 4;
    EXPECT_EQ(kernels::tile_row(lane), (quad & 4) + lane / 2 % 4);
    EXPECT_EQ(kernels::tile_column(lane), (quad & 2) * 2 + lane % 2 * 2);
    EXPECT_EQ(kernels::tile_lane(kernels::tile_row(lane), kernels::tile_column(lane)), lane);
  }
}

TEST(Composed, Log1pIsWithinFourUnitsInTheLastPlace) {
  const auto check = [](float x) {
    const float got = kernels::log1p_composed(x, std::log(1 + x));
    const double exact = std::log1p(static_cast<double>(x));
    EXPECT_NEAR(got, exact, 4 * std::fabs(exact) * 0x1p-24) << x;
  };
  for (float x = 1e-30F; x < 1e30F; x *= 1.37F) {
    check(x);
    if (x < 1) check(-x);
  }
  EXPECT_EQ(kernels::log1p_composed(0, 0), 0);
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(kernels::log1p_composed(kInfinity, kInfinity), kInfinity);
  EXPECT_EQ(kernels::log1p_composed(-1, -kInfinity), -kInfinity);
}

}  // namespace
}  // namespace sluice::gpu
