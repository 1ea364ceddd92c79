#include "base/buffer.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>

#include "base/memory_nodes.h"

namespace sluice {
namespace {

// From here on a mapping of its own: zero pages come from the kernel on first touch.
constexpr std::size_t kMapFrom = std::size_t{1} << 20;
constexpr std::size_t kHugePage = std::size_t{2} << 20;

}  // namespace

void AlignedFree::operator()(std::byte* p) const {
  if (mapped != 0) {
    ::munmap(p, mapped);
  } else {
    std::free(p);
  }
}

Result<AlignedBuffer> AlignedBuffer::create(std::size_t bytes, std::size_t alignment) {
  AlignedBuffer buffer;
  if (bytes == 0) return buffer;
  const auto none = [&] {
    return make_error(ErrorCode::kOutOfMemory, "buffer of {} bytes: the system has no memory left for it",
                      bytes);
  };
  if (bytes > SIZE_MAX / 2) return none();
  const std::size_t padded = (bytes + alignment - 1) / alignment * alignment;
  if (padded >= kMapFrom && alignment <= 4096) {
    void* p = ::mmap(nullptr, padded, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return none();
    // Weights are streamed once a token: huge pages save a TLB miss every 4 KiB.
    if (padded >= 8 * kHugePage) {
      ::madvise(p, padded, MADV_HUGEPAGE);
      spread_over_nodes({static_cast<std::byte*>(p), padded});
    }
    buffer.data_ = std::unique_ptr<std::byte, AlignedFree>(static_cast<std::byte*>(p), AlignedFree{padded});
  } else {
    auto* p = static_cast<std::byte*>(std::aligned_alloc(alignment, padded));
    if (p == nullptr) return none();
    std::memset(p, 0, padded);
    buffer.data_ = std::unique_ptr<std::byte, AlignedFree>(p, AlignedFree{});
  }
  buffer.size_ = bytes;
  return buffer;
}

}  // namespace sluice
