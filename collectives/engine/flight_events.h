// Writes the events of calls to the flight recorder. The endpoint writes its own events.
//
// `recorder` may be nullptr in all functions. One thread at a time, as for Recorder::write().
#pragma once

#include "collectives/allreduce.h"
#include "collectives/engine/call/pending_call.h"
#include "collectives/engine/call/signature.h"
#include "collectives/membership/facts.h"
#include "transport/port.h"
#include "transport/recorder.h"
#include "transport/time.h"

namespace tarpon {

/// Writes RecordKind::submitted for `call`, whose number is known, with the time of its submission.
void record_submitted(Recorder* recorder, const PendingCall& call, Time submitted);

/// Writes RecordKind::ended. Before it, writes RecordKind::nonfinite if the result is NaN, and
/// RecordKind::lacked for each peer whose data is missing. Every status but complete is an
/// incident.
void record_ended(Recorder* recorder, const Report& report, Time now);

/// RecordKind::pause: calls are running, the driver last looked at `last`, had to look again at
/// `due` and does so at `now`. Pauses below kShortestPause are not recorded.
inline constexpr Duration kShortestPause = 20ms;
void record_pause(Recorder* recorder, Time last, Time due, Time now);

/// RecordKind::silence: `peer` no longer answers, or is heard again.
void record_silence(Recorder* recorder, Rank peer, bool silent, Time now);

/// RecordKind::standing: `rank`, a peer or this rank itself, has left, is evicted or is dead.
void record_standing(Recorder* recorder, Rank rank, Standing standing, Time now);

/// RecordKind::port_failed.
void record_port_failed(Recorder* recorder, Time now);

/// Notes packets that this rank's own host refused to send.
class SendRefusals {
 public:
  /// Writes RecordKind::send_refused if `counts` has more of them than before, at most once in
  /// kInterval.
  void look(Recorder& recorder, const PortStatistics& counts, Time now);

  static constexpr Duration kInterval = 100ms;

 private:
  std::uint64_t noted_ = 0;
  Time next_{};
};

/// The arguments that a `submitted` record holds; slot bytes are not among them.
OperationSignature submitted_signature(const Record& record);

}  // namespace tarpon
