// Any bytes as a safetensors file: refused or read, never a crash.
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "store/safetensors.h"

namespace {

class MemoryFile final : public sluice::File {
 public:
  MemoryFile(const std::uint8_t* data, std::size_t size) : data_(data), size_(size) {}
  [[nodiscard]] std::uint64_t size() const override { return size_; }
  [[nodiscard]] const std::string& name() const override { return name_; }
  sluice::Result<void> read_at(std::uint64_t offset, std::span<std::byte> to) const override {
    if (offset > size_ || to.size() > size_ - offset) {
      return sluice::make_error(sluice::ErrorCode::kCorrupt, "past the end");
    }
    if (!to.empty()) std::memcpy(to.data(), data_ + offset, to.size());
    return {};
  }

 private:
  const std::uint8_t* data_;
  std::uint64_t size_;
  std::string name_ = "fuzz";
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto file = sluice::store::SafetensorsFile::open(std::make_unique<MemoryFile>(data, size));
  if (!file) {
    if (file.error().message.empty()) __builtin_trap();
    return 0;
  }
  std::uint64_t total = 0;
  for (const auto& [name, info] : (*file)->header().tensors) {
    const auto bytes = (*file)->read(info);
    // A header that was accepted holds only tensors that can be read.
    if (!bytes || bytes->size() != info.bytes || info.elements() < 0) __builtin_trap();
    total += info.bytes;
  }
  if (total > size) __builtin_trap();
  return 0;
}
