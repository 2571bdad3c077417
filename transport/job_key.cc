#include "transport/job_key.h"

#include <openssl/core_names.h>
#include <openssl/kdf.h>
#include <openssl/params.h>

#include <new>

namespace tarpon {

void derive_key(std::span<const std::byte> secret, std::string_view purpose,
                std::span<std::byte> out) {
  EVP_KDF* const kdf = EVP_KDF_fetch(nullptr, "HKDF", nullptr);
  EVP_KDF_CTX* const context = kdf == nullptr ? nullptr : EVP_KDF_CTX_new(kdf);
  EVP_KDF_free(kdf);
  if (context == nullptr) throw std::bad_alloc();
  // OpenSSL only reads them.
  const auto octets = [](const auto& from) {
    return const_cast<void*>(static_cast<const void*>(from.data()));
  };
  char digest[] = "SHA256";
  const OSSL_PARAM params[] = {
      OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, digest, 0),
      OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_KEY, octets(secret), secret.size()),
      OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_INFO, octets(purpose), purpose.size()),
      OSSL_PARAM_construct_end(),
  };
  const int done =
      EVP_KDF_derive(context, reinterpret_cast<unsigned char*>(out.data()), out.size(), params);
  EVP_KDF_CTX_free(context);
  if (done != 1) throw std::bad_alloc();  // the arguments are those of HKDF
}

}  // namespace tarpon
