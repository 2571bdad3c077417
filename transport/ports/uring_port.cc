// The io_uring port.
//
// DESIGN NOTES
// 1. Completions that the kernel finishes in a task (polled receives, the wake-up read) run in the
//    thread that armed them, whenever it next enters the kernel. So each thread that starts to
//    drive arms its own and cancels those of its predecessor. Until the predecessor has let go,
//    both deliver: a completion is taken whatever its generation, and only the current generation
//    decides whether to arm anew. When a thread exits, the kernel cancels what it armed, which is
//    seen as an ordinary end.
// 2. Sends are MSG_DONTWAIT: they end within the submitting call, so frames and lent payloads come
//    back at once. The alternative, letting io_uring retry when the socket has room, would bind the
//    retry to the submitting thread (see 1) and hold lent memory for as long. On EAGAIN the trains
//    go back to the queue and one poll for POLLOUT is armed when the driver sleeps.
// 3. A multishot receive ends when the buffers run out (ENOBUFS). Nothing is lost: datagrams
//    wait in the socket, and receive() arms again when it gives the buffers back. The number of
//    buffers is the batch size.
#include "transport/ports/uring_port.h"

#include <fcntl.h>
#include <poll.h>

#include <array>
#include <cerrno>
#include <thread>

#include "transport/ports/udp_port.h"
#include "transport/ports/udp_wait.h"
#include "transport/ports/uring_ring.h"

namespace tarpon {
namespace {

// Low byte of user_data; above it the generation, or the train of a send.
enum class Kind : std::uint8_t { receive, wake, writable, send, cancel };

constexpr std::uint64_t tag(Kind kind, std::uint64_t value) {
  return value << 8 | static_cast<std::uint64_t>(kind);
}

class UringPort final : public UdpPort {
 public:
  UringPort(UdpSocket socket, std::span<const sockaddr_in> peers, const UdpPortOptions& options,
            UdpFlows flows, FileDescriptor event, std::unique_ptr<UringRing> ring);

  std::span<const RxPacket> receive(Time now) override;
  void wait(Time now, Time until) override;
  PortStatistics statistics() const override;

 private:
  // Something armed in the ring by the current generation.
  struct Armed {
    Kind kind;
    bool on = false;
  };
  struct Received {
    int bytes = 0;
    unsigned buffer = 0;
  };

  void adopt_thread();
  io_uring_sqe* arm(Armed& what);
  void arm_receive();
  void arm_wake();
  void arm_writable();
  void flush() override;
  void submit(bool events);
  void sleep(Time now, Time until);
  void reap();
  void on_receive(const io_uring_cqe& completion);
  void on_wake(const io_uring_cqe& completion);
  void on_send(const io_uring_cqe& completion);

  std::uint64_t wake_count_ = 0;  // where the armed read puts the eventfd's count
  bool woken_ = false;

  // Received and not yet handed out; each holds a buffer, so there are never more.
  std::array<Received, UringRing::kRxBuffers> stash_{};
  std::size_t stash_begin_ = 0;
  std::size_t stash_end_ = 0;
  std::array<unsigned, UringRing::kRxBuffers> lent_{};  // buffers behind batch_
  std::size_t lent_count_ = 0;

  std::thread::id driver_;
  std::uint64_t generation_ = 0;
  Armed receive_{Kind::receive};
  Armed wake_{Kind::wake};
  Armed writable_{Kind::writable};
  bool blocked_ = false;             // a socket had no room for a train
  std::uint8_t blocked_flow_ = 0;    // whose, latest
  std::unique_ptr<UringRing> ring_;  // last: closed first, while what it points to is alive
};

UringPort::UringPort(UdpSocket socket, std::span<const sockaddr_in> peers,
                     const UdpPortOptions& options, UdpFlows flows, FileDescriptor event,
                     std::unique_ptr<UringRing> ring)
    : UdpPort("uring", std::move(socket), peers, options, std::move(flows), std::move(event)),
      driver_(std::this_thread::get_id()),
      ring_(std::move(ring)) {}

// Every round submits trains; a train is split at most once and a full socket ends it, so this
// ends.
void UringPort::flush() {
  blocked_ = false;
  while (trains_.queued() > 0 && !blocked_ && !failure_) {
    messages_.clear();
    while (trains_.queued() > 0 && !messages_.full()) {
      io_uring_sqe* const entry = ring_->prepare();
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
  // Entries that stay behind would point to messages of an older batch: no way to go on.
  if (const int error = ring_->submit(events); error != 0) fail_with(error, "io_uring_enter");
}

void UringPort::adopt_thread() {
  const std::thread::id self = std::this_thread::get_id();
  if (self == driver_) return;
  driver_ = self;
  for (Armed* armed : {&receive_, &wake_, &writable_}) {
    if (!armed->on) continue;
    armed->on = false;
    if (io_uring_sqe* const entry = ring_->prepare()) {
      ::io_uring_prep_cancel64(entry, tag(armed->kind, generation_), 0);
      entry->user_data = tag(Kind::cancel, 0);
    }
  }
  ++generation_;
}

io_uring_sqe* UringPort::arm(Armed& what) {
  if (what.on) return nullptr;
  io_uring_sqe* const entry = ring_->prepare();
  what.on = entry != nullptr;
  return entry;
}

void UringPort::arm_receive() {
  if (io_uring_sqe* const entry = arm(receive_)) {
    ::io_uring_prep_recvmsg_multishot(entry, socket_.fd(), ring_->receive_template(), 0);
    entry->flags |= IOSQE_BUFFER_SELECT;
    entry->buf_group = UringRing::kBufferGroup;
    entry->user_data = tag(Kind::receive, generation_);
  }
}

void UringPort::arm_wake() {
  if (io_uring_sqe* const entry = arm(wake_)) {
    ::io_uring_prep_read(entry, event_.fd(), &wake_count_, sizeof wake_count_, 0);
    entry->user_data = tag(Kind::wake, generation_);
  }
}

void UringPort::arm_writable() {
  if (io_uring_sqe* const entry = arm(writable_)) {
    ::io_uring_prep_poll_add(entry, descriptor(blocked_flow_), POLLOUT);
    entry->user_data = tag(Kind::writable, generation_);
  }
}

void UringPort::reap() {
  io_uring_cqe* completion = nullptr;
  unsigned head = 0;
  unsigned count = 0;
  io_uring_for_each_cqe(&ring_->ring(), head, completion) {
    ++count;
    const bool current = completion->user_data >> 8 == generation_;
    switch (static_cast<Kind>(completion->user_data & 0xff)) {
      case Kind::receive:
        if (current && (completion->flags & IORING_CQE_F_MORE) == 0) receive_.on = false;
        on_receive(*completion);
        break;
      case Kind::wake:
        if (current) wake_.on = false;
        on_wake(*completion);
        break;
      case Kind::writable:
        if (current) writable_.on = false;
        break;
      case Kind::send:
        on_send(*completion);
        break;
      case Kind::cancel:
        break;
    }
  }
  ::io_uring_cq_advance(&ring_->ring(), count);
}

void UringPort::on_receive(const io_uring_cqe& completion) {
  if ((completion.flags & IORING_CQE_F_BUFFER) != 0) {
    stash_[stash_end_++ % stash_.size()] = {.bytes = completion.res,
                                            .buffer = completion.flags >> IORING_CQE_BUFFER_SHIFT};
    return;
  }
  const int error = completion.res < 0 ? -completion.res : 0;
  if (error == ENOBUFS) ++counted_.rx_stalls;
  if (fatal_socket_error(error) || error == EINVAL) fail_with(error, "receive");
}

void UringPort::on_wake(const io_uring_cqe& completion) {
  if (completion.res != static_cast<int>(sizeof wake_count_)) return;
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

std::span<const RxPacket> UringPort::receive(Time) {
  batch_.clear();
  for (; lent_count_ > 0; --lent_count_) ring_->recycle(lent_[lent_count_ - 1]);
  if (failure_) return {};
  adopt_thread();
  if (trains_.queued() > 0) flush();
  reap();
  if (stash_begin_ == stash_end_) {
    arm_receive();
    submit(ring_->owes_events());
    reap();
  }
  for (; stash_begin_ != stash_end_ && !batch_.full(); ++stash_begin_) {
    const Received& received = stash_[stash_begin_ % stash_.size()];
    RxUnit unit;
    if (ring_->unit(received.buffer, received.bytes, unit)) batch_.add(unit);
    lent_[lent_count_++] = received.buffer;
  }
  return batch_.packets();
}

void UringPort::wait(Time now, Time until) {
  if (until <= now || failure_) return;
  adopt_thread();
  if (trains_.queued() > 0) flush();
  reap();
  // With all buffers lent out a receive cannot even be armed: the caller has to take them back.
  const bool starved = lent_count_ == lent_.size();
  if (stash_begin_ == stash_end_ && !woken_ && !starved && !failure_) sleep(now, until);
  woken_ = false;
  if (blocked_ && !writable_.on) flush();
}

void UringPort::sleep(Time now, Time until) {
  arm_receive();
  arm_wake();
  if (trains_.queued() > 0) arm_writable();
  const timespec span = wait_timeout(now, until);
  __kernel_timespec timeout{.tv_sec = span.tv_sec, .tv_nsec = span.tv_nsec};
  io_uring_cqe* completion = nullptr;
  const int done =
      ::io_uring_submit_and_wait_timeout(&ring_->ring(), &completion, 1, &timeout, nullptr);
  ++ring_->system_calls;
  ++counted_.waits;
  // What was not taken is submitted by the next call: nothing armed here points to scratch memory.
  if (done < 0 && done != -ETIME && done != -EINTR && done != -EAGAIN && done != -EBUSY) {
    fail_with(-done, "io_uring_enter");
  }
  reap();
}

PortStatistics UringPort::statistics() const {
  PortStatistics result = UdpPort::statistics();
  result.system_calls = ring_->system_calls;
  return result;
}

}  // namespace

Result<std::unique_ptr<Port>> make_uring_port(UdpSocket socket, std::vector<sockaddr_in> peers,
                                              UdpPortOptions options, UdpFlows flows) {
  if (auto valid = check_udp_options(options, peers); !valid) return fail(valid.error());
  // io_uring fails a receive on a non-blocking socket instead of waiting for it.
  const int flags = ::fcntl(socket.fd(), F_GETFL);
  if (flags < 0 || ::fcntl(socket.fd(), F_SETFL, flags & ~O_NONBLOCK) < 0) {
    return fail_system(errno, "O_NONBLOCK of the UDP socket");
  }
  auto ring = UringRing::open();
  if (!ring) return fail(ring.error());
  auto event = WakeEvent::open();
  if (!event) return fail(event.error());
  return std::make_unique<UringPort>(std::move(socket), peers, options, std::move(flows),
                                     std::move(*event), std::move(*ring));
}

Result<void> check_uring() {
  const auto ring = UringRing::open();
  if (!ring) return fail(ring.error());
  return {};
}

}  // namespace tarpon
