// Time between attempts, behind an interface so that tests need not wait for it.
#pragma once

#include <chrono>
#include <cstdint>

#include "base/result.h"
#include "hub/connection.h"

namespace sluice::hub {

class Clock {
 public:
  virtual ~Clock() = default;
  /// Sleeps, or returns kCancelled soon after `cancelled` says so. May be called from several threads.
  virtual Result<void> sleep(std::chrono::milliseconds time, const Cancelled& cancelled) = 0;
  /// In [0, 1): spreads clients that were turned away together.
  virtual double jitter() = 0;
  /// Seconds since 1970, for Retry-After with a date.
  [[nodiscard]] virtual std::int64_t now() const = 0;
};

Clock& system_clock();

}  // namespace sluice::hub
