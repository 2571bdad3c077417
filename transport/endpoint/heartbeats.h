// HEARTBEATs: signs of life of peers that open operations lack (Liveness), and how far ranks are
// with their tags (PassedNews).
//
// Not thread-safe. No clock inside.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "transport/endpoint/open_operations.h"
#include "transport/endpoint/passed_peers.h"
#include "transport/operation/packet_writer.h"
#include "transport/peers/liveness.h"
#include "transport/tags/passed_news.h"

namespace tarpon {

class Heartbeats {
 public:
  /// All outlive it.
  struct Parts {
    const EndpointOptions& options;
    Participants& participants;
    PeerClocks& clocks;
    TagHistory& tags;
    OpenOperations& operations;
    PassedPeers& passed;
    ControlQueue& control;
    Journal& journal;
    PacketWriter& writer;
    Alarm& alarm;
  };
  /// `max_entries`: tags that one HEARTBEAT carries.
  Heartbeats(const Parts& parts, std::size_t max_entries);

  /// An operation was opened: watch for silent peers.
  void watch(Time now) { liveness_.watch(now); }
  /// The lowest open operation of the tag has risen: peers are to be told.
  void tell_progress(TagState& tag_state, Time now);
  /// `peer` was heard.
  void heard(Rank peer, Time now) {
    if (parts_.participants.is_silent(peer)) set_silent(peer, false, now);
  }
  /// Does what is due, and sets the alarm.
  void run(Time now);
  void take(const ControlPacket& packet, Time now);
  /// Fills `frames` with the HEARTBEATs that are due; returns how many.
  std::size_t emit(Time now, std::span<TxPacket> frames);

 private:
  std::uint64_t lacked_ranks() const;
  void check_silence(Time now);
  void set_silent(Rank peer, bool silent, Time now);

  const Parts parts_;
  Liveness liveness_;
  PassedNews news_;
};

}  // namespace tarpon
