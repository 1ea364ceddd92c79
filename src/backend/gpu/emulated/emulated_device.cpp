#include "backend/gpu/emulated/emulated_device.h"

#include <cstring>
#include <optional>

#include "backend/gpu/emulated/grid.h"
#include "backend/gpu/emulated/memory.h"

namespace sluice::gpu {
namespace {

using emulated::Arena;
using emulated::Erased;

struct Entry {
  emulated::KernelFunction run;
  std::size_t args;
};

constexpr std::array<Entry, kKernelCount> kEntries = {{
#define SLUICE_KERNEL_ENTRY(name) {&Erased<&kernels::name>::run, Erased<&kernels::name>::kArgs},
    SLUICE_KERNELS(SLUICE_KERNEL_ENTRY)
#undef SLUICE_KERNEL_ENTRY
}};

class EmulatedDevice final : public Device {
 public:
  EmulatedDevice(int threads, bool wide) : runner_(threads), wide_(wide) {}

  [[nodiscard]] std::string_view name() const override { return "emulated"; }
  [[nodiscard]] std::uint32_t multiprocessors() const override { return 4; }
  [[nodiscard]] std::uint64_t memory_bytes() const override { return Arena::kBytes; }
  [[nodiscard]] bool multiplies_wide() const override { return wide_; }

  Result<std::uint64_t> allocate(std::size_t bytes) override { return Arena::instance().allocate(bytes); }
  void free(std::uint64_t address) override { Arena::instance().free(address); }
  Result<std::byte*> allocate_host(std::size_t bytes) override {
    SLUICE_ASSIGN(const std::uint64_t address, Arena::instance().allocate(bytes));
    Arena::instance().mark_written(address, bytes);  // whoever fills it does so past our eyes
    return reinterpret_cast<std::byte*>(address);
  }
  void free_host(std::byte* address) override { free(reinterpret_cast<std::uint64_t>(address)); }

  void upload(std::uint64_t to, std::span<const std::byte> from) override {
    if (from.empty() || !allows("upload", to, from.size())) return;
    std::memcpy(reinterpret_cast<void*>(to), from.data(), from.size());
    Arena::instance().mark_written(to, from.size());
  }
  void download(std::span<std::byte> to, std::uint64_t from) override {
    if (to.empty()) return;
    if (!allows("download", from, to.size())) {
      std::memset(to.data(), 0, to.size());
      return;
    }
    std::memcpy(to.data(), reinterpret_cast<const void*>(from), to.size());
  }
  void copy(std::uint64_t to, std::uint64_t from, std::size_t bytes) override {
    if (bytes == 0 || !allows("copy to", to, bytes) || !allows("copy from", from, bytes)) return;
    std::memmove(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from), bytes);
    std::memmove(Arena::instance().written(to), Arena::instance().written(from), bytes);
  }
  void fill(std::uint64_t to, std::uint8_t value, std::size_t bytes) override {
    if (bytes == 0 || !allows("fill", to, bytes)) return;
    std::memset(reinterpret_cast<void*>(to), value, bytes);
    Arena::instance().mark_written(to, bytes);
  }

  void launch(Kernel kernel, Grid grid, std::span<const std::byte> args) override {
    if (failure_) return;
    const auto id = static_cast<std::size_t>(kernel);
    if (args.size() != kEntries[id].args || grid.x == 0 || grid.y == 0 || grid.z == 0) {
      return fail(id, "launched with an empty grid or the arguments of another kernel");
    }
    try {
      runner_.run(kEntries[id].run, args.data(), kKernels[id].threads, {grid.x, grid.y, grid.z});
    } catch (const emulated::Fault& fault) {
      fail(id, fault.what());
    }
  }

  void synchronise() override {}
  [[nodiscard]] Result<void> status() const override {
    if (failure_) return *failure_;
    return {};
  }

 private:
  void fail(std::size_t kernel, std::string_view why) {
    failure_ = make_error(ErrorCode::kDevice, "emulated device: kernel {}: {}", kKernels[kernel].name, why);
  }
  /// Whether a command of the host may touch these bytes; if not, the device has failed.
  bool allows(const char* what, std::uint64_t address, std::size_t bytes) {
    if (failure_) return false;
    if (address + bytes <= Arena::instance().end_of(address)) return true;
    failure_ = make_error(ErrorCode::kDevice, "emulated device: {} of {} bytes out of bounds: {}", what,
                          bytes, Arena::instance().describe(address));
    return false;
  }

  emulated::GridRunner runner_;
  bool wide_;
  std::optional<Error> failure_;
};

}  // namespace

Result<std::unique_ptr<Device>> open_emulated_device(int threads, bool multiplies_wide) {
  if (!Arena::instance().valid()) {
    return make_error(ErrorCode::kOutOfMemory, "emulated device: the system gives no {} bytes of addresses",
                      2 * Arena::kBytes);
  }
  return std::unique_ptr<Device>(std::make_unique<EmulatedDevice>(threads, multiplies_wide));
}

}  // namespace sluice::gpu
