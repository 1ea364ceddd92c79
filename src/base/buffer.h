// Aligned memory owned by one object: weights, state, pool slots.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "base/result.h"

namespace sluice {

/// Gives memory back to where AlignedBuffer got it.
struct AlignedFree {
  std::size_t mapped = 0;  // bytes of a mapping; 0: from the heap
  void operator()(std::byte* p) const;
};

/// A fixed-size block of bytes whose address is a multiple of `alignment`. Contents start as zero; a large
/// block takes physical memory only where it is touched, so that state for a long context costs what is used.
class AlignedBuffer {
 public:
  static constexpr std::size_t kDefaultAlignment = 64;

  AlignedBuffer() = default;

  /// Allocates `bytes` (rounded up to the alignment, a power of two). Fails with kOutOfMemory.
  static Result<AlignedBuffer> create(std::size_t bytes, std::size_t alignment = kDefaultAlignment);

  [[nodiscard]] std::byte* data() { return data_.get(); }
  [[nodiscard]] const std::byte* data() const { return data_.get(); }
  [[nodiscard]] std::size_t size() const { return size_; }
  [[nodiscard]] bool empty() const { return size_ == 0; }
  [[nodiscard]] std::span<std::byte> bytes() { return {data_.get(), size_}; }
  [[nodiscard]] std::span<const std::byte> bytes() const { return {data_.get(), size_}; }

  template <class T>
  [[nodiscard]] T* as() {
    return reinterpret_cast<T*>(data_.get());
  }
  template <class T>
  [[nodiscard]] const T* as() const {
    return reinterpret_cast<const T*>(data_.get());
  }

 private:
  std::unique_ptr<std::byte, AlignedFree> data_;
  std::size_t size_ = 0;
};

}  // namespace sluice
