#include "spec/ngram_hash.h"

#include <algorithm>
#include <limits>

#include "spec/primes.h"

namespace sluice::spec {
namespace {

constexpr std::uint64_t kGolden = 0x9E3779B97F4A7C15ULL;

// A search of this many primes takes well under a second; released models need 16.
constexpr std::int64_t kMaxPrimes = 1 << 14;

std::uint64_t mix64(std::uint64_t x) {
  std::uint64_t z = x + kGolden;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
  return z ^ (z >> 31);
}

/// The product as the reference library computes it: int64 that wraps.
std::uint64_t product(std::int64_t token, std::int64_t multiplier) {
  return static_cast<std::uint64_t>(token) * static_cast<std::uint64_t>(multiplier);
}

std::int64_t floor_mod(std::int64_t value, std::int64_t size) {
  const std::int64_t rest = value % size;
  return rest < 0 ? rest + size : rest;
}

}  // namespace

void NgramHash::rows_of(std::span<const std::int32_t> history, std::span<std::int64_t> out) const {
  assert(out.size() == sizes.size());
  const std::size_t length = history.size();
  std::uint64_t bits = product(length == 0 ? eos : history[length - 1], multipliers[0]);
  bool cut = false;  // an EOS among the predecessors blanks itself and all before it
  std::size_t head = 0;
  for (std::size_t s = 1; s < multipliers.size(); ++s) {
    cut = cut || s >= length || history[length - 1 - s] == eos;
    bits ^= product(cut ? eos : history[length - 1 - s], multipliers[s]);
    for (std::int64_t i = 0; i < heads_per_ngram; ++i, ++head) {
      out[head] = floor_mod(static_cast<std::int64_t>(bits), sizes[head]) + offsets[head];
    }
  }
}

Result<NgramHash> derive_ngram_hash(const ModelConfig& config, std::int64_t index) {
  if (!config.ple || !config.eos_token || index < 0 || index >= std::ssize(config.ple->layers)) {
    return make_error(ErrorCode::kInvalidArgument, "n-gram hash: the model has no PLE layer number {}",
                      index);
  }
  const PleConfig& ple = *config.ple;
  const std::int64_t primes = (index + 1) * ple.heads();
  if (primes > kMaxPrimes) {
    return make_error(ErrorCode::kLimit,
                      "n-gram hash: {} primes needed for PLE layer number {}, at most {} are searched",
                      primes, index, kMaxPrimes);
  }
  NgramHash hash;
  hash.heads_per_ngram = ple.heads_per_ngram;
  hash.eos = *config.eos_token;

  const auto most = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  const std::uint64_t half = std::max<std::uint64_t>(1, most / static_cast<std::uint64_t>(config.vocab) / 2);
  const std::uint64_t base =
      static_cast<std::uint64_t>(ple.seed) + 10007U * static_cast<std::uint64_t>(index);
  for (std::int64_t i = 0; i < ple.ngram_size; ++i) {
    const std::uint64_t mixed = mix64(base + kGolden * static_cast<std::uint64_t>(i + 1));
    hash.multipliers.push_back(static_cast<std::int64_t>(2 * (mixed % half) + 1));
  }

  std::uint64_t prime = static_cast<std::uint64_t>(ple.vocab_base) - 1;
  std::int64_t offset = 0;
  for (std::int64_t i = 0; i < primes; ++i) {
    prime = next_prime(prime + 1);
    if (i < index * ple.heads()) continue;  // taken by earlier PLE layers
    hash.sizes.push_back(static_cast<std::int64_t>(prime));
    hash.offsets.push_back(offset);
    offset += static_cast<std::int64_t>(prime);
  }
  hash.rows = (offset + ple.vocab_divisor - 1) / ple.vocab_divisor * ple.vocab_divisor;
  return hash;
}

Result<void> check_ngram_hash(const NgramHash& hash, const PleConfig& ple, std::int64_t table_rows) {
  const auto count = [](std::string_view name, std::size_t found, std::int64_t needed) -> Result<void> {
    if (static_cast<std::int64_t>(found) == needed) return {};
    return make_error(ErrorCode::kCorrupt, "n-gram {}: {} values found, {} needed", name, found, needed);
  };
  SLUICE_TRY(count("layer_multipliers", hash.multipliers.size(), ple.ngram_size));
  SLUICE_TRY(count("ngram_heads_vocab_sizes", hash.sizes.size(), ple.heads()));
  SLUICE_TRY(count("ngram_heads_offsets", hash.offsets.size(), ple.heads()));
  if (hash.heads_per_ngram != ple.heads_per_ngram) {
    return make_error(ErrorCode::kCorrupt, "n-gram heads_per_ngram: {} found, {} needed",
                      hash.heads_per_ngram, ple.heads_per_ngram);
  }
  std::int64_t end = 0;
  for (std::size_t h = 0; h < hash.sizes.size(); ++h) {
    if (hash.sizes[h] <= 0 || hash.sizes[h] > table_rows) {
      return make_error(ErrorCode::kCorrupt,
                        "n-gram ngram_heads_vocab_sizes[{}]: {} found, 1 to {} (table rows) needed", h,
                        hash.sizes[h], table_rows);
    }
    if (hash.offsets[h] != end) {
      return make_error(ErrorCode::kCorrupt,
                        "n-gram ngram_heads_offsets[{}]: {} found, {} (end of the head before) needed", h,
                        hash.offsets[h], end);
    }
    if (hash.sizes[h] > table_rows - end) {
      return make_error(ErrorCode::kCorrupt, "n-gram table: {} rows found, at least {} needed for head {}",
                        table_rows, end + hash.sizes[h], h);
    }
    end += hash.sizes[h];
  }
  return {};
}

}  // namespace sluice::spec
