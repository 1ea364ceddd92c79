#include "base/buffer.h"

#include <cstdlib>
#include <cstring>

namespace sluice {

void AlignedBuffer::Free::operator()(std::byte* p) const {
  std::free(p);
}

Result<AlignedBuffer> AlignedBuffer::create(std::size_t bytes, std::size_t alignment) {
  AlignedBuffer buffer;
  if (bytes == 0) return buffer;
  if (bytes > SIZE_MAX / 2)
    return make_error(ErrorCode::kOutOfMemory, "buffer of {} bytes: too large", bytes);
  const std::size_t padded = (bytes + alignment - 1) / alignment * alignment;
  auto* p = static_cast<std::byte*>(std::aligned_alloc(alignment, padded));
  if (p == nullptr) {
    return make_error(ErrorCode::kOutOfMemory, "buffer of {} bytes: the system has no memory left for it",
                      bytes);
  }
  std::memset(p, 0, padded);
  buffer.data_.reset(p);
  buffer.size_ = bytes;
  return buffer;
}

}  // namespace sluice
