// One port for several communicators of a job. Each communicator has a line, which is a port with
// the ranks of that communicator.
//
// PortLine 0 has the ranks of the port. Its receive() takes a batch from the port and sorts the
// packets into the lines by the header's `communicator`. So the driver calls receive() of line 0
// first, and then that of each line whose has_packets() is true. A line that is not asked loses its
// packets at the next receive() of line 0, as on a network.
//
// One thread at a time, as for Port.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "transport/port.h"
#include "transport/rank_map.h"

namespace tarpon {

class PortLines;

class PortLine final : public Port {
 public:
  /// Calls drop_waiting(). Its packets no longer arrive.
  ~PortLine() override;
  PortLine(const PortLine&) = delete;
  PortLine& operator=(const PortLine&) = delete;

  /// The line's number of `rank` of the port; kUnknownRank: it is not in this line.
  Rank own_rank(Rank rank) const { return ranks_.own(rank); }

  /// Drops all packets of this line that wait in the port, since their memory goes.
  void drop_waiting();

  /// Whether receive() has packets. Of line 0 always true: it looks.
  bool has_packets() const { return communicator_ == 0 || !arrived_.empty(); }

  const PortCapabilities& capabilities() const override;
  std::span<TxPacket> transmit_frames(std::size_t at_most) override;
  void transmit(std::span<TxPacket> packets) override;
  /// Of all lines, as they share the port's room.
  std::size_t unsent() const override;
  bool holds(Lender lender) const override;
  void drop_unsent(Lender lender) override;
  std::span<const RxPacket> receive(Time now) override;
  void wait(Time now, Time until) override;
  void wake() override;
  /// PortLine 0 passes it on: drivers know only the windows of communicator 0.
  void publish(std::uint32_t tag, std::uint32_t lowest) override;
  /// Of the port: of all lines.
  PortStatistics statistics() const override;
  std::optional<Error> failure() const override;

 private:
  friend class PortLines;
  PortLine(PortLines& lines, std::uint16_t communicator, RankMap ranks);
  Lender salted(Lender lender) const;
  bool take(const RxPacket& packet);

  PortLines& lines_;
  const std::uint16_t communicator_;
  const RankMap ranks_;            // of the line in the port
  std::vector<RxPacket> arrived_;  // since receive()
  std::vector<RxPacket> taken_;    // returned by receive()
  std::vector<Lender> lenders_;    // of packets that may wait in the port, salted; each once
};

class PortLines {
 public:
  /// `world`: the ranks of the port, at most kMaskRanks.
  PortLines(std::unique_ptr<Port> port, std::uint32_t world);
  /// REQUIRES: all lines but line 0 are gone.
  ~PortLines() = default;

  PortLine& first() { return *first_; }

  /// Opens the line of `communicator`. `ranks[i]` is the rank of the port that is rank i of the
  /// line. REQUIRES: communicator > 0, and it has no line; this object outlives the line.
  std::unique_ptr<PortLine> open(std::uint16_t communicator, std::vector<Rank> ranks);

 private:
  friend class PortLine;
  std::span<const RxPacket> receive_for_all(Time now);

  std::unique_ptr<Port> port_;
  std::map<std::uint16_t, PortLine*> lines_;  // without line 0
  std::unique_ptr<PortLine> first_;
};

}  // namespace tarpon
