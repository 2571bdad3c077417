// Packets that no rank of the job sends: forged twins of those that one does. Private to the
// simulation's files.
//
// A twin comes from the address of the packet's sender, with the job's cookie and a check sum that
// is right where the lie is not in that: a forger who has read a packet on the wire. So it reaches
// the check that has to refuse it, or none. LieGroup says what it may achieve.
//
// To add a lie: a case in one of the functions of hostile.cc or lies.cc.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tools/simulation/simulation.h"
#include "transport/random.h"

namespace tarpon {

/// A packet while it is being forged. forge_*() change both parts; the caller sets length and
/// check.
struct ForgedPacket {
  tarpon_header header{};
  std::vector<std::byte> payload;
};

/// LieGroup::numbering: another `closed_below`, or an operation far ahead or behind.
void forge_numbers(ForgedPacket& packet, Random& random);

/// LieGroup::control: a well-formed ABORT, READY, CREDIT, REPAIR, CLOSED or HEARTBEAT of the
/// packet's operation. READY keeps the true signature only in twins of a READY: others have none.
void forge_control(ForgedPacket& packet, Rank ranks, Random& random);

/// LieGroup::data: DATA ahead of the genuine one, with another payload: of one of the next 7
/// operations, taken where that has the same signature, or of one of the next 8 slots. False when
/// `packet` is no DATA, and unchanged.
bool forge_early_data(ForgedPacket& packet, Random& random);

class Hostile {
 public:
  /// `share`: of the packets that have a twin.
  Hostile(std::uint64_t seed, double share, Rank ranks, LieGroup group = LieGroup::refused)
      : random_(seed ^ 0x666f7267 ^ std::uint64_t{static_cast<std::uint8_t>(group)} << 32),
        share_(share),
        ranks_(ranks),
        group_(group) {}

  /// The forged twin of what goes to rank `to`; empty: this one has none. Lent until the next call.
  std::span<const std::byte> twin(Rank to, std::span<const std::byte> packet);

 private:
  bool forge(Rank to);
  void forge_refused(Rank to);

  Random random_;
  const double share_;
  const Rank ranks_;
  const LieGroup group_;
  ForgedPacket forged_;
  std::vector<std::byte> bytes_;
};

}  // namespace tarpon
