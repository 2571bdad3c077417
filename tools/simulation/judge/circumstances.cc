#include "tools/simulation/judge/circumstances.h"

namespace tarpon {
namespace {

// A receive buffer that the initial credit of all peers cannot fill.
constexpr std::uint64_t kRoomyBuffer = 1 << 20;

}  // namespace

bool Circumstances::leaver_gave_up() const {
  return plan_.leave_at != kNever && ended(plan_.victim) &&
         call_.pending[plan_.victim]->report.status == Status::peer_late;
}

bool Circumstances::nothing_but(std::initializer_list<FaultKind> harmless) const {
  FaultSet others = plan_.on;
  for (const FaultKind kind : harmless) others.reset(static_cast<std::size_t>(kind));
  return others.none() && calm_packets() && plan_.pauses.empty();
}

bool Circumstances::disturbs_victim() const {
  return on(FaultKind::partition) || on(FaultKind::one_way) || on(FaultKind::jam) ||
         on(FaultKind::pause) || on(FaultKind::slow_rank) || on(FaultKind::clock_jump) ||
         call_.late;
}

bool Circumstances::deafens_victim() const {
  const Duration enough = EndpointOptions{}.silent_after;
  return (on(FaultKind::jam) && plan_.jam.length() >= enough) ||
         (on(FaultKind::partition) && plan_.cut.length() >= enough);
}

bool Circumstances::calm_packets() const {
  return !plan_.faults.any() && !plan_.links && !on(FaultKind::mask) &&
         !on(FaultKind::starved_buffers) && plan_.receive_bytes >= kRoomyBuffer;
}

bool Circumstances::news_is_in_time() const {
  return nothing_but({FaultKind::refuse, FaultKind::mismatch, FaultKind::two_jobs,
                      FaultKind::hostile, FaultKind::drift, FaultKind::nonfinite}) &&
         plan_.skew == Duration{} && plan_.lateness == Duration{};
}

bool Circumstances::only_late() const {
  for (const FaultKind kind :
       {FaultKind::partition, FaultKind::one_way, FaultKind::jam, FaultKind::pause,
        FaultKind::slow_rank, FaultKind::clock_jump, FaultKind::late_call, FaultKind::no_memory,
        FaultKind::mismatch, FaultKind::refuse, FaultKind::abort, FaultKind::nonfinite,
        FaultKind::hostile, FaultKind::lies}) {
    if (on(kind)) return false;
  }
  return plan_.pauses.empty() && !plan_.loses_victim() && !plan_.may_silence_live_ranks() &&
         plan_.mechanisms.repair && plan_.mechanisms.scatter_repair && plan_.mechanisms.retention;
}

bool Circumstances::only_lacks_gone(Rank rank) const {
  const bool gone = plan_.crashes() && plan_.told_at(rank) < call_.submitted[rank];
  const bool in_time = plan_.lateness == Duration{} && plan_.skew == Duration{};
  return gone && in_time && !plan_.restarts &&
         nothing_but({FaultKind::crash, FaultKind::two_jobs, FaultKind::hostile, FaultKind::drift});
}

Duration Circumstances::paused(Rank rank) const {
  Duration sum{};
  for (const auto& [who, window] : plan_.pauses) sum += who == rank ? window.length() : 0ms;
  return sum;
}

Duration Circumstances::work() const {
  Duration sum{};
  for (Rank rank = 0; rank < plan_.ranks; ++rank) {
    if (ended(rank)) sum += call_.worked[rank];
  }
  return sum;
}

bool Circumstances::receives_of_victim(Rank rank) const {
  if (in_memory()) return passes(plan_.victim, rank);
  return exchanges(rank, &Schedule::Stage::receives);
}

bool Circumstances::sends_to_victim(Rank rank) const {
  if (in_memory()) return passes(rank, plan_.victim);
  return exchanges(rank, &Schedule::Stage::sends);
}

/// Whether the call is a collective that goes through the memory of a host.
bool Circumstances::in_memory() const {
  return !call_.parts.empty() && call_.algorithm == Algorithm::hosts;
}

/// Whether `to` needs data of `from`, whichever ranks pass it on.
bool Circumstances::passes(Rank from, Rank to) const {
  const CollectiveParts& parts = call_.parts[0];
  const auto is_empty = [&](Rank rank) { return call_.count > 0 && parts.parts[rank].count == 0; };
  switch (parts.collective) {
    case Collective::reduce_scatter:
    case Collective::all_to_all:
      return !is_empty(to);
    case Collective::all_gather:
      return !is_empty(from);
    case Collective::broadcast:
      return from == parts.root;
    case Collective::scatter:
      return from == parts.root && !is_empty(to);
    case Collective::reduce:
      return to == parts.root;
    case Collective::gather:
      return to == parts.root && !is_empty(from);
    default:
      return true;
  }
}

bool Circumstances::exchanges(Rank rank,
                              std::vector<Schedule::Message> Schedule::Stage::*messages) const {
  if (call_.parts.empty()) return true;
  const Schedule schedule =
      collective_schedule(call_.parts[rank], plan_.ranks, rank, element_bytes(call_.type));
  return std::any_of(schedule.stages.begin(), schedule.stages.end(), [&](const auto& stage) {
    return std::any_of((stage.*messages).begin(), (stage.*messages).end(),
                       [this](const auto& one) { return one.peer == plan_.victim; });
  });
}

}  // namespace tarpon
