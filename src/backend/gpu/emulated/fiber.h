// Stacks to run functions on, and the switch from one to another, which sanitizers are told of.
#pragma once

#include <boost/context/fiber.hpp>
#include <cstddef>
#include <functional>

namespace sluice::emulated {

class Fiber {
 public:
  /// Stands for the stack of whoever uses it first.
  Fiber() = default;
  /// A stack of its own. `body` begins with the first switch to it; when it returns, the fiber that switched
  /// here last goes on. It must have returned, or never begun, when this is destroyed, and throws nothing.
  /// Fibers of different `number`s keep their frames in different lines of the caches.
  Fiber(std::size_t number, std::function<void()> body);
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  /// The thread of the system that calls this has this fiber's stack now.
  void adopt();
  /// From this fiber, which is the one running, to another; returns when one switches back.
  void switch_to(Fiber& other);

 private:
  boost::context::fiber go_on_;  // where it waits
  Fiber* from_ = nullptr;        // who switched here last
  bool own_ = false;
  // Of the sanitizers.
  void* watched_ = nullptr;
  const void* bottom_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace sluice::emulated
