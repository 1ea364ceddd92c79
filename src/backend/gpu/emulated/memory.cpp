#include "backend/gpu/emulated/memory.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <mutex>

namespace sluice::emulated {
namespace {

constexpr std::uint64_t kPage = std::uint64_t{1} << Arena::kPageBits;
constexpr int kPoison = 0xff;  // NaN as a float, far out of range as an index

/// Addresses only: pages take memory when they are touched.
void* reserve(std::size_t bytes) {
  void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return at == MAP_FAILED ? nullptr : at;
}

std::mutex& mutex() {
  static std::mutex one;
  return one;
}

}  // namespace

Arena& Arena::instance() {
  static Arena arena;
  return arena;
}

Arena::Arena() {
  void* memory = reserve(kBytes);
  void* written = reserve(kBytes);
  void* ends = reserve((kBytes >> kPageBits) * sizeof(std::uint64_t));
  if (memory == nullptr || written == nullptr || ends == nullptr) return;
  memory_ = reinterpret_cast<std::uint64_t>(memory);
  written_ = static_cast<std::uint8_t*>(written);
  ends_ = static_cast<std::uint64_t*>(ends);
  // The first page stays free: an address just below an allocation is nobody's.
  free_.emplace(memory_ + kPage, kBytes - kPage);
}

Result<std::uint64_t> Arena::allocate(std::size_t bytes) {
  const std::lock_guard lock(mutex());
  // A page more than is needed lies between allocations.
  if (bytes <= kBytes - 2 * kPage) {
    const std::uint64_t needed = ((bytes + kPage - 1) / kPage + 1) * kPage;
    for (auto range = free_.begin(); range != free_.end(); ++range) {
      if (range->second < needed) continue;
      const std::uint64_t address = range->first;
      const std::uint64_t left = range->second - needed;
      free_.erase(range);
      if (left > 0) free_.emplace(address + needed, left);
      used_.emplace(address, bytes);
      for (std::uint64_t at = 0; at < bytes; at += kPage) {
        ends_[(address + at - memory_) >> kPageBits] = address + bytes;
      }
      std::memset(reinterpret_cast<void*>(address), kPoison, bytes);
      return address;
    }
  }
  return make_error(ErrorCode::kOutOfMemory, "emulated device: {} bytes asked for, it has {} in all", bytes,
                    memory_ == 0 ? 0 : kBytes);
}

void Arena::free(std::uint64_t address) {
  const std::lock_guard lock(mutex());
  const auto used = used_.find(address);
  if (used == used_.end()) return;
  const std::uint64_t bytes = ((used->second + kPage - 1) / kPage + 1) * kPage;
  used_.erase(used);
  for (std::uint64_t at = 0; at < bytes; at += kPage) ends_[(address + at - memory_) >> kPageBits] = 0;
  madvise(reinterpret_cast<void*>(address), bytes, MADV_DONTNEED);
  madvise(written(address), bytes, MADV_DONTNEED);
  auto at = free_.emplace(address, bytes).first;
  const auto next = std::next(at);
  if (next != free_.end() && at->first + at->second == next->first) {
    at->second += next->second;
    free_.erase(next);
  }
  if (at != free_.begin()) {
    const auto before = std::prev(at);
    if (before->first + before->second == at->first) {
      before->second += at->second;
      free_.erase(at);
    }
  }
}

void Arena::mark_written(std::uint64_t address, std::size_t bytes) {
  std::memset(written(address), 1, bytes);
}

std::string Arena::describe(std::uint64_t address) const {
  const std::lock_guard lock(mutex());
  auto after = used_.upper_bound(address);
  if (after == used_.begin()) return "no memory of the device lies there";
  --after;
  const std::uint64_t offset = address - after->first;
  if (offset >= after->second + kPage) return "no memory of the device lies there";
  return fmt::format("offset {} of an allocation of {} bytes", offset, after->second);
}

void fault_access(const char* what, std::uint64_t address, std::size_t bytes) {
  throw Fault(fmt::format("{} of {} bytes out of bounds or not aligned: {}", what, bytes,
                          address == 0 ? "a null address" : Arena::instance().describe(address)));
}

void fault_unwritten(std::uint64_t address, std::size_t bytes) {
  throw Fault(fmt::format("read of {} bytes that nothing has written: {}", bytes,
                          Arena::instance().describe(address)));
}

}  // namespace sluice::emulated
