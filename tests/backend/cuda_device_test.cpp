// The CUDA device over a driver that is none: what it issues, and what it says when the driver fails.
#include <gtest/gtest.h>

#include <numeric>

#include "backend/create.h"
#include "backend/fake_cuda.h"
#include "backend/gpu/cuda/cuda_device.h"
#include "backend/gpu/cuda/image.h"

namespace sluice::gpu::cuda {
namespace {

class CudaDeviceTest : public testing::Test {
 protected:
  void SetUp() override {
    reset_fake_cuda();
    driver_ = fake().driver();
  }
  static FakeCuda& fake() { return fake_cuda(); }
  Result<std::unique_ptr<CudaDevice>> open(int number = 0) {
    return open_device(driver_, std::as_bytes(std::span(&driver_, 1)), 13000, number);
  }
  void start() {
    auto opened = open();
    ASSERT_TRUE(opened.ok()) << opened.error().message;
    device_ = std::move(opened).value();
  }
  std::uint64_t memory(std::size_t bytes) {
    auto address = device_->allocate(bytes);
    EXPECT_TRUE(address.ok());
    return *address;
  }
  /// A kernel told apart by its count.
  void kernel(std::int64_t count, std::uint32_t groups = 1) {
    device_->launch(Kernel::silu_rows, {groups}, kernels::SiluRowsArgs{nullptr, count, 1});
  }
  /// The counts of the kernels that ran since the last call.
  static std::vector<std::int64_t> ran() {
    std::vector<std::int64_t> counts;
    for (const auto& run : fake().runs) {
      kernels::SiluRowsArgs args;
      std::memcpy(&args, run.args.data(), sizeof args);
      counts.push_back(args.count);
    }
    fake().runs.clear();
    return counts;
  }
  std::vector<std::byte> download(std::uint64_t from, std::size_t bytes) {
    std::vector<std::byte> to(bytes, std::byte{0xaa});
    device_->download(to, from);
    return to;
  }
  static std::vector<std::byte> pattern(std::size_t bytes, unsigned seed) {
    std::vector<std::byte> data(bytes);
    for (std::size_t i = 0; i < bytes; ++i)
      data[i] = static_cast<std::byte>((i * 2654435761U + seed * 0x9e3779b9U) >> 13);
    return data;
  }
  void fails(const Result<std::unique_ptr<CudaDevice>>& opened, ErrorCode code, const std::string& part) {
    ASSERT_FALSE(opened.ok());
    EXPECT_EQ(opened.error().code, code);
    EXPECT_NE(opened.error().message.find(part), std::string::npos) << opened.error().message;
  }

  Driver driver_;
  std::unique_ptr<CudaDevice> device_;
};

TEST_F(CudaDeviceTest, MemoryOfAnySizeMovesThere) {
  start();
  EXPECT_EQ(device_->name(), "Fake GPU");
  EXPECT_EQ(device_->multiprocessors(), 132U);
  for (const std::size_t bytes :
       {std::size_t{1}, std::size_t{1000}, std::size_t{300000}, std::size_t{21} << 20}) {
    const auto data = pattern(bytes, static_cast<unsigned>(bytes));
    const auto a = memory(bytes);
    const auto b = memory(bytes);
    device_->upload(a, data);
    device_->copy(b, a, bytes);
    device_->fill(a, 7, bytes);
    EXPECT_EQ(download(b, bytes), data);
    EXPECT_EQ(download(a, bytes), std::vector<std::byte>(bytes, std::byte{7}));
    device_->free(a);
    device_->free(b);
  }
  EXPECT_TRUE(device_->status().ok());
}

TEST_F(CudaDeviceTest, PinnedMemoryIsCopiedFromAndTo) {
  start();
  for (const std::size_t bytes : {std::size_t{4096}, std::size_t{2} << 20}) {
    std::byte* host = device_->allocate_host(bytes).value();
    const auto data = pattern(bytes, 3);
    std::copy(data.begin(), data.end(), host);
    const auto a = memory(bytes);
    device_->copy(a, reinterpret_cast<std::uint64_t>(host), bytes);
    EXPECT_EQ(download(a, bytes), data);
    device_->free_host(host);
    device_->free(a);
  }
}

TEST_F(CudaDeviceTest, CopiesBesideRunBesideAndAreOrderedWhereTheyMustBe) {
  start();
  constexpr std::size_t kBytes = 4096;
  std::byte* host = device_->allocate_host(kBytes).value();
  const auto from = reinterpret_cast<std::uint64_t>(host);
  const auto data = pattern(kBytes, 1);
  std::copy(data.begin(), data.end(), host);
  const auto slot = memory(kBytes);
  const auto out = memory(kBytes);
  device_->fill(slot, 9, kBytes);
  // It sees what was issued before it, although that was not even submitted ...
  device_->copy(out, slot, kBytes);
  device_->copy_beside(slot, from, kBytes);
  EXPECT_EQ(download(out, kBytes), std::vector<std::byte>(kBytes, std::byte{9}));
  // ... and has not run, as nothing waited for it: a download does not either.
  EXPECT_EQ(download(slot, kBytes), std::vector<std::byte>(kBytes, std::byte{9}));
  device_->join_copies();
  device_->copy(out, slot, kBytes);
  EXPECT_EQ(download(out, kBytes), data);
  // The next copy into the slot waits for those who read it, however late they run.
  const auto other = pattern(kBytes, 2);
  device_->copy(out, slot, kBytes);
  std::copy(other.begin(), other.end(), host);
  device_->copy_beside(slot, from, kBytes);
  device_->synchronise();
  std::fill(host, host + kBytes, std::byte{0xee});
  EXPECT_EQ(download(out, kBytes), data);
  EXPECT_EQ(download(slot, kBytes), other);
  EXPECT_EQ(device_->counters().copies_beside, 2U);
  // A join without copies costs nothing.
  const auto waits = device_->counters().waits;
  device_->join_copies();
  device_->synchronise();
  EXPECT_EQ(device_->counters().waits, waits);
  EXPECT_TRUE(device_->status().ok());
  device_->copy_beside(slot, from, kBytes);
  device_->free_host(host);
  device_->free(slot);
  device_->free(out);
  device_.reset();
  EXPECT_TRUE(fake().streams.empty());
  EXPECT_TRUE(fake().events.empty());
}

TEST_F(CudaDeviceTest, ALostDeviceIsToldByCopiesBesideToo) {
  start();
  std::byte* host = device_->allocate_host(64).value();
  const auto slot = memory(64);
  device_->copy_beside(slot, reinterpret_cast<std::uint64_t>(host), 64);
  fake().lose_at_wait = true;
  device_->synchronise();
  ASSERT_FALSE(device_->status().ok());
  EXPECT_NE(device_->status().error().message.find("beside"), std::string::npos)
      << device_->status().error().message;
  device_->copy_beside(slot, reinterpret_cast<std::uint64_t>(host), 64);
  device_->join_copies();
  device_.reset();
}

TEST_F(CudaDeviceTest, UploadsMayReuseTheirMemoryAtOnce) {
  start();
  constexpr std::size_t kBytes = std::size_t{1} << 20;
  constexpr unsigned kCount = 40;  // more than the ring holds
  const auto all = memory(kCount * kBytes);
  for (unsigned i = 0; i < kCount; ++i) {
    auto data = pattern(kBytes, i);
    device_->upload(all + i * kBytes, data);
    std::fill(data.begin(), data.end(), std::byte{0});
  }
  for (unsigned i = 0; i < kCount; ++i)
    EXPECT_EQ(download(all + i * kBytes, kBytes), pattern(kBytes, i)) << i;
}

TEST_F(CudaDeviceTest, AListSeenAgainBecomesAGraphAndIsPatchedThereafter) {
  start();
  const auto step = [&](std::int64_t changing, std::uint32_t groups) {
    for (std::int64_t i = 0; i < 10; ++i) kernel(i == 4 ? changing : i, i == 5 ? groups : 1);
    device_->synchronise();
    auto expected = std::vector<std::int64_t>(10);
    std::iota(expected.begin(), expected.end(), 0);
    expected[4] = changing;
    EXPECT_EQ(fake().runs[5].grid_x, groups);
    EXPECT_EQ(ran(), expected);
  };
  step(100, 1);
  EXPECT_EQ(device_->counters().direct_commands, 10U);
  EXPECT_EQ(device_->counters().graph_launches, 0U);
  step(101, 1);
  EXPECT_EQ(device_->counters().graphs_made, 1U);
  EXPECT_EQ(device_->counters().graph_launches, 1U);
  step(101, 1);
  EXPECT_EQ(device_->counters().patched_nodes, 0U);
  step(102, 1);
  EXPECT_EQ(device_->counters().patched_nodes, 1U);
  step(103, 9);
  EXPECT_EQ(device_->counters().patched_nodes, 3U);
  EXPECT_EQ(device_->counters().graphs_made, 1U);
  EXPECT_EQ(device_->counters().graph_launches, 4U);
  EXPECT_EQ(device_->counters().direct_commands, 10U);
  EXPECT_EQ(device_->counters().lists, 5U);
}

// A kernel reads weights before it waits: what a move has written must be there.
TEST_F(CudaDeviceTest, InGraphsKernelsStartEarlyButAfterKernelsAlone) {
  const auto steps = [this] {
    start();
    const auto at = memory(64);
    const auto to = memory(64);
    for (int step = 0; step < 2; ++step) {
      kernel(1);
      kernel(2);
      device_->upload(at, pattern(64, 1));
      kernel(3);
      device_->copy(to, at, 64);
      kernel(4);
      kernel(5);
      device_->synchronise();
    }
    EXPECT_EQ(device_->counters().graphs_made, 1U);
    device_.reset();
  };
  steps();
  EXPECT_EQ(fake().early_edges, 4U);  // 1-2, 2-upload, 3-copy, 4-5
  // A driver that does not know of such edges.
  driver_.graph_add_edges = nullptr;
  steps();
  EXPECT_EQ(fake().early_edges, 4U);
}

TEST_F(CudaDeviceTest, EqualShapesWithOtherValuesGetTheirOwnGraphs) {
  start();
  // Three layers alike, each with its own weights.
  const auto step = [&] {
    for (std::int64_t layer = 0; layer < 3; ++layer) {
      std::vector<std::int64_t> expected;
      for (std::int64_t i = 0; i < 8; ++i) {
        kernel(100 * layer + i);
        expected.push_back(100 * layer + i);
      }
      device_->synchronise();
      EXPECT_EQ(ran(), expected);
    }
  };
  for (int i = 0; i < 3; ++i) step();
  const Counters before = device_->counters();
  EXPECT_EQ(before.graphs_made, 3U);
  for (int i = 0; i < 5; ++i) step();
  EXPECT_EQ(device_->counters().graphs_made, 3U);
  EXPECT_EQ(device_->counters().patched_nodes, before.patched_nodes);
  EXPECT_EQ(device_->counters().direct_commands, before.direct_commands);
}

TEST_F(CudaDeviceTest, UploadsOfAGraphWaitUntilItsLastLaunchHasReadThem) {
  start();
  const auto to = memory(64 * 16);
  // As many commands as bring lists to their full length, then lists alike, none waited for.
  for (std::size_t i = 0; i < 64 + 128 + 256; ++i) kernel(0);
  for (unsigned i = 0; i < 8; ++i) {
    device_->upload(to + i * 16, pattern(16, i));
    for (std::size_t k = 1; k < CudaDevice::kLongestList; ++k) kernel(1);
  }
  EXPECT_EQ(device_->counters().waits, 0U);
  EXPECT_EQ(device_->counters().graph_launches, 7U);
  for (unsigned i = 0; i < 8; ++i) EXPECT_EQ(download(to + i * 16, 16), pattern(16, i)) << i;
}

TEST_F(CudaDeviceTest, CopiesAndFillsOfGraphsArePatchedToo) {
  start();
  constexpr std::size_t kBytes = std::size_t{3} << 20;
  const auto a = memory(2 * kBytes);
  const auto b = memory(2 * kBytes);
  for (unsigned i = 0; i < 4; ++i) {
    const std::size_t at = i % 2 == 0 ? 0 : kBytes;
    device_->upload(a, pattern(2 * kBytes, i));
    kernel(1);
    kernel(2);
    device_->fill(b + at, static_cast<std::uint8_t>(i), kBytes);
    device_->copy(b + at, a + at, kBytes - i);
    device_->synchronise();
    auto expected = pattern(2 * kBytes, i);
    expected.erase(expected.begin(), expected.begin() + static_cast<std::ptrdiff_t>(at));
    expected.resize(kBytes - i);
    expected.resize(kBytes, static_cast<std::byte>(i));
    EXPECT_EQ(download(b + at, kBytes), expected) << i;
  }
  EXPECT_GE(device_->counters().graph_launches, 3U);
  EXPECT_TRUE(device_->status().ok());
}

TEST_F(CudaDeviceTest, GraphsAreBoundedAndGoWithTheDevice) {
  start();
  const auto a = memory(1 << 20);
  for (std::size_t size = 1; size < 400; ++size) {
    for (int i = 0; i < 2; ++i) {
      device_->upload(a, pattern(size * 16, 0));
      for (int k = 0; k < 4; ++k) kernel(k);
      device_->synchronise();
    }
    ASSERT_LE(fake().execs.size(), GraphCache::kGraphs);
  }
  EXPECT_EQ(device_->counters().graphs_made, 399U);
  device_->free(a);
  device_.reset();
  EXPECT_TRUE(fake().execs.empty());
  EXPECT_TRUE(fake().graphs.empty());
  EXPECT_TRUE(fake().events.empty());
  EXPECT_TRUE(fake().hosts.empty());
  EXPECT_TRUE(fake().allocations.empty());
}

TEST_F(CudaDeviceTest, TooLittleMemoryIsSaidInBytesAndIsNotTheDevicesFailure) {
  start();
  fake().memory = 1000000;
  const auto a = memory(400000);
  const auto refused = device_->allocate(700000);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kOutOfMemory);
  for (const char* part : {"700000 bytes", "600000 of 1000000", "Fake GPU", "CUDA_ERROR_OUT_OF_MEMORY"}) {
    EXPECT_NE(refused.error().message.find(part), std::string::npos) << refused.error().message;
  }
  EXPECT_TRUE(device_->status().ok());
  device_->free(a);
  device_->free(memory(900000));
}

TEST_F(CudaDeviceTest, AFailedLaunchIsKeptAndWhatFollowsIsIgnored) {
  start();
  const auto a = memory(64);
  device_->fill(a, 5, 64);
  device_->synchronise();
  fake().launch_status = 701;
  kernel(1, 17);
  device_->synchronise();
  fake().launch_status = kSuccess;
  const auto status = device_->status();
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kDevice);
  for (const char* part :
       {"cuLaunchKernel", "CUDA_ERROR_UNKNOWN", "silu_rows", "17 x 1 x 1", "256 threads"}) {
    EXPECT_NE(status.error().message.find(part), std::string::npos) << status.error().message;
  }
  kernel(2);
  EXPECT_EQ(download(a, 64), std::vector<std::byte>(64));
  EXPECT_TRUE(ran().empty());
  EXPECT_FALSE(device_->allocate(64).ok());
  device_->free(a);
}

TEST_F(CudaDeviceTest, ALostDeviceIsReportedAndEverythingReturns) {
  start();
  const auto a = memory(64);
  for (int i = 0; i < 3; ++i) {
    device_->upload(a, pattern(64, 0));
    for (int k = 0; k < 5; ++k) kernel(k);
    device_->synchronise();
  }
  fake().lose_at_wait = true;
  kernel(6);
  EXPECT_EQ(download(a, 64), std::vector<std::byte>(64));
  const auto status = device_->status();
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kDevice);
  for (const char* part : {"cuStreamSynchronize", "CUDA_ERROR_ILLEGAL_ADDRESS", "silu_rows"}) {
    EXPECT_NE(status.error().message.find(part), std::string::npos) << status.error().message;
  }
  device_->upload(a, pattern(1 << 20, 0));
  device_->copy(a, a + 32, 32);
  device_->fill(a, 0, 64);
  device_->synchronise();
  EXPECT_EQ(device_->status().error().message, status.error().message);
  device_->free(a);
  device_.reset();
}

TEST_F(CudaDeviceTest, LaunchesThatCannotBeAreRefused) {
  start();
  device_->launch(Kernel::silu_rows, {1, 65536}, kernels::SiluRowsArgs{nullptr, 1, 1});
  ASSERT_FALSE(device_->status().ok());
  EXPECT_NE(device_->status().error().message.find("65536"), std::string::npos);
  start();
  device_->launch(Kernel::silu_rows, {1}, std::uint32_t{1});
  EXPECT_FALSE(device_->status().ok());
  start();
  device_->launch(Kernel::silu_rows, {0}, kernels::SiluRowsArgs{nullptr, 1, 1});
  EXPECT_FALSE(device_->status().ok());
}

TEST_F(CudaDeviceTest, WhatIsMissingIsSaid) {
  fails(open(2), ErrorCode::kInvalidArgument,
        "device 2 asked for; this machine has 0 (Fake GPU), 1 (Other GPU)");
  fake().major = 7;
  fails(open(), ErrorCode::kUnsupported, "Fake GPU has compute capability 7.0: 8.0 or newer");
  fake().major = 9;
  fake().version = 12040;
  fails(open(), ErrorCode::kUnsupported, "for CUDA 12.4: this build's kernels need one for 13.0");
  fake().version = 13010;
  fake().missing_kernel = "argmax_rows";
  fails(open(), ErrorCode::kDevice, "argmax_rows");
  fake().devices = 0;
  fails(open(), ErrorCode::kUnsupported, "--backend cpu");
  fake().init = 100;
  fails(open(), ErrorCode::kUnsupported, "cuInit: CUDA_ERROR_NO_DEVICE");
}

TEST(CudaDriver, OneThatIsNotThereIsSaidWithWhatServes) {
  const auto driver = load_driver_from("/nowhere/libcuda.so.1");
  ASSERT_FALSE(driver.ok());
  EXPECT_EQ(driver.error().code, ErrorCode::kUnsupported);
  for (const char* part : {"no NVIDIA driver", "/nowhere/libcuda.so.1", "--backend cpu"}) {
    EXPECT_NE(driver.error().message.find(part), std::string::npos) << driver.error().message;
  }
  // A library that is there and is no driver.
  const auto other = load_driver_from("libm.so.6");
  ASSERT_FALSE(other.ok());
  EXPECT_NE(other.error().message.find("cuInit"), std::string::npos) << other.error().message;
}

TEST(CudaBackend, AutoIsSomethingOnEveryMachine) {
  const auto any = backend::create_backend("auto", {});
  ASSERT_TRUE(any.ok()) << any.error().message;
  const auto cuda = backend::create_backend("cuda", {});
  if (!cuda.ok()) {
    EXPECT_EQ((*any)->name(), "cpu");
    EXPECT_NE(cuda.error().message.find("--backend cpu"), std::string::npos) << cuda.error().message;
  } else {
    EXPECT_EQ((*any)->name(), "cuda");
    EXPECT_FALSE(kernel_image().empty());
  }
}

}  // namespace
}  // namespace sluice::gpu::cuda
