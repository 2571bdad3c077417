#include "transport/seal/gcm.h"

#include <openssl/crypto.h>

namespace tarpon::seal {

bool equal(const Tag& a, const Tag& b) {
  return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

bool GcmKey::verify(const Nonce& nonce, std::span<const std::byte> header,
                    std::span<const std::byte> payload, const Tag& tag) {
  return equal(authenticate(nonce, header, payload), tag);
}

}  // namespace tarpon::seal
