// Memory of the reference is host memory, and every operation has finished when it returns.
#include <algorithm>
#include <cstring>
#include <utility>

#include "backend/scalar/scalar_backend.h"
#include "base/buffer.h"

namespace sluice::backend {

namespace {

class HostBuffer final : public Buffer {
 public:
  explicit HostBuffer(AlignedBuffer memory) : memory_(std::move(memory)) {}
  [[nodiscard]] std::byte* address() override { return memory_.data(); }
  [[nodiscard]] std::size_t size() const override { return memory_.size(); }

 private:
  AlignedBuffer memory_;
};

}  // namespace

std::string_view ScalarBackend::name() const {
  return "scalar";
}

Result<std::unique_ptr<Buffer>> ScalarBackend::allocate(std::size_t bytes) {
  // Null means "absent" in several operations, so that even an empty buffer has an address.
  SLUICE_ASSIGN(AlignedBuffer memory, AlignedBuffer::create(std::max<std::size_t>(bytes, 1)));
  return std::unique_ptr<Buffer>(std::make_unique<HostBuffer>(std::move(memory)));
}

Result<std::unique_ptr<Buffer>> ScalarBackend::allocate_host(std::size_t bytes) {
  constexpr std::size_t kPage = 4096;
  SLUICE_ASSIGN(AlignedBuffer memory, AlignedBuffer::create(std::max<std::size_t>(bytes, 1), kPage));
  return std::unique_ptr<Buffer>(std::make_unique<HostBuffer>(std::move(memory)));
}

Result<std::unique_ptr<Buffer>> ScalarBackend::adopt(AlignedBuffer contents) {
  if (contents.empty()) return allocate(0);
  return std::unique_ptr<Buffer>(std::make_unique<HostBuffer>(std::move(contents)));
}

void ScalarBackend::upload(Dev<std::byte> to, std::span<const std::byte> from) {
  if (!from.empty()) std::memcpy(to.address(), from.data(), from.size());
}

void ScalarBackend::download(std::span<std::byte> to, Dev<const std::byte> from) {
  if (!to.empty()) std::memcpy(to.data(), from.address(), to.size());
}

void ScalarBackend::copy(Dev<std::byte> to, Dev<const std::byte> from, std::size_t bytes) {
  if (bytes > 0) std::memmove(to.address(), from.address(), bytes);
}

void ScalarBackend::zero(Dev<std::byte> to, std::size_t bytes) {
  if (bytes > 0) std::memset(to.address(), 0, bytes);
}

void ScalarBackend::synchronise() {}

}  // namespace sluice::backend
