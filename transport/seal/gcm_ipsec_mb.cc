// libipsec-mb is loaded, not linked: it has 13 MB, and a job without a secret needs nothing of it.
#include "transport/seal/gcm.h"

#if __has_include(<intel-ipsec-mb.h>)

#include <dlfcn.h>
#include <intel-ipsec-mb.h>
#include <openssl/crypto.h>

#include <new>
#include <utility>

namespace tarpon::seal {
namespace {

static_assert(IMB_VERSION_NUM >= IMB_VERSION(1, 0, 0) && IMB_VERSION_NUM < IMB_VERSION(2, 0, 0));

/// The library in this process, and its table of functions. Closes it at the end.
class Loaded {
 public:
  /// Whether it is there with the interface that this file was compiled for.
  bool load() {
    library_ = dlopen("libIPSec_MB.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library_ == nullptr) return false;
    const auto version = find<decltype(&imb_get_version)>("imb_get_version");
    const auto allocate = find<decltype(&alloc_mb_mgr)>("alloc_mb_mgr");
    const auto init = find<decltype(&init_mb_mgr_auto)>("init_mb_mgr_auto");
    release_ = find<decltype(&free_mb_mgr)>("free_mb_mgr");
    if (version == nullptr || version() < IMB_VERSION_NUM || allocate == nullptr ||
        init == nullptr || release_ == nullptr) {
      return false;
    }
    functions_ = allocate(0);
    if (functions_ == nullptr) return false;
    IMB_ARCH architecture = IMB_ARCH_NONE;
    init(functions_, &architecture);
    return architecture != IMB_ARCH_NONE && architecture != IMB_ARCH_NOAESNI;
  }
  Loaded() = default;
  ~Loaded() {
    if (functions_ != nullptr) release_(functions_);
    if (library_ != nullptr) dlclose(library_);
  }
  Loaded(const Loaded&) = delete;
  Loaded& operator=(const Loaded&) = delete;

  IMB_MGR* functions() const { return functions_; }

 private:
  template <typename Function>
  Function find(const char* name) const {
    return reinterpret_cast<Function>(dlsym(library_, name));
  }

  void* library_ = nullptr;
  decltype(&free_mb_mgr) release_ = nullptr;
  IMB_MGR* functions_ = nullptr;
};

class IpsecMbKey final : public GcmKey {
 public:
  IpsecMbKey(IMB_MGR* functions, const Key& key) : functions_(functions) {
    IMB_AES128_GCM_PRE(functions_, key.data(), &key_);
  }
  ~IpsecMbKey() override {
    OPENSSL_cleanse(&key_, sizeof key_);
    OPENSSL_cleanse(&state_, sizeof state_);
  }

  Tag authenticate(const Nonce& nonce, std::span<const std::byte> header,
                   std::span<const std::byte> payload) override {
    Tag tag;
    IMB_AES128_GMAC_INIT(functions_, &key_, &state_, octets(nonce), nonce.size());
    IMB_AES128_GMAC_UPDATE(functions_, &key_, &state_, octets(header), header.size());
    if (!payload.empty()) {
      IMB_AES128_GMAC_UPDATE(functions_, &key_, &state_, octets(payload), payload.size());
    }
    IMB_AES128_GMAC_FINALIZE(functions_, &key_, &state_, octets(tag), tag.size());
    return tag;
  }
  Tag encrypt(const Nonce& nonce, std::span<const std::byte> header,
              std::span<std::byte> payload) override {
    Tag tag;
    IMB_AES128_GCM_ENC(functions_, &key_, &state_, octets(payload), octets(payload), payload.size(),
                       octets(nonce), octets(header), header.size(), octets(tag), tag.size());
    return tag;
  }
  bool decrypt(const Nonce& nonce, std::span<const std::byte> header, std::span<std::byte> payload,
               const Tag& tag) override {
    Tag right;
    IMB_AES128_GCM_DEC(functions_, &key_, &state_, octets(payload), octets(payload), payload.size(),
                       octets(nonce), octets(header), header.size(), octets(right), right.size());
    return equal(right, tag);
  }

 private:
  static const std::uint8_t* octets(std::span<const std::byte> bytes) {
    return reinterpret_cast<const std::uint8_t*>(bytes.data());
  }
  static std::uint8_t* octets(std::span<std::byte> bytes) {
    return reinterpret_cast<std::uint8_t*>(bytes.data());
  }
  static const std::uint8_t* octets(const Nonce& nonce) {
    return reinterpret_cast<const std::uint8_t*>(nonce.data());
  }
  static std::uint8_t* octets(Tag& tag) { return reinterpret_cast<std::uint8_t*>(tag.data()); }

  IMB_MGR* const functions_;
  gcm_key_data key_;
  gcm_context_data state_{};
};

class IpsecMbLibrary final : public CipherLibrary {
 public:
  bool load() { return loaded_.load(); }
  std::string_view name() const override { return "libipsec-mb"; }
  std::unique_ptr<GcmKey> key(const Key& key) override {
    return std::make_unique<IpsecMbKey>(loaded_.functions(), key);
  }

 private:
  Loaded loaded_;
};

}  // namespace

std::unique_ptr<CipherLibrary> ipsec_mb_library() {
  auto library = std::make_unique<IpsecMbLibrary>();
  if (!library->load()) return nullptr;
  return library;
}

}  // namespace tarpon::seal

#else

namespace tarpon::seal {

std::unique_ptr<CipherLibrary> ipsec_mb_library() {
  return nullptr;
}

}  // namespace tarpon::seal

#endif
