#include "transport/wipe.h"

#include <openssl/crypto.h>

namespace tarpon {

void wipe(std::span<std::byte> memory) {
  OPENSSL_cleanse(memory.data(), memory.size());
}

}  // namespace tarpon
