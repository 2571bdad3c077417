// The communicator of a job of more than 64 ranks, put together from communicators of at most 64.
//
// Sets of ranks are masks of 64 bits, and every rank of a communicator talks to every other one:
// its control connections, and the first packets of a call, grow with the square of the ranks. So a
// larger job is a grid (grid_layout.h): up to 64 hosts with up to 64 ranks each, as many on each.
// Each rank is in two communicators: that of its host, whose ranks share memory, and that of its
// rail, the ranks of its place on all hosts, over the network. 64 hosts with 16 ranks each are
// 1,024 ranks, of which each has 78 peers.
//
// AllReduce. Slice l of the bucket belongs to place l.
//   scatter  in the host: reduce_scatter. Place l has the sum of slice l over its host
//   rail     AllReduce of the slice over the hosts
//   gather   in the host: all_gather of the slices
// Large buckets go in chunks (GridAllreduce::kChunkBytes), of which several are in different stages
// at a time. Each slice is added up once, so exact calls give the same bits on all ranks.
//
// Bounded calls. The bound holds for the network: the call on the rail has mode, bound, loss target
// and codec as asked; the stages in the host are exact, and their time comes on top. So a late rank
// delays its own host alone. That host is late on its rails, and the other hosts keep the bound. A
// bucket under a given bound is one chunk. A host is out for good when it has lost a rank, has been
// late beyond a call's deadline, or is evicted on a rail (GridEngine): its ranks leave their rails
// and have no calls left. Exact calls of the other hosts then end as peer_left or peer_dead,
// bounded ones go on without that host.
//
// Reports. In numbers of the job: ranks in lists and texts; Report::host_of; Report::mask() has a
// bit for each host. A host counts as a whole: late_ranks and missing have all of its ranks. Of
// this rank's slice alone: status (of a call with a result), missing, lost_*, causes, void_shards,
// late_ranks, nonfinite; other slices of its output may lack other hosts. agree() gives one verdict
// for all. Of this rank's rail: bytes, `peers` (all others are zero), clock_start (of the first
// chunk), bound and held (the longest chunk's), `stages` (the last chunk's), `operation` (the
// number of the first chunk's call on the rail). Not there: runs, coded, contributors,
// nonfinite_ranks.
//
// A call that ends without a result is the last one of its tag: later ones end as aborted. A call
// for which a rank has no memory ends as aborted on all ranks, at that one with
// AbortReason::memory.
//
// Broadcast, all_gather and reduce_scatter: GridExchange says how. Barriers and resync() are
// AllReduces. agree(): the rail's verdict first, then the worst of these in the host; masks of the
// verdict have a bit for each host, and so has LossReport::late. A rank whose sibling does not come
// by the deadline halts. abort() reaches all ranks; of a host that is out, the ranks of that host.
//
// Not there: other collectives, bounded reduce_scatter, messages, calls that follow, shares,
// algorithms that are named, split(), shrink(), rejoin(), jobs without memory that the ranks of a
// host share. Each is refused by name. behind() is 0.
//
// Formed so: all ranks meet as those of any job do. Rank 0 hears from all where they run, and tells
// all the layout. The first rank of each host and of each rail opens a listener, within
// CommunicatorOptions::ports, where its communicator meets: that of a host at 127.0.0.1. Options
// that concern the network are those of the rail; on AF_XDP the ranks of a host divide the queues
// of its link by their places. Each rank then has these threads: the progress threads and the
// control meshes of two communicators, and one that passes a chunk from stage to stage.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "collectives/communicator.h"
#include "collectives/grid/grid_calls.h"
#include "collectives/grid/grid_connection.h"
#include "collectives/grid/live_parts.h"

namespace tarpon::grid {

class GridCommunicator final : public Communicator {
 public:
  /// As Communicator::connect(), for any number of ranks. `key`: for tests of several hosts on one.
  static Result<std::unique_ptr<GridCommunicator>> connect(const CommunicatorOptions& options,
                                                           const HostKey& key = nullptr);
  ~GridCommunicator() override;

  // -- Communicator ------------------------------------------------------------------------------

  Result<void> check_process() const override;
  Rank rank() const override;
  std::uint32_t world_size() const override;
  const std::vector<RankInfo>& ranks() const override;
  std::uint32_t mask_bit(Rank rank) const override { return parts_->layout.host_of(rank); }
  std::uint32_t slot_bytes() const override;
  const std::string& shrunk_slots() const override;
  const std::string& multicast() const override;
  const std::string& hosts() const override;
  tarpon_integrity integrity() const override;
  Result<Report> allreduce(const AllreduceArguments& arguments) override;
  Result<AsyncAllreduce> allreduce_async(const AllreduceArguments& arguments) override;
  Result<Report> collective(const CollectiveArguments& arguments) override;
  Result<AsyncAllreduce> collective_async(const CollectiveArguments& arguments) override;
  Result<Rank> probe(std::uint32_t tag, Duration patience) override;
  std::uint32_t behind(std::uint32_t tag) const override;
  Result<void> set_loss_target(double share) override;
  void abort(const std::string& reason) override;
  StepVerdict agree(std::uint64_t step, const LossReport& report, Duration deadline) override;
  Result<std::unique_ptr<Communicator>> split(const std::vector<Rank>& ranks, std::uint16_t number,
                                              Duration deadline) override;
  Result<std::unique_ptr<Communicator>> shrink(Duration deadline) override;
  Result<std::unique_ptr<Communicator>> rejoin(Duration deadline) override;
  const std::string& left_out() const override;
  std::uint64_t rejoin_wanted() const override;
  void poll(Duration wait) override;
  Result<void> close(Duration deadline) override;
  ControlChannel& control() override;
  void record_flight() override;
  PortStatistics port_statistics() const override;
  EndpointCounters counters() const override;
  Shares learnt_shares(std::uint32_t tag) const override;
  std::uint32_t flows() const override;

 private:
  GridCommunicator(GridConnection connection, std::shared_ptr<GridCalls> calls);
  Result<Report> run_reserved(const AllreduceArguments& arguments) override;
  Result<Report> run(const AllreduceArguments& arguments);

  const std::unique_ptr<ControlChannel> control_;
  const std::unique_ptr<LiveParts> parts_;
  const std::vector<RankInfo> ranks_;
  const std::string hosts_;
  const std::string left_out_;
  const std::shared_ptr<GridCalls> calls_;
  std::mutex agreement_mutex_;
};

}  // namespace tarpon::grid
