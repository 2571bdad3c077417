// Packets that no rank of the job sends: forged twins of genuine packets. Private to the
// simulation's files.
//
// A twin has the address of the packet's sender, the job's cookie and a correct check sum, except
// where the lie is in one of these: the forger has read a packet on the wire. So it reaches the
// check that has to refuse it, or passes all checks. LieGroup says what it may achieve.
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

/// LieGroup::data: DATA that comes before the genuine one, with another payload: for one of the
/// next 7 operations, which accepts it if it has the same signature, or for one of the next 8
/// slots. Returns false, and changes nothing, if `packet` is not DATA.
bool forge_early_data(ForgedPacket& packet, Random& random);

class Hostile {
 public:
  /// `share`: part of the packets that get a twin.
  Hostile(std::uint64_t seed, double share, Rank ranks, LieGroup group = LieGroup::refused)
      : random_(seed ^ 0x666f7267 ^ std::uint64_t{static_cast<std::uint8_t>(group)} << 32),
        share_(share),
        ranks_(ranks),
        group_(group) {}

  /// The forged twin of a packet to rank `to`; empty if it gets none. Lent until the next call.
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
