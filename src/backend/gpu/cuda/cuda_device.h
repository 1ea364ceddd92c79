// An NVIDIA GPU.
//
// Commands are recorded and submitted in lists (commands.h, graphs.h): when something must be waited for, and
// before that whenever a list is long enough, so that the GPU begins while later commands are still recorded.
#pragma once

#include <map>
#include <memory>

#include "backend/gpu/cuda/commands.h"
#include "backend/gpu/cuda/copy_queue.h"
#include "backend/gpu/cuda/counters.h"
#include "backend/gpu/cuda/graphs.h"
#include "backend/gpu/cuda/staging.h"
#include "backend/gpu/device.h"

namespace sluice::gpu {

/// The device with this number, as the driver counts them (CUDA_VISIBLE_DEVICES applies). Fails with
/// kUnsupported where there is no driver, no GPU or no kernels in this build, or one of them is too old; with
/// kInvalidArgument where there are GPUs, but not this one.
Result<std::unique_ptr<Device>> open_cuda_device(int number);

namespace cuda {

/// `image_version`: the CUDA version that made the image, 0 if unknown. The driver must outlive the device.
Result<std::unique_ptr<class CudaDevice>> open_device(const Driver& driver, std::span<const std::byte> image,
                                                      int image_version, int number);

class CudaDevice final : public Device {
 public:
  /// A list is submitted when it has as many commands as this, first soon, then less often. Which list a
  /// command is in depends only on how many came since the last wait: the same steps make the same lists.
  static constexpr std::size_t kFirstList = 64, kLongestList = 512;
  /// Moves of at most so many bytes are kernels, others the driver's (host memory, device memory).
  static constexpr std::size_t kHostMove = std::size_t{256} << 10, kDeviceMove = std::size_t{1} << 20;

  ~CudaDevice() override;
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;

  [[nodiscard]] std::string_view name() const override { return name_; }
  [[nodiscard]] std::uint32_t multiprocessors() const override { return multiprocessors_; }
  [[nodiscard]] std::uint64_t memory_bytes() const override { return memory_; }

  [[nodiscard]] bool multiplies_wide() const override { return wide_; }

  [[nodiscard]] std::optional<std::uint64_t> free_bytes() const override;
  Result<std::uint64_t> allocate(std::size_t bytes) override;
  void free(std::uint64_t address) override;
  Result<std::byte*> allocate_host(std::size_t bytes) override;
  void free_host(std::byte* address) override;

  void upload(std::uint64_t to, std::span<const std::byte> from) override;
  void download(std::span<std::byte> to, std::uint64_t from) override;
  void copy(std::uint64_t to, std::uint64_t from, std::size_t bytes) override;
  void fill(std::uint64_t to, std::uint8_t value, std::size_t bytes) override;
  using Device::launch;
  void launch(Kernel kernel, Grid grid, std::span<const std::byte> args) override;
  void copy_beside(std::uint64_t to, std::uint64_t from, std::size_t bytes) override;
  void join_copies() override;
  void synchronise() override;

  [[nodiscard]] Result<void> status() const override;
  [[nodiscard]] const Counters& counters() const { return counters_; }

 private:
  friend Result<std::unique_ptr<CudaDevice>> open_device(const Driver& driver,
                                                         std::span<const std::byte> image, int image_version,
                                                         int number);
  explicit CudaDevice(const Driver& driver);
  Result<void> open(std::span<const std::byte> image, int image_version, int number);
  Result<void> check_device(int image_version);
  Result<void> load(std::span<const std::byte> image);

  /// The calling thread is bound to our context before it calls the driver.
  void enter() const { machine_.driver->context_set(machine_.context); }
  [[nodiscard]] bool is_host(std::uint64_t address) const;
  void move(std::uint64_t to, bool to_host, std::uint64_t from, bool from_host, std::size_t bytes);
  /// After each command that was recorded.
  void recorded();
  void submit();
  void run(const Command& command);
  void wait();

  Machine machine_;
  DeviceNumber device_ = 0;
  Module module_ = nullptr;
  bool checking_ = false;  // every command is waited for
  std::string name_;
  std::uint32_t multiprocessors_ = 0;
  std::uint64_t memory_ = 0;
  bool wide_ = false;
  Counters counters_;
  CommandList list_;
  std::size_t limit_ = kFirstList;
  bool pending_ = false;  // something was submitted since the last wait
  const char* last_kernel_ = "";
  std::map<std::uint64_t, std::uint64_t> hosts_;  // memory of the host: address, bytes
  // Freed before the context is.
  std::unique_ptr<StagingRing> ring_;
  std::unique_ptr<HostBlock> landing_;  // where downloads arrive
  std::unique_ptr<GraphCache> graphs_;
  std::unique_ptr<CopyQueue> beside_;
};

}  // namespace cuda
}  // namespace sluice::gpu
