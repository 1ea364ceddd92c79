// Prime numbers for the n-gram hash.
#pragma once

#include <cstdint>

namespace sluice::spec {

/// Whether n is prime; exact for every n below 2^32 + 2^29 (Miller-Rabin with bases 2, 7 and 61).
bool is_prime(std::uint64_t n);

/// The smallest prime that is at least n. n at most 2^32.
std::uint64_t next_prime(std::uint64_t n);

}  // namespace sluice::spec
