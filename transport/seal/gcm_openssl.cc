#include <openssl/evp.h>

#include <cstdlib>
#include <new>

#include "transport/seal/gcm.h"

namespace tarpon::seal {
namespace {

const unsigned char* octets(std::span<const std::byte> bytes) {
  return reinterpret_cast<const unsigned char*>(bytes.data());
}

unsigned char* writable(std::span<std::byte> bytes) {
  return reinterpret_cast<unsigned char*>(bytes.data());
}

/// A step of EVP fails only if the caller makes a mistake.
void require(int result) {
  if (result != 1) std::abort();
}

class Context {
 public:
  explicit Context(const Key& key) : context_(EVP_CIPHER_CTX_new()) {
    if (context_ == nullptr) throw std::bad_alloc();
    require(EVP_CipherInit_ex(context_, EVP_aes_128_gcm(), nullptr, octets(key), nullptr, 1));
  }
  ~Context() { EVP_CIPHER_CTX_free(context_); }  // wipes the key out
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  void begin(const Nonce& nonce, bool encrypts) {
    require(
        EVP_CipherInit_ex(context_, nullptr, nullptr, nullptr, octets(nonce), encrypts ? 1 : 0));
  }
  void authenticate(std::span<const std::byte> data) {
    int done = 0;
    if (data.empty()) return;
    require(
        EVP_CipherUpdate(context_, nullptr, &done, octets(data), static_cast<int>(data.size())));
  }
  void transform(std::span<std::byte> data) {
    int done = 0;
    if (data.empty()) return;
    require(EVP_CipherUpdate(context_, writable(data), &done, octets(data),
                             static_cast<int>(data.size())));
  }
  Tag tag() {
    Tag result;
    int done = 0;
    require(EVP_CipherFinal_ex(context_, writable(result), &done));
    require(EVP_CIPHER_CTX_ctrl(context_, EVP_CTRL_AEAD_GET_TAG, sizeof result, result.data()));
    return result;
  }
  bool has(Tag tag) {
    require(EVP_CIPHER_CTX_ctrl(context_, EVP_CTRL_AEAD_SET_TAG, sizeof tag, tag.data()));
    int done = 0;
    return EVP_CipherFinal_ex(context_, writable(tag), &done) == 1;
  }

 private:
  EVP_CIPHER_CTX* const context_;
};

class OpensslKey final : public GcmKey {
 public:
  explicit OpensslKey(const Key& key) : context_(key) {}

  Tag authenticate(const Nonce& nonce, std::span<const std::byte> header,
                   std::span<const std::byte> payload) override {
    context_.begin(nonce, true);
    context_.authenticate(header);
    context_.authenticate(payload);
    return context_.tag();
  }
  Tag encrypt(const Nonce& nonce, std::span<const std::byte> header,
              std::span<std::byte> payload) override {
    context_.begin(nonce, true);
    context_.authenticate(header);
    context_.transform(payload);
    return context_.tag();
  }
  bool decrypt(const Nonce& nonce, std::span<const std::byte> header, std::span<std::byte> payload,
               const Tag& tag) override {
    context_.begin(nonce, false);
    context_.authenticate(header);
    context_.transform(payload);
    return context_.has(tag);
  }

 private:
  Context context_;
};

class OpensslLibrary final : public CipherLibrary {
 public:
  std::string_view name() const override { return "OpenSSL"; }
  std::unique_ptr<GcmKey> key(const Key& key) override { return std::make_unique<OpensslKey>(key); }
};

}  // namespace

std::unique_ptr<CipherLibrary> openssl_library() {
  return std::make_unique<OpensslLibrary>();
}

}  // namespace tarpon::seal
