#include "collectives/engine/hosts/hosted_tar_call.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "collectives/engine/hosts/host_reports.h"
#include "collectives/engine/learning/bounds.h"
#include "collectives/hosts/host_lines.h"

namespace tarpon {
namespace {

using hosts::CallState;
using hosts::Part;

constexpr std::uint32_t kNone = 0xffffffff;

}  // namespace

bool HostedTarCall::suits(const CallArguments& arguments, const Setting& setting,
                          const hosts::HostCalls& calls) {
  if (arguments.algorithm != Algorithm::hosts || !calls.shares()) return false;
  if (arguments.parts || !hosts::own_line(arguments.tag) || arguments.count == 0) return false;
  const hosts::HostLayout& layout = calls.group().layout;
  const bool shared = layout.count() < setting.world;
  const bool even = arguments.shares.even() && !arguments.learn_shares;
  // Without these a rank that is late by a moment would cost its host a slice.
  const bool waits = setting.mechanisms.repair && setting.mechanisms.scatter_repair &&
                     setting.mechanisms.retention && !arguments.bound &&
                     Bounds::waits_for_data(arguments.bound_rule);
  return shared && even && waits && !setting.epoch.flat &&
         HostPlan::fits(layout, calls.group().memory.shape(), setting.slot_bytes);
}

TarCall::OverHosts HostedTarCall::over_hosts(const Setting& setting, const PendingCall& call,
                                             const hosts::HostCalls& calls, NearData& near) {
  const hosts::HostGroup& group = calls.group();
  const HostPlan plan(call.arguments, group.layout, group.memory.shape(), setting.slot_bytes);
  OverHosts result{.layout = CallLayout(call.arguments, plan, group.layout, group.host, group.self,
                                        turn_of(setting, call), setting.slot_bytes),
                   .near = near};
  result.senders = result.layout.partners() | bit(setting.rank);
  return result;
}

HostedTarCall::HostedTarCall(const Setting& setting, const std::shared_ptr<PendingCall>& call,
                             Endpoint& endpoint, hosts::HostCalls& calls, Time submitted, Time now)
    : TarCall(setting, call, endpoint, submitted, now, over_hosts(setting, *call, calls, *this)),
      calls_(calls),
      assignment_(*calls.assign(name())),
      self_(calls.group().self),
      local_(static_cast<std::uint32_t>(calls.group().ranks().size())),
      peers_(self_, local_, encode(signature()), assignment_),
      steps_(call_->arguments, calls.group(), peers_, assignment_, setting.world,
             setting.slot_bytes),
      host_sums_{steps_.summed(), plan().piece_slots(),
                 HostPlan::function_over_hosts(call_->arguments)} {
  sums_.reserve(plan().hosts());
  OperationSpec spec = specify(now);
  for (StageSpec& stage : spec.stages) stage.alike = false;
  spec.stages[kScatter].ready = 0;
  spec.near = first_ranks(setting.world) & ~bit(setting.rank) & ~layout().partners();
  unheard_ = spec.near;
  awaits_near_ = true;
  set_contributors();
  open(std::move(spec), signature(), now);
  assignment_.line->begin(assignment_.number, encode(signature()), steps_.parts(),
                          endpoint_.view(handle()).marks());
  calls_.ring();
}

/// By which the ownership of shards rotates.
std::uint32_t HostedTarCall::turn_of(const Setting& setting, const PendingCall& call) {
  return setting.mechanisms.rotation ? call.report.operation : 0;
}

/// Has the steps keep the contributors to each slot where the packets' are kept.
void HostedTarCall::set_contributors() {
  const hosts::HostLayout& layout_of_hosts = calls_.group().layout;
  const std::uint32_t hosts = plan().hosts();
  const std::uint32_t turn = turn_of(setting_, *call_);
  std::vector<std::uint64_t*> of_shards(std::size_t{plan().owners()} * hosts);
  gathered_.resize(hosts);
  arrived_.resize(hosts);
  own_shard_ = is_owner() ? shard_of(static_cast<Rank>(calls_.group().host), turn, hosts) : kNone;
  if (is_owner()) of_shards[self_ * hosts + own_shard_] = reducer().contributors().data();
  const std::vector<TarShards::Shard>& others = layout().shards().others;
  for (std::size_t i = 0; i < others.size(); ++i) {
    const std::uint32_t host = layout_of_hosts.host_of(others[i].owner);
    const std::vector<Rank>& ranks = layout_of_hosts.hosts[host];
    const auto owner = static_cast<std::uint32_t>(
        std::find(ranks.begin(), ranks.end(), others[i].owner) - ranks.begin());
    const std::uint32_t shard = shard_of(static_cast<Rank>(host), turn, hosts);
    of_shards[owner * hosts + shard] = gather()[i].contributors().data();
    if (owner == self_) gathered_[shard] = i;
  }
  steps_.slots().set(std::move(of_shards), std::size_t{self_} * hosts + own_shard_);
}

OutgoingRun HostedTarCall::Sums::lend(std::uint32_t first, std::uint32_t most) {
  const std::uint32_t slots = steps_.plan().piece_slots();
  const std::vector<std::uint64_t>& summed = steps_.summed();
  const std::uint64_t contributors = summed[first / slots];
  std::uint32_t count = slots - first % slots;
  while (count < most && summed[(first + count) / slots] == contributors) count += slots;
  return {slots_[first], slots_.stride, std::min(count, most), contributors};
}

bool HostedTarCall::has_shards(Time now) {
  if (!is_near_over()) return false;
  hold(now);
  return true;
}

// -- work in the memory --------------------------------------------------------------------------

bool HostedTarCall::advance(Time now) {
  work_near(now);
  if (over()) return true;
  // The endpoint has news of what this rank fetches now.
  if (std::exchange(fetches_, false)) {
    wake_at_ = now;
    return false;
  }
  const bool is_over = TarCall::advance(now);
  if (is_over || is_near_over()) return is_over;
  const bool summed = steps_.done(Part::add_up) == plan().steps();
  wake_at_ = std::min(wake_at_, summed ? shards_until() : sums_until());
  return false;
}

/// Does the work that the memory allows.
void HostedTarCall::work_near(Time now) {
  gather_over_ = closed_.has(kGather) || is_late();
  if (is_late()) steps_.slots().lose_reduced();
  tell_marks();
  look(now);
  if (over()) return;
  note_begun(now);
  if (!is_near_over() && endpoint_.view(handle()).is_stranded()) end_sums();
  if (!is_near_over() && steps_.is_left_out()) {
    endpoint_.near(handle()).left_out(now);
    fetches_ = true;
    end_near();
  }
  take_steps();
  leave_out_absent(now);
  take_marks();
  awaits_near_ = !is_near_over();
  endpoint_.near(handle()).awaits(is_near_over() ? 0 : calls_.group().ranks_of(steps_.blockers()));
}

/// Tells the ranks of the host which ranks have NaN or infinity in their input, before it gives
/// them data of these ranks.
void HostedTarCall::tell_marks() {
  const Marks known = endpoint_.view(handle()).marks();
  if (known.any()) assignment_.line->mark(assignment_.number, known);
}

/// Hears it from them, after it has taken their data.
void HostedTarCall::take_marks() {
  for (std::uint32_t rank = 0; rank < local_; ++rank) {
    if (rank == self_) continue;
    Marks told = assignment_.line->marks(rank, assignment_.number);
    if (!told.any()) continue;
    told.ranks &= first_ranks(setting_.world);
    told.heard = true;
    endpoint_.near(handle()).marked(told);
  }
}

void HostedTarCall::take_steps() {
  const std::uint32_t turns = hosts::kParts * plan().steps();
  bool moved = false;
  for (std::uint32_t turn = 0; turn < turns && !is_near_over(); ++turn) {
    take_results();
    if (!steps_.move()) break;
    moved = true;
    provide_sums();
  }
  if (moved) calls_.ring();
}

/// Goes on without ranks that do not come, where that is due.
void HostedTarCall::leave_out_absent(Time now) {
  if (is_near_over()) return;
  const std::uint64_t ended = peers_.ended();
  const bool summed = steps_.done(Part::add_up) == plan().steps();
  std::uint64_t ranks = 0;
  for (std::uint64_t rest = steps_.blockers(); rest != 0; rest &= rest - 1) {
    const auto rank = static_cast<std::uint32_t>(std::countr_zero(rest));
    const bool gone = (gone_ & bit(calls_.group().ranks()[rank])) != 0;
    if (gone || (ended >> rank & 1) != 0) ranks |= std::uint64_t{1} << rank;
  }
  if (!summed && now >= sums_until()) ranks |= steps_.blockers(true);
  if (now >= shards_until()) ranks |= steps_.blockers();
  if (ranks != 0) {
    steps_.leave_out(ranks);
    calls_.ring(true);
    take_steps();
  }
  if (is_near_over()) return;
  // An earlier call on the line has the turn, and has not left out its own ranks yet.
  const bool unsummed = steps_.done(Part::add_up) < plan().steps();
  if ((unsummed && now >= sums_until()) || now >= shards_until()) {
    end_sums();
  }
}

/// This rank does no more work in the memory. Its sums that are not made yet hold its own
/// contribution alone.
void HostedTarCall::end_sums() {
  steps_.add_up_alone();
  provide_sums();
  end_near();
}

/// Notes which local ranks have begun.
void HostedTarCall::look(Time now) {
  const auto take = [&](std::uint32_t rank, const hosts::HostLine::Told& told, bool) {
    const Rank peer = calls_.group().ranks()[rank];
    if (told.overtaken) return true;  // is_left_out()
    if (told.state == CallState::begun) {
      unheard_ &= ~bit(peer);
      endpoint_.near(handle()).begun(peer, told.signature, now);
    } else if (told.reason != TARPON_ABORT_EXPIRED) {  // that costs the data of the rank alone
      on_event(hosts::abort_event(calls_.group(), rank, told, handle(), setting_.world), now);
    }
    return !over();
  };
  peers_.look(take, now);
}

/// Data of a rank proves that it has begun.
void HostedTarCall::note_begun(Time now) {
  if (unheard_ == 0) return;
  std::uint64_t seen = reducer().slots() == 0 ? 0 : reducer().contributors()[0];
  for (const BufferSink& sink : gather()) {
    if (!sink.contributors().empty()) seen |= sink.contributors()[0];
  }
  for (std::uint64_t rest = seen & unheard_; rest != 0; rest &= rest - 1) {
    const auto rank = static_cast<Rank>(std::countr_zero(rest));
    endpoint_.near(handle()).begun(rank, encode(signature()), now);
  }
  unheard_ &= ~seen;
}

/// Sends and reduces what this rank has added up over its host.
void HostedTarCall::provide_sums() {
  if (!is_owner()) return;
  const std::uint32_t done = steps_.done(Part::add_up);
  for (; provided_steps_ < done; ++provided_steps_) {
    const Range piece = plan().piece(provided_steps_, self_, own_shard_);
    const std::uint64_t bytes = piece.count * layout().element_bytes();
    reducer().provide(slots(bytes, layout().slot_bytes()), steps_.summed()[provided_steps_]);
  }
  if (is_late()) return;
  const bool all = done == plan().steps();
  endpoint_.advance(handle(), kScatter, all ? kAllSlots : done * plan().piece_slots());
}

/// Notes which results of this rank's slice have come.
void HostedTarCall::take_results() {
  if (!is_owner()) return;
  for (std::uint32_t shard = 0; shard < plan().hosts(); ++shard) {
    std::uint32_t& slots = arrived_[shard];
    if (shard == own_shard_) {
      slots = is_late() ? reducer().slots() : reducer().ready();
    } else {
      const ContributorMasks& here = gather()[gathered_[shard]].contributors();
      while (slots < here.size() && (gather_over_ || here[slots] != 0)) ++slots;
    }
    const std::uint64_t bytes = std::uint64_t{slots} * layout().slot_bytes();
    steps_.set_results(
        shard, std::min(bytes / layout().element_bytes(), plan().shard(self_, shard).count));
  }
}

/// This rank does no more work in the memory. The others do without it from now on.
void HostedTarCall::end_near() {
  near_over_ = true;
  const bool ended = over();
  assignment_.line->end(assignment_.number,
                        ended ? hosts::ending_of(call_->report, setting_.rank)
                              : hosts::HostLine::Ending{.state = CallState::over});
  calls_.ring(true);
}

void HostedTarCall::report_bytes() {
  Report& report = call_->report;
  if (report.status != Status::late_self) {
    // What a late rank has fetched from others than its partners is of no use then.
    for (Rank rank = 0; rank < setting_.world; ++rank) {
      if (layout().is_partner(rank)) continue;
      PeerReport& peer = report.peers[rank];
      report.bytes_received -= peer.bytes_received[kScatter] + peer.bytes_received[kGather];
      peer.bytes_expected = peer.bytes_received = {};
    }
    return hosts::report_near(report, calls_.group(), steps_, peers_, layout().element_bytes(),
                              submitted_);
  }
  // A shard counts as received from its owner, whether it came through the memory or by packets.
  const std::vector<TarShards::Shard>& others = layout().shards().others;
  for (std::size_t i = 0; i < others.size(); ++i) {
    if (layout().is_partner(others[i].owner)) continue;
    PeerReport& peer = report.peers[others[i].owner];
    const ContributorMasks& here = gather()[i].contributors();
    std::uint64_t bytes = 0;
    for (std::uint32_t slot = 0; slot < here.size(); ++slot) {
      if (here[slot] != 0) bytes += layout().length_of(others[i].range.count, slot);
    }
    report.bytes_received += bytes - peer.bytes_received[kGather];
    report.bytes_fetched += bytes - peer.bytes_received[kGather];
    peer.bytes_expected[kGather] = others[i].range.count;
    peer.bytes_received[kGather] = bytes;
  }
}

/// The sums have to leave early enough to arrive before the owners end their scatters.
Time HostedTarCall::sums_until() const {
  if (!clock().has_started()) return deadline_;
  const Duration margin = clock().whole() / 4;
  return std::min(deadline_, std::max(clock().latest(kScatter) - margin, clock().started()));
}

Time HostedTarCall::shards_until() const {
  return clock().has_started() ? std::min(deadline_, clock().latest(kGather)) : deadline_;
}

/// Completes the output and the report. Tells the other ranks of a call that ends before its work
/// in the memory.
void HostedTarCall::complete_output() {
  if (!is_near_over()) {
    hold(submitted_ + call_->report.elapsed);
    end_near();
  }
  report_bytes();
  TarCall::complete_output();
}

std::uint64_t HostedTarCall::lacks() const {
  return over() || is_near_over() ? 0 : calls_.group().ranks_of(steps_.blockers());
}

void HostedTarCall::move(Time now) {
  if (can_move()) work_near(now);
}

bool HostedTarCall::can_move() const {
  if (over() || is_mismatched() || !work_.idle() || is_near_over()) return false;
  return peers_.has_news() || steps_.is_left_out() || steps_.can_move();
}

}  // namespace tarpon
