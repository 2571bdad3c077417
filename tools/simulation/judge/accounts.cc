// The oracle of the failure contract's sums: the entries of a report for each rank agree with each
// other, with the schedule and with the loss that the report names.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>

#include "collectives/engine/kernels/reduce.h"
#include "collectives/engine/schedules/exchange_plan.h"
#include "collectives/engine/schedules/host_plan.h"
#include "collectives/engine/schedules/schedule.h"
#include "collectives/engine/schedules/tar_shards.h"
#include "tools/reference/reference.h"
#include "tools/simulation/judge/owned_parts.h"
#include "tools/simulation/simulated_call.h"

namespace tarpon {
namespace {

class Accounts {
 public:
  Accounts(const SimulationPlan& plan, const SimulatedCall& call, Rank rank)
      : plan_(plan),
        call_(call),
        rank_(rank),
        report_(call.pending[rank]->report),
        arguments_(call.pending[rank]->arguments),
        number_(plan.mechanisms.rotation ? report_.operation : 0),
        owned_(plan, arguments_, number_,
               report_.mode == Mode::bounded && report_.algorithm == Algorithm::hosts) {}

  /// Returns what is wrong with the report; empty if nothing is.
  std::string run() {
    if (report_.operation != call_.number) {
      return fmt::format("calls itself operation {}", report_.operation);
    }
    if (report_.peers.size() != plan_.ranks) return "does not report on every rank";
    std::uint64_t received = 0;
    for (Rank peer = 0; peer < plan_.ranks; ++peer) {
      if (std::string wrong = judge_peer(peer); !wrong.empty()) {
        return fmt::format("of rank {} it {}", peer, wrong);
      }
      const PeerReport& of = report_.peers[peer];
      received += of.bytes_received[0] + of.bytes_received[1];
    }
    if (received != report_.bytes_received) return "received more or less than of all ranks";
    if (has_result(report_.status) && report_.stage != CallStage::result)
      return "has a result before its end";
    return judge_late_and_evicted();
  }

 private:
  /// The elements of this rank's result that `owner` owns in a call that is not coded.
  Range elements_of(Rank owner) const {
    if (!call_.has_one_stage()) return owned_.shard(owner);
    if (call_.gathers_parts()) return call_.parts[0].parts[owner];
    return owner == rank_ ? Range{0, call_.output_of(rank_).count} : Range{};
  }
  /// Elements of the result.
  std::uint64_t result_count() const {
    return call_.has_one_stage() ? call_.output_of(rank_).count : arguments_.count;
  }

  /// Elements, or positions, of the shard that `rank` owns.
  std::uint64_t shard_count(Rank rank) const {
    if (!report_.coded) return elements_of(rank).count;
    const std::uint32_t shard = shard_of(rank, number_, plan_.ranks);
    const codec::CodedLayout& coded = report_.coded->layout;
    return rows_dealt(coded.rows(), shard) * coded.row_elements();
  }

  /// How many of the first `rows` rows belong to `shard`.
  std::uint64_t rows_dealt(std::uint64_t rows, std::uint32_t shard) const {
    return rows / plan_.ranks + (shard < rows % plan_.ranks ? 1 : 0);
  }

  std::array<std::uint64_t, 2> bytes_by_host(Rank peer) const {
    const std::size_t width = element_bytes(arguments_.type);
    const hosts::HostLayout layout = plan_.layout();
    const HostPlan plan(arguments_, layout, plan_.host_shape());
    if (plan.whole()) return {arguments_.count * width, 0};
    const std::uint32_t host = layout.host_of(rank_), of_peer = layout.host_of(peer);
    const auto place = [&](Rank rank) {
      const std::vector<Rank>& ranks = layout.hosts[layout.host_of(rank)];
      return static_cast<std::uint32_t>(std::find(ranks.begin(), ranks.end(), rank) -
                                        ranks.begin());
    };
    const std::uint32_t own = place(rank_), other = place(peer);
    const auto owned = [&](std::uint32_t owner) {
      return owner < plan.owners() ? plan.slice(owner).count * width : 0;
    };
    if (host == of_peer) return {owned(own), owned(other)};
    if (own != other || own >= plan.owners()) return {};
    const std::uint32_t turn = plan_.mechanisms.rotation ? number_ : 0;
    const auto shard = [&](std::uint32_t of) {
      return plan.shard(own, shard_of(static_cast<Rank>(of), turn, plan.hosts())).count * width;
    };
    return {shard(host), shard(of_peer)};
  }

  /// Of a collective in the memory of a host.
  std::array<std::uint64_t, 2> bytes_exchanged(Rank peer) const {
    if (peer == rank_) return {};
    const std::size_t width = element_bytes(arguments_.type);
    const hosts::HostLayout layout = plan_.layout();
    const std::uint32_t host = layout.host_of(rank_);
    const ExchangePlan plan(*arguments_.parts, layout, host, width, plan_.host_shape().place_bytes);
    const auto place = [&](Rank rank) {
      const std::vector<Rank>& ranks = layout.hosts[host];
      return static_cast<std::uint32_t>(std::find(ranks.begin(), ranks.end(), rank) -
                                        ranks.begin());
    };
    const std::uint32_t self = place(rank_), from = place(peer);
    std::array<std::uint64_t, 2> bytes{};
    if (layout.host_of(peer) != host) return bytes_received(plan.schedule(self), peer);
    for (std::uint32_t slice = 0; slice < plan.slices() && plan.passes(from, self); ++slice) {
      bytes[0] += plan.target(from, self, slice).count * width;
    }
    return bytes;
  }

  /// Bytes of the messages of `peer` in a schedule.
  std::array<std::uint64_t, 2> bytes_received(const Schedule& schedule, Rank peer) const {
    const bool partials = needs_partials(arguments_.type, arguments_.function);
    std::array<std::uint64_t, 2> bytes{};
    for (std::size_t stage = 0; stage < schedule.stages.size(); ++stage) {
      for (const Schedule::Message& message : schedule.stages[stage].receives) {
        if (message.peer != peer) continue;
        for (const Schedule::Piece& piece : schedule.pieces_of(message)) {
          bytes[std::min<std::size_t>(stage, 1)] +=
              schedule.chunks[piece.chunk].elements.count *
              (piece.partial && partials ? sizeof(float) : element_bytes(arguments_.type));
        }
      }
    }
    return bytes;
  }

  /// Bytes due from `peer` in the first stage, and in all later ones.
  std::array<std::uint64_t, 2> bytes_from(Rank peer) const {
    const std::size_t width = element_bytes(arguments_.type);
    if (owned_.by_hosts()) {
      // A late rank fetches all shards, and says of each how much it has.
      const bool late = report_.status == Status::late_self;
      if (late) {
        const bool talks = owned_.share_slice(rank_, peer);
        return {talks ? shard_count(rank_) * width : 0, shard_count(peer) * width};
      }
      if (owned_.share_host(rank_, peer)) {
        return {owned_.slice(rank_).count * width, owned_.slice(peer).count * width};
      }
      if (!owned_.share_slice(rank_, peer)) return {};
      return {shard_count(rank_) * width, shard_count(peer) * width};
    }
    const bool even =
        arguments_.algorithm == Algorithm::tar && arguments_.shares.even() && !arguments_.parts;
    if (report_.mode == Mode::bounded && call_.gathers_parts()) {
      return {shard_count(peer) * width, 0};
    }
    if (even || report_.mode == Mode::bounded) {
      return {shard_count(rank_) * width, shard_count(peer) * width};
    }
    if (arguments_.algorithm == Algorithm::hosts) {
      return arguments_.parts ? bytes_exchanged(peer) : bytes_by_host(peer);
    }
    const Schedule schedule =
        arguments_.parts ? collective_schedule(*arguments_.parts, plan_.ranks, rank_, width)
                         : schedule_of(arguments_, plan_.ranks, rank_, number_);
    return bytes_received(schedule, peer);
  }

  std::string judge_peer(Rank peer) const {
    const PeerReport& of = report_.peers[peer];
    const bool begun = peer != rank_ && report_.stage != CallStage::queued;
    const std::array<std::uint64_t, 2> due =
        begun ? bytes_from(peer) : std::array<std::uint64_t, 2>{};
    if (of.bytes_expected != due) return "expected other bytes than are due";
    for (std::size_t stage = 0; stage < due.size(); ++stage) {
      if (of.bytes_received[stage] > due[stage]) return "received more than it expected";
      // The shard of another host may come through the memory alone.
      const bool by_packets = !owned_.by_hosts();
      if (of.bytes_received[stage] > 0 && !of.last_heard && by_packets) {
        return "received, but never heard";
      }
    }
    if (of.last_heard && (peer == rank_ || *of.last_heard < Duration{})) {
      return "heard what cannot be";
    }
    if (report_.status == Status::complete && of.bytes_received != due) return "lacks bytes";
    if (!has_result(report_.status))
      return of.contributors == 0 ? "" : "has contributors without a result";
    return report_.mode == Mode::bounded ? judge_loss(peer, of) : "";
  }

  /// Checks the entry for `peer` against the loss by range.
  std::string judge_loss(Rank peer, const PeerReport& of) const {
    if (call_.gathers_parts()) return judge_part(peer, of);
    const std::size_t width = element_bytes(arguments_.type);
    std::uint64_t of_peer = 0, of_shard = 0, common = all_ranks(plan_.ranks);
    for (const ContributorRun& run :
         runs_of(report_, positions_of(report_, result_count()), plan_.ranks)) {
      if ((run.contributors >> peer & 1) != 0) of_peer += overlap(run, rank_);
      const std::uint64_t here = overlap(run, peer);
      if (here > 0) common &= run.contributors;
      if (run.contributors != 0) of_shard += here;
    }
    if (of.contributors != common) return "names other contributors to its shard than its runs";
    const bool is_void = shard_count(peer) > 0 && of_shard == 0;
    const auto& named = report_.void_shards;
    if (is_void != (std::find(named.begin(), named.end(), peer) != named.end())) {
      return "is wrong about which shards are void";
    }
    if (peer == rank_) return "";
    if (owned_.by_hosts() && report_.status != Status::late_self) {
      if (owned_.share_host(rank_, peer)) return judge_near(peer, of);
      if (!owned_.share_slice(rank_, peer)) return "";
    }
    if (of.bytes_received[kGather] != of_shard * width) return "received not what is not lost";
    // A late rank has nothing of its own shard, whatever it received for it.
    const bool counts = report_.status != Status::late_self;
    if (counts && of.bytes_received[kScatter] != of_peer * width) {
      return "received not those contributions that are not lost";
    }
    return "";
  }

  /// The same of an all_gather.
  std::string judge_part(Rank peer, const PeerReport& of) const {
    const std::uint64_t part = shard_count(peer);
    std::uint64_t here = report_.runs.empty() ? part : 0;
    for (const ContributorRun& run : report_.runs) {
      if (run.contributors != 0) here += overlap(run, elements_of(peer));
    }
    if (of.contributors != (here == part ? bit(peer) : 0)) return "is wrong about its part";
    const auto& named = report_.void_shards;
    const bool is_named = std::find(named.begin(), named.end(), peer) != named.end();
    if (is_named != (part > 0 && here == 0)) return "is wrong about which parts are void";
    const std::uint64_t came = peer == rank_ ? 0 : here * element_bytes(arguments_.type);
    return of.bytes_received[kScatter] == came ? "" : "received not what is not lost";
  }

  /// Checks what came from a rank of the same host: the results of its slice. The contributions
  /// that this rank took may be lost on their way to other owners.
  std::string judge_near(Rank peer, const PeerReport& of) const {
    const Range slice = owned_.slice(peer);
    std::uint64_t here = 0;
    for (const ContributorRun& run : runs_of(report_, arguments_.count, plan_.ranks)) {
      if (run.contributors != 0) here += overlap(run, slice);
    }
    const bool agrees = of.bytes_received[kGather] == here * element_bytes(arguments_.type);
    return agrees ? "" : "received not what is not lost of its slice";
  }

  static std::uint64_t overlap(const ContributorRun& run, Range range) {
    const std::uint64_t first = std::max(run.first, range.first);
    const std::uint64_t end = std::min(run.first + run.count, range.end());
    return end > first ? end - first : 0;
  }

  /// How much of the run lies in the shard that `owner` owns.
  std::uint64_t overlap(const ContributorRun& run, Rank owner) const {
    if (report_.coded) {
      const std::uint32_t shard = shard_of(owner, number_, plan_.ranks);
      const std::uint64_t row = report_.coded->layout.row_elements();
      return (rows_dealt((run.first + run.count) / row, shard) -
              rows_dealt(run.first / row, shard)) *
             row;
    }
    return overlap(run, elements_of(owner));
  }

  std::string judge_late_and_evicted() const {
    const std::uint64_t results = std::accumulate(
        report_.peers.begin(), report_.peers.end(), std::uint64_t{0},
        [](std::uint64_t sum, const PeerReport& of) { return sum + of.bytes_received[kGather]; });
    const bool late = report_.status == Status::late_self;
    if (report_.bytes_fetched != (late ? results : 0)) return "fetched more or less than it has";
    const bool out = report_.status == Status::evicted && rank_ == plan_.victim;
    const std::uint32_t missed = report_.operations_missed;
    if (!out) return missed == 0 ? "" : "misses operations, and is not evicted";
    const bool among = report_.first_missed <= report_.operation &&
                       report_.operation - report_.first_missed < missed;
    return among ? "" : "is evicted, and does not miss this operation";
  }

  const SimulationPlan& plan_;
  const SimulatedCall& call_;
  const Rank rank_;
  const Report& report_;
  const CallArguments& arguments_;
  const std::uint32_t number_;
  const OwnedParts owned_;
};

}  // namespace

std::string judge_accounts(const SimulationPlan& plan, const SimulatedCall& call, Rank rank) {
  return Accounts(plan, call, rank).run();
}

}  // namespace tarpon
