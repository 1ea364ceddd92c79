// Stacks to run functions on, and the switch from one to another.
//
// The address sanitizer is told of each switch. The thread sanitizer is not: it takes the fibers of a group
// for the one thread that runs them, which they are, and so finds groups that race with each other; told of
// hundreds of fibers it would need ten times as long. Only the stacks that it prints are not to be relied on.
#pragma once

#include <boost/context/fiber.hpp>
#include <cstddef>
#include <functional>
#include <utility>

namespace sluice::emulated {

class Fiber {
 public:
  /// Stands for the stack of whoever uses it first.
  Fiber() = default;
  /// A stack of its own. `body` begins with the first switch to it; when it returns, the fiber that switched
  /// here last goes on. It must have returned, or never begun, when this is destroyed, and throws nothing.
  /// Fibers of different `number`s keep their frames in different lines of the caches.
  Fiber(std::size_t number, std::function<void()> body);
  ~Fiber() = default;
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  /// From this fiber, which is the one running, to another; returns when one switches back.
  void switch_to(Fiber& other) {
    other.from_ = this;
#if defined(SLUICE_ADDRESS_SANITIZER)
    void* const kept = leave(other);
#endif
    auto from = std::move(other.go_on_).resume();
#if defined(SLUICE_ADDRESS_SANITIZER)
    arrive(kept);
#endif
    from_->go_on_ = std::move(from);
  }

 private:
  boost::context::fiber go_on_;  // where it waits
  Fiber* from_ = nullptr;        // who switched here last
#if defined(SLUICE_ADDRESS_SANITIZER)
  // `kept` is what the sanitizer wants back when a fiber goes on.
  static void* leave(const Fiber& other);
  void leave_for_good() const;
  void arrive(void* kept);
#endif
  const void* bottom_ = nullptr;
  std::size_t size_ = 0;  // of the stack
};

}  // namespace sluice::emulated
