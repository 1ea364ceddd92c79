// Checksums that a hub gives for its files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

struct evp_md_ctx_st;

namespace sluice::hub {

/// SHA-256, or the SHA-1 by which git knows a file ("blob SIZE", NUL, content), fed piece by piece.
class Digest {
 public:
  static Digest sha256();
  static Digest git_blob(std::uint64_t size);

  void add(std::span<const std::byte> bytes);
  /// Lower-case hex; the digest is used up.
  std::string hex();

 private:
  struct Free {
    void operator()(evp_md_ctx_st* context) const;
  };
  explicit Digest(bool sha256);
  std::unique_ptr<evp_md_ctx_st, Free> context_;
};

/// Whether `text` is `digits` lower-case hex digits.
bool is_hex(std::string_view text, std::size_t digits);

}  // namespace sluice::hub
