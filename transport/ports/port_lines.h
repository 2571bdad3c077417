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
#include <optional>
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
  /// 0 once the port has sent all packets of this line; until then, those of all lines. Where
  /// packets do not leave in order (PortCapabilities::in_order), always those of all lines.
  std::size_t unsent() const override;
  bool holds(Lender lender) const override;
  void drop_unsent(Lender lender) override;
  std::span<const RxPacket> receive(Time now) override;
  void wait(Time now, Time until) override;
  void wake() override;
  BellName bell() const override;
  void ring(const BellName& bell) override;
  /// PortLine 0 passes it on: drivers know only the windows of communicator 0.
  void publish(std::uint32_t tag, std::uint32_t lowest) override;
  /// Of the port: of all lines.
  PortStatistics statistics() const override;
  /// That of the port, or of PortLines::fail().
  std::optional<Error> failure() const override;

 private:
  friend class PortLines;
  static constexpr std::size_t kFewLenders = 64;
  PortLine(PortLines& lines, std::uint16_t communicator, RankMap ranks);
  Lender salted(Lender lender) const;
  void note(Lender lender);
  bool take(const RxPacket& packet);

  PortLines& lines_;
  const std::uint16_t communicator_;
  const RankMap ranks_;            // of the line in the port
  std::vector<RxPacket> arrived_;  // since receive()
  std::vector<RxPacket> taken_;    // returned by receive()
  // Lenders of packets that may wait in the port, salted; each once. Those that no longer wait are
  // dropped when there are many.
  std::vector<Lender> lenders_;
  std::size_t many_lenders_ = kFewLenders;
  std::uint64_t last_packet_ = 0;  // its number among the packets of all lines
};

class PortLines {
 public:
  /// `world`: the ranks of the port, at most kMaskRanks.
  PortLines(std::unique_ptr<Port> port, std::uint32_t world);
  /// REQUIRES: all lines but line 0 are gone.
  ~PortLines() = default;

  PortLine& first() { return *first_; }

  /// Makes failure() of all lines return `error`, unless the port has failed itself. Their wait()
  /// returns at once from then on.
  void fail(const Error& error) { failure_ = error; }

  /// Opens the line of `communicator`. `ranks[i]` is the rank of the port that is rank i of the
  /// line. REQUIRES: communicator > 0, and it has no line; this object outlives the line.
  std::unique_ptr<PortLine> open(std::uint16_t communicator, std::vector<Rank> ranks);

 private:
  friend class PortLine;
  std::span<const RxPacket> receive_for_all(Time now);
  void drop_unsent(Lender lender);

  std::unique_ptr<Port> port_;
  std::optional<Error> failure_;
  std::uint64_t packets_ = 0;                 // given to the port and not dropped
  std::map<std::uint16_t, PortLine*> lines_;  // without line 0
  std::unique_ptr<PortLine> first_;
};

}  // namespace tarpon
