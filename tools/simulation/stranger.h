// A stranger on the path of a job with a secret: reads its packets, and sends others made of them.
// Nothing that it sends may do more than move a counter, except that a packet which the path lost
// may come by the stranger.
//
// To add an act: a value of StrangerAct, a case in act().
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "transport/random.h"
#include "transport/rank.h"

namespace tarpon {

enum class StrangerAct : std::uint8_t {
  again,     // the packet at once
  old,       // one of an earlier time
  reflect,   // to its sender, as if its receiver had sent it
  redirect,  // to another rank
  rename,    // as if another rank had sent it
  truncate,
  extend,
  alter,   // one bit of header, payload or tag
  header,  // another communicator, type, tag, operation, slot, sender or job
  number,  // of a packet that is still to come, or of a neighbouring key
  splice,  // its header, the payload and the tag of an earlier packet
  kinds    // how many there are
};
inline constexpr std::size_t kStrangerActs = static_cast<std::size_t>(StrangerAct::kinds);

struct StrangerPacket {
  Rank from = 0, to = 0;  // addresses
  std::vector<std::byte> bytes = {};
};

class Stranger {
 public:
  /// Acts on a share of the packets.
  Stranger(std::uint64_t seed, double share, Rank ranks)
      : random_(seed ^ 0x7374726e67), share_(share), ranks_(ranks) {}

  /// Reads a packet. Returns what the stranger sends besides; null: nothing. Lent until the next
  /// call.
  const StrangerPacket* read(Rank from, Rank to, std::span<const std::byte> packet);
  /// Returns one of the packets that it has read, early ones as often as late ones; null: none yet.
  const StrangerPacket* recall();
  /// Makes a packet out of `packet`. Returns false if there is none of this act.
  bool act(StrangerAct act, StrangerPacket& packet);

 private:
  void keep(Rank from, Rank to, std::span<const std::byte> packet);
  Rank other_than(Rank rank);
  bool change_header(std::vector<std::byte>& bytes);

  Random random_;
  const double share_;
  const Rank ranks_;
  std::uint64_t read_ = 0;
  std::vector<StrangerPacket> kept_;  // a sample of all that was read
  StrangerPacket sent_;
};

}  // namespace tarpon
