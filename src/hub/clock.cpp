#include "hub/clock.h"

#include <algorithm>
#include <ctime>
#include <random>
#include <thread>

namespace sluice::hub {
namespace {

class SystemClock final : public Clock {
 public:
  Result<void> sleep(std::chrono::milliseconds time, const Cancelled& cancelled) override {
    const auto end = std::chrono::steady_clock::now() + time;
    for (;;) {
      if (cancelled && cancelled()) return make_error(ErrorCode::kCancelled, "cancelled");
      const auto left = end - std::chrono::steady_clock::now();
      if (left <= std::chrono::steady_clock::duration::zero()) return {};
      std::this_thread::sleep_for(
          std::min<std::chrono::steady_clock::duration>(left, std::chrono::milliseconds(100)));
    }
  }
  double jitter() override {
    thread_local std::minstd_rand random(std::random_device{}());
    return std::uniform_real_distribution<double>(0, 1)(random);
  }
  [[nodiscard]] std::int64_t now() const override { return std::time(nullptr); }
};

}  // namespace

Clock& system_clock() {
  static SystemClock clock;
  return clock;
}

}  // namespace sluice::hub
