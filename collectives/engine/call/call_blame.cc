#include "collectives/engine/call/call_blame.h"

#include <fmt/format.h>

#include <bit>
#include <chrono>

#include "collectives/rank_list.h"
#include "transport/pair_tag.h"
#include "transport/rank_mask.h"

namespace tarpon {

std::vector<Rank> CallBlame::absent() const {
  std::vector<Rank> ranks = not_begun();
  if (!ranks.empty()) return ranks;
  if (!call_.forwards) return incomplete();
  const std::uint64_t silent = call_.endpoint.peers().silent() & peers();
  if (call_.closed.all()) {
    return ranks_of(silent & call_.endpoint.view(call_.handle).unacknowledged());
  }
  return silent != 0 ? ranks_of(silent) : incomplete();
}

std::uint64_t CallBlame::peers() const {
  return first_ranks(call_.world) & ranks_of_tag(call_.call.arguments.tag) & ~bit(call_.rank);
}

std::vector<Rank> CallBlame::not_begun() const {
  const OperationView operation = call_.endpoint.view(call_.handle);
  std::vector<Rank> ranks;
  for (const Rank peer : ranks_of(peers() & ~call_.unknown)) {
    if (!operation.progress(0, peer).heard) ranks.push_back(peer);
  }
  return ranks;
}

/// The ranks whose message of the earliest stage is incomplete.
std::vector<Rank> CallBlame::incomplete() const {
  const OperationView operation = call_.endpoint.view(call_.handle);
  std::vector<Rank> ranks;
  for (std::uint8_t stage = 0; stage < call_.closed.count() && ranks.empty(); ++stage) {
    for (Rank peer = 0; peer < call_.world; ++peer) {
      const MessageProgress message = operation.progress(stage, peer);
      if (peer != call_.rank && message.received < message.slots) ranks.push_back(peer);
    }
  }
  return ranks.empty() ? ranks_of(operation.awaited_near()) : ranks;
}

bool CallBlame::queued_too_long() const {
  return !call_.behind.empty() && call_.began - call_.submitted > call_.deadline - call_.began;
}

std::vector<Rank> CallBlame::late() const {
  return queued_too_long() ? call_.behind : absent();
}

std::string CallBlame::late_text(const std::vector<Rank>& late) const {
  return fmt::format("no complete answer from {} within the deadline of {} s{}",
                     late.empty() ? "the other ranks" : rendezvous::rank_list(late),
                     std::chrono::duration<double>(call_.call.arguments.deadline).count(),
                     queued_too_long() ? ": most of it was spent behind earlier calls" : "");
}

bool CallBlame::is_cut_off(const Event& late_abort) const {
  const int others = std::popcount(peers());
  if (late_abort.begun_late || others == 1) return false;
  if (2 * std::popcount(late_abort.ranks) > others + 1) return true;
  return !call_.forwards && absent() == std::vector<Rank>{late_abort.peer};
}

std::vector<Rank> CallBlame::late_by(const Event& late_abort) const {
  if (is_cut_off(late_abort)) return {late_abort.peer};
  std::vector<Rank> late = absent();
  std::erase_if(late, [&](Rank rank) { return (late_abort.ranks & bit(rank)) == 0; });
  if (late.empty() && call_.forwards) late = ranks_of(late_abort.ranks & ~bit(call_.rank));
  if (late.empty()) late = {late_abort.peer};
  return late;
}

std::string CallBlame::silence_text() const {
  const int world = std::popcount(peers()) + 1;
  const int answering = world - std::popcount(call_.endpoint.peers().silent() & peers());
  if (answering == world) return "";
  return fmt::format("; {}{} of {} ranks answer", 2 * answering <= world ? "cut off: " : "",
                     answering, world);
}

bool CallBlame::unheard() const {
  if (call_.call.arguments.count > 0 || call_.call.report.mode == Mode::bounded) return false;
  return call_.unknown != 0 || !not_begun().empty();
}

}  // namespace tarpon
