#include "tools/simulation/seal_ledger.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace tarpon {

class SealLedger::Key final : public seal::GcmKey {
 public:
  Key(SealLedger& ledger, std::size_t port, const seal::Key& key,
      std::unique_ptr<seal::GcmKey> inner)
      : ledger_(ledger), port_(port), key_(key), inner_(std::move(inner)) {}

  seal::Tag authenticate(const seal::Nonce& nonce, std::span<const std::byte> header,
                         std::span<const std::byte> payload) override {
    const seal::Tag tag = inner_->authenticate(nonce, header, payload);
    ledger_.seals(port_, use(nonce), tag);
    return tag;
  }
  seal::Tag encrypt(const seal::Nonce& nonce, std::span<const std::byte> header,
                    std::span<std::byte> payload) override {
    const seal::Tag tag = inner_->encrypt(nonce, header, payload);
    ledger_.seals(port_, use(nonce), tag);
    return tag;
  }
  bool verify(const seal::Nonce& nonce, std::span<const std::byte> header,
              std::span<const std::byte> payload, const seal::Tag& tag) override {
    const bool right = inner_->verify(nonce, header, payload, tag);
    if (right) ledger_.opens(port_, use(nonce), tag);
    return right;
  }
  bool decrypt(const seal::Nonce& nonce, std::span<const std::byte> header,
               std::span<std::byte> payload, const seal::Tag& tag) override {
    const bool right = inner_->decrypt(nonce, header, payload, tag);
    if (right) ledger_.opens(port_, use(nonce), tag);
    return right;
  }

 private:
  Use use(const seal::Nonce& nonce) const {
    Use result;
    std::copy(key_.begin(), key_.end(), result.begin());
    std::copy(nonce.begin(), nonce.end(), result.begin() + sizeof key_);
    return result;
  }

  SealLedger& ledger_;
  const std::size_t port_;
  const seal::Key key_;
  const std::unique_ptr<seal::GcmKey> inner_;
};

class SealLedger::Library final : public seal::CipherLibrary {
 public:
  Library(SealLedger& ledger, std::size_t port, std::unique_ptr<seal::CipherLibrary> inner)
      : ledger_(ledger), port_(port), inner_(std::move(inner)) {}
  std::string_view name() const override { return inner_->name(); }
  std::unique_ptr<seal::GcmKey> key(const seal::Key& key) override {
    return std::make_unique<Key>(ledger_, port_, key, inner_->key(key));
  }

 private:
  SealLedger& ledger_;
  const std::size_t port_;
  const std::unique_ptr<seal::CipherLibrary> inner_;
};

std::size_t SealLedger::Hash::operator()(const Use& use) const {
  std::size_t key = 0, number = 0;  // a key looks random; a nonce begins with the number
  std::memcpy(&key, use.data(), sizeof key);
  std::memcpy(&number, use.data() + sizeof(seal::Key), sizeof number);
  return key ^ number * 0x9e3779b97f4a7c15;
}

std::unique_ptr<seal::CipherLibrary> SealLedger::next_port(
    std::unique_ptr<seal::CipherLibrary> library) {
  const std::lock_guard lock(mutex_);
  opened_.push_back(0);
  return std::make_unique<Library>(*this, opened_.size() - 1, std::move(library));
}

void SealLedger::seals(std::size_t port, const Use& use, const seal::Tag& tag) {
  const std::lock_guard lock(mutex_);
  if (!entries_.try_emplace(use, Entry{.tag = tag, .sealer = port}).second) ++repeated_;
}

void SealLedger::opens(std::size_t port, const Use& use, const seal::Tag& tag) {
  const std::lock_guard lock(mutex_);
  ++opened_[port];
  const auto found = entries_.find(use);
  if (found == entries_.end() || found->second.tag != tag || found->second.sealer == port) {
    ++strange_;
    return;
  }
  std::vector<std::size_t>& openers = found->second.openers;
  if (std::find(openers.begin(), openers.end(), port) != openers.end()) {
    ++again_;
  } else {
    openers.push_back(port);
  }
}

std::size_t SealLedger::ports() const {
  const std::lock_guard lock(mutex_);
  return opened_.size();
}

std::uint64_t SealLedger::sealed() const {
  const std::lock_guard lock(mutex_);
  return entries_.size() + repeated_;
}

std::uint64_t SealLedger::opened(std::size_t port) const {
  const std::lock_guard lock(mutex_);
  return opened_[port];
}

std::string SealLedger::wrong() const {
  const std::lock_guard lock(mutex_);
  if (repeated_ + strange_ + again_ == 0) return "";
  return fmt::format(
      "{} packets have key and nonce of an earlier one; {} were opened that no other port had "
      "sealed, and {} that the port had opened before",
      repeated_, strange_, again_);
}

}  // namespace tarpon
