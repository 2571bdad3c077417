// The engine of one communicator, as its driver runs it: one round of work at a time, with what the
// membership has to know of it.
//
// Not thread-safe: the driver's mutex guards it.
#pragma once

#include <cstdint>
#include <string>

#include "collectives/driver/learnt_shares.h"
#include "collectives/driver/rate_meter.h"
#include "collectives/engine/engine.h"
#include "collectives/membership/membership.h"
#include "transport/endpoint_options.h"
#include "transport/port.h"
#include "transport/ports/port_lines.h"

namespace tarpon {

class DrivenEngine {
 public:
  struct Round {
    bool moved = false;        // a packet, a piece of work or a call
    bool calls_ended = false;  // threads that wait have to look
  };

  /// `engine` works on `line`, as the rank that `self` has in its communicator. The membership
  /// learns which ranks are silent, which have passed their calls and which are to be evicted, the
  /// codec evidence of ended calls, and the messages on verdicts that have come. `engine`, `line`
  /// and `membership` outlive this object.
  DrivenEngine(Engine& engine, const EndpointOptions& self, PortLine& line, Membership& membership);
  DrivenEngine(const DrivenEngine&) = delete;
  DrivenEngine& operator=(const DrivenEngine&) = delete;

  Engine& engine() { return engine_; }
  const Engine& engine() const { return engine_; }
  LearntShares& learnt_shares() { return learnt_shares_; }

  /// An event that no packet brought: the next round looks at the engine.
  void note_work() { quiet_ = false; }
  /// Whether progress() may move something.
  bool has_work(Time now) const;
  /// Whether its calls are done, and the peers have been told.
  bool is_still() const { return quiet_ && engine_.outstanding() == 0; }

  /// Drives the engine for one round. `piece_has_ended`: since the last one.
  Round progress(bool piece_has_ended);
  /// Whether the rate of the link is measured at present.
  bool measures_link() const { return meter_.on(); }
  /// The counts of the port, after a round that moved something. REQUIRES: measures_link().
  void note_packets(const PortStatistics& counts, Time now) { meter_.note(counts, now); }
  /// Tells the membership which ranks are silent, and which of them exact calls need, when that has
  /// changed.
  void tell_silent();

  /// Ends outstanding calls and tells the peers. Returns false if it was called before.
  bool stop(Time now);
  bool is_stopped() const { return stopped_; }
  /// Ends outstanding and later calls in the name of this rank, and tells the peers.
  void abort_for_good(const std::string& reason, Time now);

  /// Returns the time of the last packet from rank `of_job` of the job; Time{} if none came, or if
  /// that rank is not in this communicator.
  Time last_heard(Rank of_job) const;
  /// Drops the packets that the port still holds for it. REQUIRES: no thread is inside the port.
  void drop_waiting() { line_.drop_waiting(); }

 private:
  void take_agreements();

  Engine& engine_;
  const Rank rank_;
  PortLine& line_;
  Membership& membership_;
  std::uint64_t silent_ = 0, needed_silent_ = 0;  // as told to the membership
  bool quiet_ = true;  // the last round moved nothing, left nothing in the port; no work came since
  bool stopped_ = false;
  RateMeter meter_;  // packets of other communicators count, too: they share the link
  LearntShares learnt_shares_;
};

}  // namespace tarpon
