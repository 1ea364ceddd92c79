// Memory of a device, and what became of its commands.
#include "backend/gpu/gpu_backend.h"

#include <utility>

namespace sluice::backend {
namespace {

class DeviceBuffer final : public Buffer {
 public:
  DeviceBuffer(gpu::Device& device, std::uint64_t address, std::size_t size)
      : device_(device), address_(address), size_(size) {}
  ~DeviceBuffer() override { device_.free(address_); }
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;

  [[nodiscard]] std::byte* address() override { return reinterpret_cast<std::byte*>(address_); }
  [[nodiscard]] std::size_t size() const override { return size_; }

 private:
  gpu::Device& device_;
  std::uint64_t address_;
  std::size_t size_;
};

/// Memory of the host that the device reads too.
class PinnedBuffer final : public Buffer {
 public:
  PinnedBuffer(gpu::Device& device, std::byte* address, std::size_t size)
      : device_(device), address_(address), size_(size) {}
  ~PinnedBuffer() override { device_.free_host(address_); }
  PinnedBuffer(const PinnedBuffer&) = delete;
  PinnedBuffer& operator=(const PinnedBuffer&) = delete;

  [[nodiscard]] std::byte* address() override { return address_; }
  [[nodiscard]] std::size_t size() const override { return size_; }
  [[nodiscard]] bool pinned() const override { return true; }

 private:
  gpu::Device& device_;
  std::byte* address_;
  std::size_t size_;
};

std::uint64_t number(const std::byte* address) {
  return reinterpret_cast<std::uint64_t>(address);
}

}  // namespace

Result<std::unique_ptr<Buffer>> GpuBackend::allocate(std::size_t bytes) {
  // Null means "absent" in several operations, so that even an empty buffer has an address.
  const std::size_t size = bytes == 0 ? 1 : bytes;
  SLUICE_ASSIGN(const std::uint64_t address, device_->allocate(size));
  device_->fill(address, 0, size);
  return std::unique_ptr<Buffer>(std::make_unique<DeviceBuffer>(*device_, address, size));
}

Result<std::unique_ptr<Buffer>> GpuBackend::allocate_host(std::size_t bytes) {
  const std::size_t size = bytes == 0 ? 1 : bytes;
  SLUICE_ASSIGN(std::byte* const address, device_->allocate_host(size));
  return std::unique_ptr<Buffer>(std::make_unique<PinnedBuffer>(*device_, address, size));
}

void GpuBackend::upload(Dev<std::byte> to, std::span<const std::byte> from) {
  device_->upload(number(to.address()), from);
}

void GpuBackend::download(std::span<std::byte> to, Dev<const std::byte> from) {
  device_->download(to, number(from.address()));
}

void GpuBackend::copy(Dev<std::byte> to, Dev<const std::byte> from, std::size_t bytes) {
  device_->copy(number(to.address()), number(from.address()), bytes);
}

void GpuBackend::zero(Dev<std::byte> to, std::size_t bytes) {
  device_->fill(number(to.address()), 0, bytes);
}

void GpuBackend::copy_beside(Dev<std::byte> to, Dev<const std::byte> from, std::size_t bytes) {
  device_->copy_beside(number(to.address()), number(from.address()), bytes);
}

void GpuBackend::join_copies() {
  device_->join_copies();
}

void GpuBackend::synchronise() {
  device_->synchronise();
}

Result<void> GpuBackend::status() const {
  if (!refused_.empty()) return make_error(ErrorCode::kUnsupported, "{}: {}", name_, refused_);
  return device_->status();
}

void GpuBackend::refuse(std::string why) {
  if (refused_.empty()) refused_ = std::move(why);
}

std::uint64_t GpuBackend::Workspace::bytes(GpuBackend& backend, std::size_t needed) {
  if (!buffer_ || buffer_->size() < needed) {
    buffer_.reset();
    // Nothing of it is zeroed: a kernel that reads what none wrote is found by the emulated device.
    auto address = backend.device_->allocate(needed);
    if (!address.ok()) {
      backend.refuse(address.error().message);
      return 0;
    }
    buffer_ = std::make_unique<DeviceBuffer>(*backend.device_, *address, needed);
  }
  return number(buffer_->address());
}

}  // namespace sluice::backend
