// Enters what sealed ports do with keys and nonces: of all jobs and communicators of a simulation,
// or of a live test. A nonce that comes twice under a key gives the key away; a port that takes a
// packet which no other port has sealed, or one packet twice, is deceived.
//
// The ledger wraps the cipher, so it sees the real keys and nonces.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "transport/seal/gcm.h"

namespace tarpon {

/// Any thread may call.
class SealLedger {
 public:
  /// The keys of one more port enter here what they seal and what they open. Ports are numbered
  /// from 0. The ledger outlives the library. Throws std::bad_alloc.
  std::unique_ptr<seal::CipherLibrary> next_port(std::unique_ptr<seal::CipherLibrary> library);

  std::size_t ports() const;
  std::uint64_t sealed() const;
  /// Packets that `port` has opened: with a right tag.
  std::uint64_t opened(std::size_t port) const;

  /// Returns the defects in one line; empty: none. Defects are a nonce that came twice under its
  /// key, a packet that was opened and that no other port had sealed, and a packet that one port
  /// has opened twice.
  std::string wrong() const;

 private:
  class Library;
  class Key;
  /// A key, then a nonce.
  using Use = std::array<std::byte, sizeof(seal::Key) + sizeof(seal::Nonce)>;
  struct Hash {
    std::size_t operator()(const Use& use) const;
  };
  struct Entry {
    seal::Tag tag{};
    std::size_t sealer = 0;
    std::vector<std::size_t> openers = {};
  };

  void seals(std::size_t port, const Use& use, const seal::Tag& tag);
  void opens(std::size_t port, const Use& use, const seal::Tag& tag);

  mutable std::mutex mutex_;  // guards the rest
  std::unordered_map<Use, Entry, Hash> entries_;
  std::vector<std::uint64_t> opened_;  // by port
  std::uint64_t repeated_ = 0;         // sealed with the key and the nonce of an earlier packet
  std::uint64_t strange_ = 0;          // opened, but no other port had sealed it
  std::uint64_t again_ = 0;            // opened by a port that had opened it
};

}  // namespace tarpon
