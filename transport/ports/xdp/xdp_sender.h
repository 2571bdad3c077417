// The frames that an AF_XDP port sends. A frame belongs to the port until it is sent, then to the
// kernel. Frames that were offered and not used are offered again: a call costs what the last one
// sent.
//
// Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "transport/port.h"
#include "transport/ports/xdp/xdp_frame.h"
#include "xdp/queue.h"

namespace tarpon {

class XdpSender {
 public:
  /// `queue` outlives the sender. `flow_ports`: the source port of each flow, in network order.
  XdpSender(xdp::Queue& queue, std::vector<std::uint16_t> flow_ports);

  std::size_t flows() const { return flow_ports_.size(); }
  std::size_t in_flight() const { return queue_.in_flight(); }
  /// Whether the kernel has to be kicked again for packets that it refused, or for completions.
  bool waits_for_kick() const { return queue_.waits_for_kick(); }
  /// Whether the last offer() gave no frame because too many are in flight. Forgets it.
  bool take_full() { return std::exchange(full_, false); }
  const PortStatistics& counted() const { return counted_; }

  /// Returns up to `at_most` frames to fill. The caller then calls send() or give_back() for each
  /// that it has filled, by its place among them, and passed() with their number.
  std::span<TxPacket> offer(std::size_t at_most);
  const TxPacket& packet(std::size_t at) const { return offered_[at]; }
  /// `headers`: below ours. Counts a packet that the ring refuses as dropped.
  void send(std::size_t at, const LowerHeaders& headers);
  void give_back(std::size_t at) { queue_.give_back_unsent(frames_[at]); }
  void passed(std::size_t count) { passed_ = count; }

  /// Kicks the kernel, again while that makes progress. The next call kicks what is left.
  void kick();
  /// Whether sending has failed for good, in kick() or offer(): error().
  bool has_failed() const { return failed_; }
  int error() const { return queue_.error(); }
  /// Takes back the frames that the kernel has sent.
  void reap() { queue_.reap(); }

 private:
  bool fill(std::size_t at);

  xdp::Queue& queue_;
  const std::vector<std::uint16_t> flow_ports_;
  const std::size_t in_flight_limit_;
  std::vector<TxPacket> offered_;
  std::vector<std::uint32_t> frames_;  // of offered_
  std::size_t passed_ = 0;             // how many of offered_, from the first, have gone
  bool full_ = false;
  bool failed_ = false;
  PortStatistics counted_;
};

}  // namespace tarpon
