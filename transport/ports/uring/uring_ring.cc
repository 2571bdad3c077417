// Set-up and tear-down of the ring, and the plumbing of its queues.
#include "transport/ports/uring/uring_ring.h"

#include <fmt/core.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <thread>

#include "xdp/base/lockable_memory.h"

namespace tarpon {
namespace {

constexpr unsigned kSubmissionEntries = 128;  // a batch of 64 sends and the few that are armed
constexpr unsigned kCompletionEntries = 512;
constexpr std::size_t kPage = 4096;
constexpr const char* kRemedy = "; or go without it: --datapath mmsg, TARPON_DATAPATH=mmsg";

// liburing maps rings by system calls that ThreadSanitizer does not see. It would take a ring at
// the address of an earlier one for memory shared with the earlier one's thread. This count tells
// it their order.
std::atomic<int> open_rings = 0;

// 0: allowed to all, 1: to root and the group, 2: to nobody; -1: no such setting.
int io_uring_disabled() {
  int value = -1;
  if (std::FILE* file = std::fopen("/proc/sys/kernel/io_uring_disabled", "re")) {
    if (std::fscanf(file, "%d", &value) != 1) value = -1;
    std::fclose(file);
  }
  return value;
}

Error refusal(int error, const char* step) {
  std::string reason = "io_uring is unavailable: ";
  const int disabled = io_uring_disabled();
  if (error == ENOSYS) {
    reason += "this kernel has none, or a seccomp profile hides it";
  } else if ((error == EPERM || error == EACCES) && disabled > 0) {
    reason += fmt::format("kernel.io_uring_disabled = {}; set it to 0 (sysctl)", disabled);
  } else if (error == EPERM || error == EACCES) {
    reason +=
        "forbidden, by the container's seccomp profile most likely; allow io_uring_setup, "
        "io_uring_enter and io_uring_register there";
  } else if (error == ENOMEM) {
    reason += "it needs lockable memory, and " + lockable_memory_text();
  } else {
    reason += fmt::format("{}: {}", step, std::strerror(error));
  }
  return {Error::Code::unavailable, error, reason + kRemedy};
}

/// Whether valgrind runs this process. It knows io_uring's system calls, but not these rings: a
/// thread that waits in one never returns.
bool runs_in_valgrind() {
  const char* const preloaded = std::getenv("LD_PRELOAD");
  return preloaded != nullptr && std::strstr(preloaded, "/vgpreload_") != nullptr;
}

}  // namespace

Result<std::unique_ptr<UringRing>> UringRing::open() {
  if (runs_in_valgrind()) {
    return fail(Error::Code::unavailable, std::string("io_uring hangs in valgrind") + kRemedy);
  }
  std::unique_ptr<UringRing> result(new UringRing);
  if (auto done = result->open_ring(); !done) return fail(done.error());
  if (auto done = result->open_buffers(); !done) return fail(done.error());
  return result;
}

Result<void> UringRing::open_ring() {
  // DEFER_TASKRUN: what is armed completes only inside io_uring_enter of the thread that opened the
  // ring. TASKRUN_FLAG tells when entering is worth it.
  io_uring_params parameters{};
  parameters.flags = IORING_SETUP_CQSIZE | IORING_SETUP_SUBMIT_ALL | IORING_SETUP_SINGLE_ISSUER |
                     IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_TASKRUN_FLAG |
                     IORING_SETUP_R_DISABLED;  // until start()
  parameters.cq_entries = kCompletionEntries;
  const int error = -::io_uring_queue_init_params(kSubmissionEntries, &ring_, &parameters);
  if (error == EINVAL) {
    return fail(Error::Code::unavailable,
                std::string("io_uring is too old here: DEFER_TASKRUN needs Linux 6.1") + kRemedy);
  }
  if (error != 0) return fail(refusal(error, "io_uring_setup"));
  descriptor_ = FileDescriptor(ring_.ring_fd);
  (void)::io_uring_ring_dontfork(&ring_);  // fails for no ring that is mapped
  ++open_rings;
  return {};
}

Result<void> UringRing::open_buffers() {
  // Many threads may have a ring each, and most of them use few buffers.
  buffers_ = make_untouched_bytes(kStride * kRxBuffers, kPage);
  buffer_ring_memory_ = make_aligned_bytes(kRxBuffers * sizeof(io_uring_buf), kPage);
  io_uring_buf_reg registration{};
  registration.ring_addr = reinterpret_cast<std::uintptr_t>(buffer_ring_memory_.get());
  registration.ring_entries = kRxBuffers;
  registration.bgid = kBufferGroup;
  if (const int error = -::io_uring_register_buf_ring(&ring_, &registration, 0); error != 0) {
    return fail(refusal(error, "registering receive buffers"));
  }
  buffer_ring_ = reinterpret_cast<io_uring_buf_ring*>(buffer_ring_memory_.get());
  for (unsigned number = kRxBuffers; number-- > 0;) recycle(number);
  receive_template_.msg_namelen = sizeof(sockaddr_in);
  receive_template_.msg_controllen = kRxControlBytes;
  return {};
}

// Debian's liburing 2.3 does not export io_uring_enable_rings().
bool UringRing::start() {
  return ::syscall(__NR_io_uring_register, ring_.ring_fd, IORING_REGISTER_ENABLE_RINGS, nullptr,
                   0) == 0;
}

UringRing::~UringRing() {
  if (!descriptor_) return;
  io_uring_sync_cancel_reg all{};
  all.fd = -1;
  all.flags = IORING_ASYNC_CANCEL_ANY | IORING_ASYNC_CANCEL_ALL;
  all.timeout.tv_nsec = 100'000'000;
  // Best effort: the kernel cancels the rest later, once the ring is closed.
  ::io_uring_register_sync_cancel(&ring_, &all);
  ::io_uring_get_events(&ring_);
  --open_rings;
  ring_.ring_fd = -1;  // `descriptor_` closes it
  ::io_uring_queue_exit(&ring_);
}

int UringRing::submit(bool events) {
  constexpr int kTries = 16;
  int error = 0;
  for (int i = 0; i < kTries; ++i) {
    const bool pending = ::io_uring_sq_ready(&ring_) > 0;
    if (!pending && (!events || i > 0)) return 0;
    const int done = events ? ::io_uring_submit_and_get_events(&ring_) : ::io_uring_submit(&ring_);
    ++system_calls;
    error = done < 0 ? -done : EAGAIN;
    if (done < 0 && error != EINTR && error != EAGAIN && error != EBUSY) return error;
  }
  return ::io_uring_sq_ready(&ring_) > 0 ? error : 0;
}

bool UringRing::owes_events() const {
  const unsigned flags = IO_URING_READ_ONCE(*ring_.sq.kflags);
  return (flags & (IORING_SQ_TASKRUN | IORING_SQ_CQ_OVERFLOW)) != 0;
}

bool UringRing::unit(unsigned number, int bytes, RxUnit& result) {
  std::byte* const start = buffer(number);
  io_uring_recvmsg_out* const out = ::io_uring_recvmsg_validate(start, bytes, &receive_template_);
  if (out == nullptr) return false;
  std::memcpy(&result.from, ::io_uring_recvmsg_name(out), sizeof result.from);
  result.control = ::io_uring_recvmsg_cmsg_firsthdr(out, &receive_template_);
  result.control_bytes = result.control == nullptr ? 0 : out->controllen;
  result.data = static_cast<std::byte*>(::io_uring_recvmsg_payload(out, &receive_template_));
  result.bytes = ::io_uring_recvmsg_payload_length(out, bytes, &receive_template_);
  return true;
}

void UringRing::supply(unsigned wanted) {
  int added = 0;
  while (free_count_ > 0 && in_use() < wanted) {
    const unsigned number = free_[--free_count_];
    ::io_uring_buf_ring_add(buffer_ring_, buffer(number), kStride,
                            static_cast<unsigned short>(number),
                            ::io_uring_buf_ring_mask(kRxBuffers), added++);
  }
  if (added > 0) ::io_uring_buf_ring_advance(buffer_ring_, added);
}

Result<UringRings> open_uring_rings() {
  constexpr int kTries = 20;
  constexpr auto kPause = std::chrono::milliseconds(5);
  for (int i = 1;; ++i) {
    UringRings rings;
    std::optional<Error> refused;
    for (auto& place : rings) {
      auto ring = UringRing::open();
      if (ring) {
        place = std::move(*ring);
      } else {
        refused = ring.error();
      }
    }
    if (!refused) return rings;
    if (refused->system_errno != ENOMEM || i == kTries) return fail(*refused);
    std::this_thread::sleep_for(kPause);
  }
}

}  // namespace tarpon
