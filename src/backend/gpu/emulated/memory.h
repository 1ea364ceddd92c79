// Memory of the emulated device: every access is checked against what was allocated and what was written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "base/result.h"

namespace sluice::emulated {

/// What a kernel did wrong. Only thrown while a kernel runs, and caught by the device.
class Fault : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// One range of addresses for all emulated devices of the process: what lies at an address is found by its
/// page. Beside each byte stands whether it was written since it was allocated.
class Arena {
 public:
  static Arena& instance();

  /// Pages of memory, poisoned: not written yet. Fails with kOutOfMemory.
  Result<std::uint64_t> allocate(std::size_t bytes);
  void free(std::uint64_t address);
  void mark_written(std::uint64_t address, std::size_t bytes);

  static constexpr int kPageBits = 12;
  static constexpr std::uint64_t kBytes = std::uint64_t{1} << 36;

  [[nodiscard]] bool valid() const { return memory_ != 0; }

  /// What an access may touch: the end of the allocation that holds `address`, 0 if none does.
  [[nodiscard]] static std::uint64_t end_of(std::uint64_t address) {
    const std::uint64_t offset = address - memory_;
    return offset < kBytes ? ends_[offset >> kPageBits] : 0;
  }
  [[nodiscard]] static std::uint8_t* written(std::uint64_t address) { return written_ + (address - memory_); }
  [[nodiscard]] std::string describe(std::uint64_t address) const;

 private:
  Arena();
  // Of the one instance, and set before anything runs: every access of a kernel looks at them.
  static inline std::uint64_t memory_ = 0;
  static inline std::uint8_t* written_ = nullptr;
  static inline std::uint64_t* ends_ = nullptr;  // [pages] end of the allocation that the page belongs to
  std::map<std::uint64_t, std::uint64_t> used_;  // address: bytes asked for
  std::map<std::uint64_t, std::uint64_t> free_;  // address: bytes, whole pages
};

[[noreturn]] void fault_access(const char* what, std::uint64_t address, std::size_t bytes);
[[noreturn]] void fault_unwritten(std::uint64_t address, std::size_t bytes);

inline void check(const char* what, std::uint64_t address, std::size_t bytes, std::size_t alignment) {
  // An end of 0 is below every address.
  if (address + bytes > Arena::end_of(address) || address % alignment != 0) {
    fault_access(what, address, bytes);
  }
}

/// Whether all of `kBytes` were written: their marks, which are 1, are compared a word at a time.
template <std::size_t kBytes>
bool all_written(const std::uint8_t* marks) {
  using Word = std::conditional_t<kBytes % 8 == 0, std::uint64_t,
                                  std::conditional_t<kBytes % 4 == 0, std::uint32_t, std::uint8_t>>;
  constexpr Word kAll = static_cast<Word>(0x0101010101010101U);
  for (std::size_t i = 0; i < kBytes; i += sizeof(Word)) {
    Word word;
    std::memcpy(&word, marks + i, sizeof word);
    if (word != kAll) return false;
  }
  return true;
}

template <class T, std::size_t kAlignment = sizeof(T)>
T read(std::uint64_t address) {
  check("read", address, sizeof(T), kAlignment);
  if (!all_written<sizeof(T)>(Arena::written(address))) fault_unwritten(address, sizeof(T));
  T value;
  std::memcpy(&value, reinterpret_cast<const void*>(address), sizeof(T));
  return value;
}

template <class T, std::size_t kAlignment = sizeof(T)>
void write(std::uint64_t address, T value) {
  check("write", address, sizeof(T), kAlignment);
  std::memset(Arena::written(address), 1, sizeof(T));
  std::memcpy(reinterpret_cast<void*>(address), &value, sizeof(T));
}

}  // namespace sluice::emulated
