// Packets that no rank of the job sends: forged twins of those that one does. Private to the
// simulation's files.
//
// Each lies in one field, and its check sum is right where the lie is not in that, so that it gets
// as far as the check that has to refuse it. A twin that would be taken for what it says (other
// bytes in a slot, another signature) is not among them: only authentication refuses those.
//
// To add a lie: a case in one of the functions of simulation_hostile.cc.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "tools/simulation.h"
#include "transport/random.h"

namespace tarpon {

class Hostile {
 public:
  Hostile(std::uint64_t seed, double share, Rank ranks)
      : random_(seed ^ 0x666f7267), share_(share), ranks_(ranks) {}

  /// The forged twin of what goes to rank `to`; empty: this one has none. Lent until the next call.
  std::span<const std::byte> twin(Rank to, std::span<const std::byte> packet);

 private:
  Random random_;
  const double share_;
  const Rank ranks_;
  std::vector<std::byte> payload_, bytes_;
};

}  // namespace tarpon
