#include "transport/seal/gcm.h"

namespace tarpon::seal {

std::unique_ptr<CipherLibrary> fastest_library() {
  if (auto library = ipsec_mb_library()) return library;
  return openssl_library();
}

}  // namespace tarpon::seal
