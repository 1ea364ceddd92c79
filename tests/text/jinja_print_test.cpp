// Numbers as Python prints them.
#include "text/jinja/print.h"

#include <gtest/gtest.h>

#include <array>

namespace sluice::text::jinja {
namespace {

/// Leaves digits on the stack, where the next call has its buffers.
[[gnu::noinline]] void leave_digits() {
  std::array<char, 4096> digits{};
  for (volatile char& c : digits) c = '7';
}

TEST(JinjaPrint, FloatsDoNotDependOnWhatMemoryHeldBefore) {
  for (const auto& [value, text] :
       {std::pair{42.5, "42.5"}, {0.001, "0.001"}, {1e22, "1e+22"}, {-2.5e-7, "-2.5e-07"}}) {
    leave_digits();
    EXPECT_EQ(float_text(value), text);
  }
}

}  // namespace
}  // namespace sluice::text::jinja
