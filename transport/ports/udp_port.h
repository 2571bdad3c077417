// What the two ports over a UDP socket have in common: the socket, those of further flows, frames
// and trains to send, the batch received. They differ in how they call the kernel.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "transport/port.h"
#include "transport/ports/rx_batch.h"
#include "transport/ports/send_lanes.h"
#include "transport/ports/udp_flows.h"
#include "transport/ports/udp_options.h"
#include "transport/ports/udp_socket.h"
#include "transport/ports/udp_train.h"
#include "transport/ports/wake_event.h"

namespace tarpon {

class UdpPort : public Port {
 public:
  ~UdpPort() override;
  /// Starts `lanes` - 1 threads that send. `lanes`: that of the options. Call it before all other
  /// functions. Errors: io, as start_error().
  Result<void> start_lanes(std::uint32_t lanes);

  const PortCapabilities& capabilities() const override { return capabilities_; }
  std::span<TxPacket> transmit_frames(std::size_t at_most) override;
  void transmit(std::span<TxPacket> packets) override;
  std::size_t unsent() const override { return trains_.unsent(); }
  bool holds(Lender lender) const override { return trains_.holds(lender); }
  void drop_unsent(Lender lender) override;
  void wake() override { event_.wake(); }
  BellName bell() const override { return event_.name(); }
  void ring(const BellName& bell) override { event_.ring(bell); }
  void end_multicast() override;
  PortStatistics statistics() const override;
  std::optional<Error> failure() const override { return failure_; }

 protected:
  UdpPort(std::string_view name, UdpSocket socket, std::span<const sockaddr_in> peers,
          const UdpPortOptions& options, UdpFlows flows, FileDescriptor event);

  /// Sends queued trains: by lanes if there are many, or the lanes hold some; else in this thread.
  void flush();
  void give_to_lanes();
  /// Gives queued trains to the kernel until none is left or the socket has no room.
  virtual void send_queued() = 0;

  /// Settles what the lanes have sent.
  void settle_lanes();
  /// The same, for a driver that looks at the port next.
  void settle_for_driver();
  /// Refills the lanes before the driver sleeps. Returns false if the driver must not sleep: lanes
  /// have sent trains that it has not seen, or are about to.
  bool lanes_let_sleep();

  void fail_with(int error, const char* what);

  /// Datagrams that the kernel refused at all sockets, asked at most once a millisecond: a driver
  /// reads the statistics before every sleep.
  std::uint64_t refused() const;

  /// The descriptor that packets of `flow` are sent from.
  int descriptor(std::uint8_t flow) const { return flow_descriptor(socket_, more_sockets_, flow); }

  /// Where datagrams for all ranks come in; -1: no group.
  int group_descriptor() const { return capabilities_.multicasts ? group_->socket.get() : -1; }

  UdpSocket socket_;
  std::optional<UdpGroup> group_;
  const std::vector<UdpSocket> more_sockets_;
  PortCapabilities capabilities_;
  WakeEvent event_;
  TrainPool trains_;
  TrainMessages messages_;
  RxBatch batch_;
  PortStatistics counted_;  // system calls, waits, stalls
  std::optional<Error> failure_;
  mutable Time refused_asked_{};
  mutable std::uint32_t refused_latest_ = 0;  // the kernel's counters, which wrap
  mutable std::uint64_t refused_ = 0;
  Time lanes_settled_{};              // when the latest train of a lane was settled
  std::uint64_t lanes_seen_ = 0;      // trains settled when the driver last looked
  std::unique_ptr<SendLanes> lanes_;  // null: the driver sends alone
};

}  // namespace tarpon
