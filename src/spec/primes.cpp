#include "spec/primes.h"

#include <initializer_list>

namespace sluice::spec {
namespace {

// Modulus below 2^33: the product of two residues needs more than 64 bits.
__extension__ using Wide = unsigned __int128;

std::uint64_t multiply(std::uint64_t a, std::uint64_t b, std::uint64_t modulus) {
  return static_cast<std::uint64_t>(static_cast<Wide>(a) * b % modulus);
}

std::uint64_t power(std::uint64_t base, std::uint64_t exponent, std::uint64_t modulus) {
  std::uint64_t result = 1;
  for (base %= modulus; exponent != 0; exponent >>= 1) {
    if ((exponent & 1) != 0) result = multiply(result, base, modulus);
    base = multiply(base, base, modulus);
  }
  return result;
}

bool is_witness(std::uint64_t base, std::uint64_t n) {
  std::uint64_t odd = n - 1;
  int twos = 0;
  while ((odd & 1) == 0) {
    odd >>= 1;
    ++twos;
  }
  std::uint64_t x = power(base, odd, n);
  if (x == 1 || x == n - 1) return false;
  for (int i = 1; i < twos; ++i) {
    x = multiply(x, x, n);
    if (x == n - 1) return false;
  }
  return true;
}

}  // namespace

bool is_prime(std::uint64_t n) {
  if (n < 2) return false;
  for (const std::uint64_t p :
       {2U, 3U, 5U, 7U, 11U, 13U, 17U, 19U, 23U, 29U, 31U, 37U, 41U, 43U, 47U, 53U, 59U, 61U}) {
    if (n % p == 0) return n == p;
  }
  return !is_witness(2, n) && !is_witness(7, n) && !is_witness(61, n);
}

std::uint64_t next_prime(std::uint64_t n) {
  while (!is_prime(n)) ++n;
  return n;
}

}  // namespace sluice::spec
