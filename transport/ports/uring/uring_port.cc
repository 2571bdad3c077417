// The io_uring port.
//
// DESIGN NOTES
// 1. Every driving thread has a ring of its own, with DEFER_TASKRUN: the kernel finishes
//    receives and wake-up reads only while that thread is inside io_uring_enter. What a thread has
//    armed therefore stays armed when it stops driving: it interrupts no other system call of that
//    thread, and taking turns costs no system call. A datagram wakes the receives of all rings, but
//    it stays in the socket until the driver's own receive takes it. One ring for all threads was
//    tried: a thread that stopped driving had to cancel what it had armed, since a completion
//    interrupts whatever system call the thread sleeps in (epoll_wait() fails with EINTR), and to
//    arm it anew for its next call. That took 5 us of processor time a call.
// 2. Sends are MSG_DONTWAIT: they end within the submitting call, so frames and lent payloads come
//    back at once. The alternative, letting io_uring retry when the socket has room, would bind the
//    retry to the submitting thread (see 1) and hold lent memory for as long. On EAGAIN the trains
//    go back to the queue and one poll for POLLOUT is armed when the driver sleeps.
// 3. A multishot receive ends when the buffers run out (ENOBUFS). Nothing is lost: datagrams
//    wait in the socket, and receive() arms again when it gives the buffers back. The number of
//    buffers in use is the batch size: it doubles when they ran out and held little, and falls at
//    once where trains fill them.
// 4. A ring takes lockable memory, and the kernel may refuse it at any time. Two rings are opened
//    with the port. A later thread that gets none goes by recvmmsg and sendmmsg on the same
//    sockets.
#include "transport/ports/uring/uring_port.h"

#include <fcntl.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <memory>
#include <vector>

#include "transport/ports/mmsg_port.h"
#include "transport/ports/mmsg_port_state.h"
#include "transport/ports/udp_wait.h"
#include "transport/ports/uring/thread_ring.h"

namespace tarpon {
namespace {

// Low byte of user_data; the bits above hold the train of a send, or which receive it is.
enum class Kind : std::uint8_t { receive, wake, writable, send };

constexpr unsigned kFewestUringBuffers = 8;
/// The most that the buffers in use should hold, so that it is still in L2 when it is used.
constexpr std::size_t kUringTargetBytes = std::size_t{512} << 10;

/// Most rings that are kept. Threads that have stopped driving find theirs at their next turn.
constexpr std::size_t kMaxRings = 8;

constexpr std::uint64_t tag(Kind kind, std::uint64_t value = 0) {
  return value << 8 | static_cast<std::uint64_t>(kind);
}

class UringPort final : public MmsgPort {
 public:
  UringPort(UdpSocket socket, std::span<const sockaddr_in> peers, const UdpPortOptions& options,
            UdpFlows flows, FileDescriptor event, UringRings rings);

  std::span<const RxPacket> receive(Time now) override;
  void wait(Time now, Time until) override;
  PortStatistics statistics() const override;

 private:
  bool adopt_thread();
  bool open_ring();
  bool add_ring(std::unique_ptr<UringRing> ring);
  void close_unused_rings();
  void recycle();
  bool holds_packets() const;
  void hand_out(ThreadRing& own);
  io_uring_sqe* arm(bool& armed);
  void arm_receive();
  void arm_wake();
  void arm_writable();
  void send_queued() override;
  void submit(bool events);
  void sleep(Time now, Time until);
  void reap();
  void on_receive(const io_uring_cqe& completion);
  void on_wake(const io_uring_cqe& completion);
  void on_send(const io_uring_cqe& completion);

  bool woken_ = false;
  std::size_t lent_bytes_ = 0;
  unsigned rx_wanted_ = kFewestUringBuffers;  // buffers of the driver's ring in use
  bool ran_dry_ = false;                      // a receive found no buffer since the last recycle()
  bool blocked_ = false;                      // a socket had no room for a train
  std::uint8_t blocked_flow_ = 0;             // the latest flow without room
  bool group_first_ = false;                  // arms the receive of the group first
  std::uint64_t earlier_system_calls_ = 0;    // of rings that are closed
  std::vector<std::unique_ptr<ThreadRing>> rings_;  // the longest unused one first
  ThreadRing* ring_ = nullptr;                      // of the thread that drives, if it has one
  std::unique_ptr<UringRing> spare_;                // for the second thread that drives
  bool refused_ = false;                            // the kernel refused a ring: no more are opened
};

UringPort::UringPort(UdpSocket socket, std::span<const sockaddr_in> peers,
                     const UdpPortOptions& options, UdpFlows flows, FileDescriptor event,
                     UringRings rings)
    : MmsgPort("uring", std::move(socket), peers, options, std::move(flows), std::move(event)),
      spare_(std::move(rings[1])) {
  refused_ = !add_ring(std::move(rings[0]));
}

// Every round submits trains; a train is split at most once and a full socket ends it, so this
// ends.
void UringPort::send_queued() {
  blocked_ = false;
  if (!adopt_thread()) return MmsgPort::send_queued();
  while (trains_.queued() > 0 && !blocked_ && !failure_) {
    messages_.clear();
    while (trains_.queued() > 0 && !messages_.full()) {
      io_uring_sqe* const entry = ring_->ring->prepare();
      if (entry == nullptr) break;
      const std::uint32_t train = trains_.pop();
      ::io_uring_prep_sendmsg(entry, descriptor(trains_.train(train).flow),
                              &messages_.add(trains_, train), MSG_DONTWAIT);
      entry->user_data = tag(Kind::send, train);
    }
    submit(false);
    reap();
  }
}

void UringPort::submit(bool events) {
  // Entries that stay behind would point to messages of an older batch: the port cannot go on.
  if (const int error = ring_->ring->submit(events); error != 0) fail_with(error, "io_uring_enter");
}

/// Makes the ring of this thread the driver's. False: this thread has none, and goes the way of
/// MmsgPort.
bool UringPort::adopt_thread() {
  const std::uint64_t self = *this_thread();
  if (ring_ != nullptr && ring_->thread == self) return true;
  const auto mine = std::find_if(rings_.begin(), rings_.end(),
                                 [self](const auto& one) { return one->thread == self; });
  if (mine == rings_.end()) return open_ring();
  std::rotate(mine, mine + 1, rings_.end());
  ring_ = rings_.back().get();
  return true;
}

bool UringPort::open_ring() {
  close_unused_rings();
  if (spare_) return add_ring(std::move(spare_));
  if (refused_) return false;
  auto ring = UringRing::open();
  refused_ = !ring || !add_ring(std::move(*ring));
  return !refused_;
}

bool UringPort::add_ring(std::unique_ptr<UringRing> ring) {
  if (!ring->start()) return false;
  ring->supply(rx_wanted_);
  rings_.push_back(std::make_unique<ThreadRing>(std::move(ring)));
  ring_ = rings_.back().get();
  return true;
}

/// Closes the rings of threads that have ended, and the longest unused one if there are too many.
void UringPort::close_unused_rings() {
  const auto is_unused = [this](const auto& one) {
    return one.get() != ring_ && !one->holds_packets();
  };
  const auto close = [this](const auto one) {
    earlier_system_calls_ += (*one)->ring->system_calls;
    return rings_.erase(one);
  };
  for (auto one = rings_.begin(); one != rings_.end();) {
    one = is_unused(*one) && (*one)->thread_has_ended() ? close(one) : one + 1;
  }
  if (rings_.size() < kMaxRings) return;
  const auto unused = std::find_if(rings_.begin(), rings_.end(), is_unused);
  if (unused != rings_.end()) close(unused);
}

io_uring_sqe* UringPort::arm(bool& armed) {
  if (armed) return nullptr;
  io_uring_sqe* const entry = ring_->ring->prepare();
  armed = entry != nullptr;
  return entry;
}

/// Arms the receives that are not. The first one may take all buffers, so they take turns.
void UringPort::arm_receive() {
  const std::array<int, 2> descriptors{socket_.fd(), group_descriptor()};
  group_first_ = !group_first_;
  for (const std::size_t i : {std::size_t{group_first_}, std::size_t{!group_first_}}) {
    if (descriptors[i] < 0) continue;
    io_uring_sqe* const entry = arm(ring_->receives[i]);
    if (entry == nullptr) continue;
    ::io_uring_prep_recvmsg_multishot(entry, descriptors[i], ring_->ring->receive_template(), 0);
    entry->flags |= IOSQE_BUFFER_SELECT;
    entry->buf_group = UringRing::kBufferGroup;
    entry->user_data = tag(Kind::receive, i);
  }
}

void UringPort::arm_wake() {
  if (io_uring_sqe* const entry = arm(ring_->wake)) {
    ::io_uring_prep_read(entry, event_.fd(), &ring_->wake_count, sizeof ring_->wake_count, 0);
    entry->user_data = tag(Kind::wake);
  }
}

void UringPort::arm_writable() {
  if (io_uring_sqe* const entry = arm(ring_->writable)) {
    ::io_uring_prep_poll_add(entry, descriptor(blocked_flow_), POLLOUT);
    entry->user_data = tag(Kind::writable);
  }
}

void UringPort::reap() {
  io_uring_cqe* completion = nullptr;
  unsigned head = 0;
  unsigned count = 0;
  io_uring_for_each_cqe(&ring_->ring->ring(), head, completion) {
    ++count;
    switch (static_cast<Kind>(completion->user_data & 0xff)) {
      case Kind::receive:
        if ((completion->flags & IORING_CQE_F_MORE) == 0) {
          ring_->receives[completion->user_data >> 8] = false;
        }
        on_receive(*completion);
        break;
      case Kind::wake:
        ring_->wake = false;
        on_wake(*completion);
        break;
      case Kind::writable:
        ring_->writable = false;
        break;
      case Kind::send:
        on_send(*completion);
        break;
    }
  }
  ::io_uring_cq_advance(&ring_->ring->ring(), count);
}

void UringPort::on_receive(const io_uring_cqe& completion) {
  if ((completion.flags & IORING_CQE_F_BUFFER) != 0) {
    ring_->stash[ring_->stash_end++ % ring_->stash.size()] = {
        .bytes = completion.res, .buffer = completion.flags >> IORING_CQE_BUFFER_SHIFT};
    return;
  }
  const int error = completion.res < 0 ? -completion.res : 0;
  if (error == ENOBUFS) {
    ++counted_.rx_stalls;
    ran_dry_ = true;
  }
  if (fatal_socket_error(error) || error == EINVAL) fail_with(error, "receive");
}

void UringPort::on_wake(const io_uring_cqe& completion) {
  if (completion.res < 0) return;
  event_.consumed();
  woken_ = true;
}

void UringPort::on_send(const io_uring_cqe& completion) {
  const auto train = static_cast<std::uint32_t>(completion.user_data >> 8);
  const int error = completion.res < 0 ? -completion.res : 0;
  if (error == EAGAIN) {
    blocked_ = true;
    blocked_flow_ = trains_.train(train).flow;
  }
  if (trains_.settle(train, error) == SendOutcome::fatal) fail_with(error, "send");
}

void UringPort::recycle() {
  std::size_t count = 0;
  for (const auto& one : rings_) {
    count += one->lent_count;
    for (; one->lent_count > 0; --one->lent_count) {
      one->ring->recycle(one->lent[one->lent_count - 1]);
    }
  }
  if (count == 0) return;
  const std::size_t fitting = kUringTargetBytes * count / (lent_bytes_ + 1);
  const auto wanted = static_cast<unsigned>(
      std::clamp<std::size_t>(fitting, kFewestUringBuffers, UringRing::kRxBuffers));
  rx_wanted_ = std::min(wanted, ran_dry_ ? rx_wanted_ * 2 : rx_wanted_);
  ran_dry_ = false;
  lent_bytes_ = 0;
}

bool UringPort::holds_packets() const {
  return holds_datagrams() || std::any_of(rings_.begin(), rings_.end(),
                                          [](const auto& one) { return one->has_stash(); });
}

void UringPort::hand_out(ThreadRing& own) {
  for (; own.stash_begin != own.stash_end && !batch_.full(); ++own.stash_begin) {
    const ReceivedBuffer& received = own.stash[own.stash_begin % own.stash.size()];
    RxUnit unit;
    if (own.ring->unit(received.buffer, received.bytes, unit)) batch_.add(unit);
    own.lent[own.lent_count++] = received.buffer;
    lent_bytes_ += unit.bytes;
  }
}

std::span<const RxPacket> UringPort::receive(Time now) {
  batch_.clear();
  recycle();
  if (failure_) return {};
  if (!adopt_thread()) {
    for (const auto& one : rings_) hand_out(*one);
    return batch_.packets().empty() ? MmsgPort::receive(now) : batch_.packets();
  }
  ring_->ring->supply(rx_wanted_);
  settle_for_driver();
  if (trains_.queued() > 0) flush();
  reap();
  if (!ring_->has_stash()) {
    arm_receive();
    submit(ring_->ring->owes_events());
    reap();
  }
  // Packets that earlier drivers left come first: the driver's own ring is the last one.
  hand_out_datagrams();
  for (const auto& one : rings_) hand_out(*one);
  return batch_.packets();
}

void UringPort::wait(Time now, Time until) {
  if (until <= now || failure_) return;
  if (!adopt_thread()) {
    if (!holds_packets()) MmsgPort::wait(now, until);
    return;
  }
  const bool may_sleep = lanes_let_sleep();
  if (!lanes_ && trains_.queued() > 0) flush();
  reap();
  // When all buffers are lent out, a receive cannot even be armed: the caller has to return them.
  const bool starved = ring_->lent_count == ring_->ring->in_use();
  const bool busy = holds_packets() || woken_ || starved || failure_;
  if (!busy && may_sleep) sleep(now, until);
  woken_ = false;
  if (blocked_ && !ring_->writable) flush();
}

void UringPort::sleep(Time now, Time until) {
  arm_receive();
  arm_wake();
  if (trains_.queued() > 0) arm_writable();
  const timespec span = wait_timeout(now, until);
  __kernel_timespec timeout{.tv_sec = span.tv_sec, .tv_nsec = span.tv_nsec};
  io_uring_cqe* completion = nullptr;
  const int done =
      ::io_uring_submit_and_wait_timeout(&ring_->ring->ring(), &completion, 1, &timeout, nullptr);
  ++ring_->ring->system_calls;
  ++counted_.waits;
  // The next call submits entries that were not taken: nothing armed here points to scratch memory.
  if (done < 0 && done != -ETIME && done != -EINTR && done != -EAGAIN && done != -EBUSY) {
    fail_with(-done, "io_uring_enter");
  }
  reap();
}

PortStatistics UringPort::statistics() const {
  PortStatistics result = UdpPort::statistics();
  result.system_calls += earlier_system_calls_;
  for (const auto& one : rings_) result.system_calls += one->ring->system_calls;
  return result;
}

Result<std::unique_ptr<Port>> make_port(UdpSocket socket, std::span<const sockaddr_in> peers,
                                        const UdpPortOptions& options, UdpFlows flows,
                                        UringRings rings) {
  if (auto valid = check_udp_options(options, peers); !valid) return fail(valid.error());
  // io_uring fails a receive on a non-blocking socket instead of waiting for it.
  for (const int fd : {socket.fd(), flows.group ? flows.group->socket.get() : socket.fd()}) {
    const int flags = ::fcntl(fd, F_GETFL);
    if (flags < 0 || ::fcntl(fd, F_SETFL, flags & ~O_NONBLOCK) < 0) {
      return fail_system(errno, "O_NONBLOCK of the UDP socket");
    }
  }
  auto event = WakeEvent::open_bell();
  if (!event) return fail(event.error());
  auto port = std::make_unique<UringPort>(std::move(socket), peers, options, std::move(flows),
                                          std::move(*event), std::move(rings));
  if (auto started = port->start_lanes(options.lanes); !started) return fail(started.error());
  return port;
}

}  // namespace

Result<std::unique_ptr<Port>> make_uring_port(UdpSocket socket, std::vector<sockaddr_in> peers,
                                              UdpPortOptions options, UdpFlows flows) {
  auto rings = open_uring_rings();
  if (!rings) return fail(rings.error());
  return make_port(std::move(socket), peers, options, std::move(flows), std::move(*rings));
}

Result<std::unique_ptr<Port>> make_uring_or_mmsg_port(UdpSocket socket,
                                                      std::vector<sockaddr_in> peers,
                                                      UdpPortOptions options, UdpFlows flows,
                                                      std::string& against_uring) {
  auto rings = open_uring_rings();
  if (rings)
    return make_port(std::move(socket), peers, options, std::move(flows), std::move(*rings));
  against_uring = rings.error().message;
  return make_mmsg_port(std::move(socket), std::move(peers), options, std::move(flows));
}

Result<void> check_uring() {
  return open_uring_rings().map([](const UringRings&) {});
}

}  // namespace tarpon
