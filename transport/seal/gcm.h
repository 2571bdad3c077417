// AES-128 in Galois/counter mode (NIST SP 800-38D) for packets: tags of 16 bytes over a header and
// a payload, which is left as it is (GMAC), or encrypted in place.
//
// Two libraries do the work: OpenSSL, and Intel's libipsec-mb, which takes a quarter of the time
// for a packet of 1472 bytes (VAES, AVX-512; `./dev bench trust`). The latter is loaded where it is
// installed. A nonce must not come twice under one key.
//
// A key is for one thread at a time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "bpf/wire.h"
#include "transport/job_key.h"

namespace tarpon::seal {

using Key = KeyBytes<16>;
using Nonce = std::array<std::byte, 12>;
using Tag = std::array<std::byte, TARPON_TAG_BYTES>;

/// A key that is ready for use. The destructor wipes it out.
class GcmKey {
 public:
  virtual ~GcmKey() = default;

  /// Returns the tag of `header` and `payload`. REQUIRES: `header` is a multiple of 16 bytes.
  virtual Tag authenticate(const Nonce& nonce, std::span<const std::byte> header,
                           std::span<const std::byte> payload) = 0;
  /// Encrypts `payload` in place. Returns the tag of `header` and of the result.
  virtual Tag encrypt(const Nonce& nonce, std::span<const std::byte> header,
                      std::span<std::byte> payload) = 0;
  /// Decrypts `payload` in place if `tag` is right. Returns whether it is; `payload` is of no use
  /// if not.
  virtual bool decrypt(const Nonce& nonce, std::span<const std::byte> header,
                       std::span<std::byte> payload, const Tag& tag) = 0;

  /// Whether `tag` is that of authenticate(). Takes the same time for all wrong tags.
  virtual bool verify(const Nonce& nonce, std::span<const std::byte> header,
                      std::span<const std::byte> payload, const Tag& tag);
};

/// A library that makes keys. Outlives them.
class CipherLibrary {
 public:
  virtual ~CipherLibrary() = default;
  virtual std::string_view name() const = 0;
  /// Throws std::bad_alloc.
  virtual std::unique_ptr<GcmKey> key(const Key& key) = 0;
};

/// Throws std::bad_alloc.
std::unique_ptr<CipherLibrary> openssl_library();
/// Null: it is not installed, or this build or processor has no use for it.
std::unique_ptr<CipherLibrary> ipsec_mb_library();
/// The faster one of those that are there. Throws std::bad_alloc.
std::unique_ptr<CipherLibrary> fastest_library();

/// Whether `a` and `b` are equal. Takes the same time for all tags that differ.
bool equal(const Tag& a, const Tag& b);

}  // namespace tarpon::seal
