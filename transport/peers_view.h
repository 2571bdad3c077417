// A look at the peers of an endpoint.
//
// Not thread-safe.
#pragma once

#include <cstdint>

#include "transport/endpoint_options.h"
#include "transport/time.h"

namespace tarpon {

class PeerClocks;
class Participants;
class Sender;

/// Valid as long as the endpoint.
class PeersView {
 public:
  /// Ranks that are silent: bit r: rank r. Bounded operations, open ones and new ones, go on
  /// without a silent rank. Packets that still come from it count. Exact operations wait.
  std::uint64_t silent() const;

  /// Whether silent ranks are found (EndpointOptions::detects_silence).
  bool detects_silence() const;

  /// When the last packet of `peer` came, of any operation; Time{}: never.
  Time last_heard(Rank peer) const;

  /// Number of flows that large messages to peers go over at present, outside of trials.
  std::uint32_t flows() const;

 private:
  friend class Endpoint;
  PeersView(const EndpointOptions& options, const Participants& participants,
            const PeerClocks& clocks, const Sender& sender)
      : options_(options), participants_(participants), clocks_(clocks), sender_(sender) {}

  const EndpointOptions& options_;
  const Participants& participants_;
  const PeerClocks& clocks_;
  const Sender& sender_;
};

}  // namespace tarpon
