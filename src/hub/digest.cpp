#include "hub/digest.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <new>

namespace sluice::hub {

void Digest::Free::operator()(evp_md_ctx_st* context) const {
  EVP_MD_CTX_free(context);
}

Digest::Digest(bool sha256) : context_(EVP_MD_CTX_new()) {
  // Neither fails but for want of memory: both algorithms are built in.
  if (!context_ || EVP_DigestInit_ex(context_.get(), sha256 ? EVP_sha256() : EVP_sha1(), nullptr) != 1) {
    throw std::bad_alloc();
  }
}

Digest Digest::sha256() {
  return Digest(true);
}

Digest Digest::git_blob(std::uint64_t size) {
  Digest digest(false);
  const std::string head = fmt::format("blob {}", size);
  digest.add(std::as_bytes(std::span(head.c_str(), head.size() + 1)));
  return digest;
}

void Digest::add(std::span<const std::byte> bytes) {
  EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size());
}

std::string Digest::hex() {
  std::array<unsigned char, EVP_MAX_MD_SIZE> bytes{};
  unsigned size = 0;
  EVP_DigestFinal_ex(context_.get(), bytes.data(), &size);
  std::string text;
  for (unsigned i = 0; i < size; ++i) text += fmt::format("{:02x}", bytes[i]);
  return text;
}

bool is_hex(std::string_view text, std::size_t digits) {
  return text.size() == digits && std::all_of(text.begin(), text.end(), [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
         });
}

}  // namespace sluice::hub
