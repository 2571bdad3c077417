// A port whose packets only ranks with the job's key can make (TARPON_INTEGRITY_KEYED): what it
// hands on has a right tag, and has come once. Nothing above it sees any other packet.
//
// On the wire: the header, the payload, a tag of 16 bytes (AES-128-GCM) over both. Each direction
// between two ranks counts its packets; the low 31 bits of the number are in tarpon_header::check,
// and the receiver finds the others (ReplayWindow::number()). Bit 31 says that the packet went to
// all ranks: these have a direction of their own. Every direction has its own keys, a new one after
// so many packets (SealOptions), so no nonce comes twice under a key as long as the job's key is
// new.
//
// Cost: `./dev bench trust`. Encrypting takes a copy of each payload, since the caller's memory
// stays as it is.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "transport/job_key.h"
#include "transport/ports/forwarding_port.h"
#include "transport/seal/gcm.h"
#include "transport/seal/replay_window.h"

namespace tarpon {

struct SealOptions {
  JobKey key{};   // of the job
  Rank rank = 0;  // of the job
  std::uint32_t ranks = 1;
  bool encrypts = false;  // payloads; headers are readable in any case
  /// A key seals 2^22 packets: far below the bounds of AES-GCM for packets of 9 KB (RFC 9001,
  /// appendix B.1: 2^23 of 16 KB). Tests alone take less.
  unsigned packets_of_key_shift = 22;
};

class SealedPort : public ForwardingPort {
 public:
  /// REQUIRES: the max_payload of `inner` is at least TARPON_TAG_BYTES. Throws std::bad_alloc.
  SealedPort(std::unique_ptr<Port> inner, const SealOptions& options,
             std::unique_ptr<seal::CipherLibrary> library = seal::fastest_library());

  const PortCapabilities& capabilities() const override { return capabilities_; }
  void transmit(std::span<TxPacket> packets) override;
  std::span<const RxPacket> receive(Time now) override;
  PortStatistics statistics() const override;

 private:
  /// Keys of one direction: of the generation of the latest packet and its neighbours, since
  /// packets may overtake one another. No packet of another generation has a key made for it.
  struct Keys {
    struct Slot {
      std::uint64_t generation = 0;
      std::unique_ptr<seal::GcmKey> key;
    };
    std::array<Slot, 3> slots;  // by generation % 3
  };
  struct Outgoing {
    std::uint64_t next = 0;  // number of the next packet
    Keys keys;
  };
  struct Incoming {
    seal::ReplayWindow window;
    Keys keys;
  };

  seal::GcmKey& key(Keys& keys, Rank sender, Rank receiver, std::uint64_t number);
  void seal(TxPacket& packet);
  bool open(RxPacket& packet);

  SealOptions options_;
  PortCapabilities capabilities_;
  const std::unique_ptr<seal::CipherLibrary> library_;
  std::vector<Outgoing> outgoing_;  // by receiver, then to all
  std::vector<Incoming> incoming_;  // by sender, then from each to all
  std::vector<RxPacket> batch_;
  std::uint64_t forged_ = 0;
  std::uint64_t replayed_ = 0;
};

}  // namespace tarpon
