#include "tools/scale/reliable_run.h"

#include <algorithm>

namespace tarpon::scale {

ReliableRun::ReliableRun(Algorithm algorithm, std::uint32_t ranks, std::uint64_t bytes,
                         ReliableFlows& flows, Senders& senders)
    : algorithm_(algorithm),
      ranks_(ranks),
      steps_(step_count(algorithm, ranks)),
      bytes_(bytes),
      flows_(flows),
      senders_(senders) {
  flows_.on_delivered([this](Time now, Rank to, std::uint32_t step) {
    received_[std::size_t{to} * steps_ + step] = 1;
    ++(step < steps_ / 2 ? scattered_ : gathered_)[to];
    if (step_[to] == steps_ || !may_leave(to)) return;
    ++step_[to];
    advance(now, to);
  });
}

bool ReliableRun::may_leave(Rank rank) const {
  const std::uint32_t step = step_[rank];
  if (algorithm_ == Algorithm::tar) {
    // What a rank sends depends on the end of a stage alone.
    if (step + 1 == steps_ / 2) return scattered_[rank] == ranks_ - 1;
    return step + 1 < steps_ || gathered_[rank] == ranks_ - 1;
  }
  if (step_of(algorithm_, ranks_, bytes_, rank, step).receive_bytes == 0) return true;
  return received_[std::size_t{rank} * steps_ + step] != 0;
}

void ReliableRun::advance(Time now, Rank rank) {
  for (; step_[rank] < steps_; ++step_[rank]) {
    const Step step = step_of(algorithm_, ranks_, bytes_, rank, step_[rank]);
    if (step.send_bytes > 0) flows_.send(now, rank, step.to, step.send_bytes, step_[rank]);
    if (!may_leave(rank)) return;
  }
  finished_ = std::max(finished_, now);
}

ReliableRun::Outcome ReliableRun::operate(Time start, const std::vector<Episode>& episodes) {
  step_.assign(ranks_, 0);
  received_.assign(std::size_t{ranks_} * steps_, 0);
  scattered_.assign(ranks_, 0);
  gathered_.assign(ranks_, 0);
  senders_.begin(start, episodes);
  finished_ = start;
  for (Rank rank = 0; rank < ranks_; ++rank) {
    // A straggler has no result before it begins, whoever waits for it.
    if (episodes[rank].late_start) finished_ = std::max(finished_, start + episodes[rank].end());
    advance(start, rank);
  }
  const Time idle = flows_.run(start);
  return {finished_ - start, std::max(idle, finished_)};
}

}  // namespace tarpon::scale
