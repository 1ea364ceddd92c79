#include "backend/gpu/emulated/fiber.h"

#include <cstdint>
#include <cstdlib>
#include <new>
#include <utility>

#if defined(SLUICE_ADDRESS_SANITIZER)
#include <sanitizer/common_interface_defs.h>
#endif

namespace sluice::emulated {
namespace {

#if defined(SLUICE_ADDRESS_SANITIZER)
constexpr std::size_t kStack = std::size_t{1} << 18;
#else
constexpr std::size_t kStack = std::size_t{1} << 16;
#endif
constexpr std::size_t kLine = 64;
constexpr std::size_t kPage = 4096;

/// Threads of a group have the same frames at the same depth: were all stacks to end at the same place of a
/// page, these would share the few lines of one set of the cache.
class Stacks {
 public:
  explicit Stacks(std::size_t number) : top_(kStack + number * 17 * kLine % kPage) {}

  boost::context::stack_context allocate() {
    void* bottom = std::aligned_alloc(kPage, kStack + kPage);
    if (bottom == nullptr) throw std::bad_alloc();
    boost::context::stack_context stack;
    stack.size = top_;
    stack.sp = static_cast<std::byte*>(bottom) + top_;
    return stack;
  }
  void deallocate(boost::context::stack_context& stack) noexcept {
    std::free(static_cast<std::byte*>(stack.sp) - stack.size);
  }

 private:
  std::size_t top_;
};

}  // namespace

Fiber::Fiber(std::size_t number, std::function<void()> body) {
  Stacks stacks(number);
  auto stack = stacks.allocate();
  size_ = stack.size;
  bottom_ = static_cast<std::byte*>(stack.sp) - stack.size;
  const boost::context::preallocated place(stack.sp, stack.size, stack);
  go_on_ = boost::context::fiber(std::allocator_arg, place, stacks,
                                 [this, body = std::move(body)](boost::context::fiber&& from) {
#if defined(SLUICE_ADDRESS_SANITIZER)
                                   arrive(nullptr);
#endif
                                   from_->go_on_ = std::move(from);
                                   body();
                                   from_->from_ = this;
#if defined(SLUICE_ADDRESS_SANITIZER)
                                   leave_for_good();
#endif
                                   return std::move(from_->go_on_);
                                 });
}

#if defined(SLUICE_ADDRESS_SANITIZER)
void* Fiber::leave(const Fiber& other) {
  void* kept = nullptr;
  __sanitizer_start_switch_fiber(&kept, other.bottom_, other.size_);
  return kept;
}

void Fiber::leave_for_good() const {
  __sanitizer_start_switch_fiber(nullptr, from_->bottom_, from_->size_);
}

/// Learns the bounds of the stack that one came from: that of a thread of the system is not known otherwise.
void Fiber::arrive(void* kept) {
  __sanitizer_finish_switch_fiber(kept, &from_->bottom_, &from_->size_);
}
#endif

}  // namespace sluice::emulated
