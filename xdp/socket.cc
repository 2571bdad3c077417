#include "xdp/socket.h"

#include <fmt/format.h>
#include <linux/if_ether.h>
#include <poll.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "xdp/attached.h"
#include "xdp/base/lockable_memory.h"
#include "xdp/holders.h"
#include "xdp/socket_list.h"

namespace tarpon::xdp {
namespace {

// After a close the kernel frees the queue and its memory in the background.
constexpr int kBindTries = 50;
constexpr auto kBindDelay = std::chrono::milliseconds(2);

template <typename Value>
int set(int fd, int option, const Value& value) {
  return ::setsockopt(fd, SOL_XDP, option, &value, sizeof value);
}

Result<RingMapping> map_ring(int fd, const xdp_ring_offset& offset, off_t page_offset,
                             std::uint32_t size, std::size_t entry_bytes, RingLayout& layout) {
  const std::size_t bytes = offset.desc + size * entry_bytes;
  void* const data =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, page_offset);
  if (data == MAP_FAILED) return fail_system(errno, "mmap of an AF_XDP ring");
  keep_from_children(data, bytes);  // the mapping holds the socket open
  auto* const base = static_cast<std::byte*>(data);
  const auto word = [base](std::uint64_t at) {
    return reinterpret_cast<std::uint32_t*>(base + at);
  };
  layout = {.producer = word(offset.producer),
            .consumer = word(offset.consumer),
            .flags = word(offset.flags),
            .entries = base + offset.desc,
            .size = size};
  return RingMapping(data, bytes);
}

Error umem_error(int error, std::size_t bytes) {
  const std::string what = fmt::format("registering {} bytes of UMEM", bytes);
  if (error != ENOBUFS && error != ENOMEM) return Error::system(error, what);
  return {Error::Code::unavailable, error,
          fmt::format("{}: it has to be locked, and {}", what, lockable_memory_text())};
}

/// The memory of a socket that was just closed counts against the user's limit for a moment.
int register_memory(int fd, const xdp_umem_reg& memory) {
  for (int i = 0;; ++i) {
    if (set(fd, XDP_UMEM_REG, memory) == 0) return 0;
    if (errno != ENOBUFS || i == kBindTries) return errno;
    std::this_thread::sleep_for(kBindDelay);
  }
}

/// ", of process 71 (python3)": the holders of the queue's socket. A kernel that does not list
/// sockets leaves the processes that hold our program on the interface.
std::string holders_of_queue(const SocketOptions& options) {
  if (const auto sockets = sockets_of(options.interface)) {
    for (const BoundSocket& one : *sockets) {
      if (one.queue == options.queue) return holders_text(socket_holders(one.inode));
    }
    return "";
  }
  const auto attached = attached_to(options.interface);
  if (!attached || !*attached) return "";
  const std::uint32_t link = link_id(find_link((*attached)->id, options.interface));
  if (link == 0) return "";
  const std::vector<int> others = link_holders(link);
  return holders_text(others.empty() ? std::vector{::getpid()} : others);
}

int bind_queue(int fd, const SocketOptions& options, std::uint16_t flags) {
  for (int i = 0;; ++i) {
    const int error = options.source != nullptr
                          ? options.source->bind(options.queue, flags)
                          : bind_socket(fd, options.interface, options.queue, flags);
    if (error != EBUSY || i == kBindTries) return error;
    std::this_thread::sleep_for(kBindDelay);
  }
}

}  // namespace

Result<FileDescriptor> open_socket(bool busy_poll) {
  FileDescriptor socket(::socket(AF_XDP, SOCK_RAW | SOCK_CLOEXEC, 0));
  if (!socket) {
    if (errno == EAFNOSUPPORT) return fail(Error::Code::unavailable, "this kernel lacks AF_XDP");
    return fail_system(errno, "AF_XDP socket (needs CAP_NET_RAW)");
  }
  const auto set_socket = [&socket](int option, int value) {
    return ::setsockopt(socket.get(), SOL_SOCKET, option, &value, sizeof value) == 0;
  };
  // In copy mode each frame on its way counts against the send buffer.
  const int send_buffer = 8 << 20;
  if (!set_socket(SO_SNDBUFFORCE, send_buffer)) set_socket(SO_SNDBUF, send_buffer);
  if (busy_poll) {
    // Without CAP_NET_ADMIN these are refused: the grant says so.
    set_socket(SO_PREFER_BUSY_POLL, 1);
    set_socket(SO_BUSY_POLL, 20);  // microseconds
    set_socket(SO_BUSY_POLL_BUDGET, 64);
  }
  return socket;
}

int bind_socket(int socket, unsigned interface, std::uint32_t queue, std::uint16_t flags) {
  sockaddr_xdp address{};
  address.sxdp_family = AF_XDP;
  address.sxdp_flags = flags;
  address.sxdp_ifindex = interface;
  address.sxdp_queue_id = queue;
  const auto* const to = reinterpret_cast<const sockaddr*>(&address);
  return ::bind(socket, to, sizeof address) == 0 ? 0 : errno;
}

RingMapping::RingMapping(RingMapping&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(other.bytes_) {}

RingMapping& RingMapping::operator=(RingMapping&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

RingMapping::~RingMapping() {
  if (data_ != nullptr) ::munmap(data_, bytes_);
}

Result<Socket> Socket::create(const Umem& umem, const SocketOptions& options) {
  Socket socket;
  socket.options_ = options;
  auto opened = options.source != nullptr ? options.source->make(options.queue, options.busy_poll)
                                          : open_socket(options.busy_poll);
  if (!opened) return fail(opened.error());
  socket.fd_ = std::move(*opened);
  const int fd = socket.fd();
  xdp_umem_reg memory{};
  memory.addr = reinterpret_cast<std::uintptr_t>(umem.data());
  memory.len = umem.bytes();
  memory.chunk_size = kFrameBytes;
  if (const int error = register_memory(fd, memory); error != 0) {
    return fail(umem_error(error, umem.bytes()));
  }
  if (set(fd, XDP_UMEM_FILL_RING, options.fill_size) != 0 ||
      set(fd, XDP_UMEM_COMPLETION_RING, options.completion_size) != 0 ||
      set(fd, XDP_RX_RING, options.rx_size) != 0 || set(fd, XDP_TX_RING, options.tx_size) != 0) {
    return fail_system(errno, "sizes of the AF_XDP rings");
  }
  xdp_mmap_offsets offsets{};
  socklen_t length = sizeof offsets;
  if (::getsockopt(fd, SOL_XDP, XDP_MMAP_OFFSETS, &offsets, &length) != 0) {
    return fail_system(errno, "offsets of the AF_XDP rings");
  }
  struct Part {
    const xdp_ring_offset& offset;
    off_t page;
    std::uint32_t size;
    std::size_t entry;
  };
  const Part parts[] = {
      {offsets.fr, XDP_UMEM_PGOFF_FILL_RING, options.fill_size, sizeof(std::uint64_t)},
      {offsets.cr, XDP_UMEM_PGOFF_COMPLETION_RING, options.completion_size, sizeof(std::uint64_t)},
      {offsets.rx, XDP_PGOFF_RX_RING, options.rx_size, sizeof(xdp_desc)},
      {offsets.tx, XDP_PGOFF_TX_RING, options.tx_size, sizeof(xdp_desc)}};
  std::array<RingLayout, 4> layouts;
  for (std::size_t i = 0; i < layouts.size(); ++i) {
    auto mapping =
        map_ring(fd, parts[i].offset, parts[i].page, parts[i].size, parts[i].entry, layouts[i]);
    if (!mapping) return fail(mapping.error());
    socket.mappings_[i] = std::move(*mapping);
  }
  socket.fill = ProducerRing<std::uint64_t>(layouts[0]);
  socket.completion = ConsumerRing<std::uint64_t>(layouts[1]);
  socket.receive = ConsumerRing<xdp_desc>(layouts[2]);
  socket.transmit = ProducerRing<xdp_desc>(layouts[3]);
  return socket;
}

Result<SocketGrant> Socket::bind() {
  const int fd = this->fd();
  std::uint16_t flags = XDP_USE_NEED_WAKEUP;
  if (options_.multi_buffer) flags |= kUseSg;
  if (options_.copy == CopyMode::copy) flags |= XDP_COPY;
  if (options_.copy == CopyMode::zero_copy) flags |= XDP_ZEROCOPY;
  if (const int error = bind_queue(fd, options_, flags); error != 0) {
    const std::string what =
        fmt::format("queue {} of {}", options_.queue, interface_text(options_.interface));
    if (error == EBUSY) {
      return fail(Error::Code::unavailable, fmt::format("{}: another AF_XDP socket has it{}", what,
                                                        holders_of_queue(options_)));
    }
    if (error == EOPNOTSUPP && options_.copy == CopyMode::zero_copy) {
      return fail(Error::Code::unavailable, what + ": the driver has no zero-copy");
    }
    return fail_system(error, "bind to " + what);
  }
  SocketGrant grant;
  xdp_options granted{};
  socklen_t length = sizeof granted;
  if (::getsockopt(fd, SOL_XDP, XDP_OPTIONS, &granted, &length) != 0) {
    return fail_system(errno, "reading XDP_OPTIONS back");
  }
  grant.zero_copy = (granted.flags & XDP_OPTIONS_ZEROCOPY) != 0;
  grant.multi_buffer = options_.multi_buffer;
  unsigned napi = 0;
  length = sizeof napi;
  grant.busy_poll = options_.busy_poll &&
                    ::getsockopt(fd, SOL_SOCKET, SO_INCOMING_NAPI_ID, &napi, &length) == 0 &&
                    napi != 0;
  busy_polls_ = grant.busy_poll;
  // A longer batch for each kick, since 6.17; before that it stays 32.
  const std::uint32_t budget = options_.tx_size;
  if (set(fd, kMaxTxSkbBudget, budget) == 0) grant.tx_budget = budget;
  return grant;
}

Kick Socket::kick_transmit() {
  if (!transmit.needs_wakeup()) return Kick::done;
  if (options_.busy_poll) {
    // With SO_PREFER_BUSY_POLL sendto() leaves the transmitter asleep; poll() does not.
    pollfd entry{fd(), POLLOUT, 0};
    ::poll(&entry, 1, 0);
    return Kick::done;
  }
  if (::sendto(fd(), nullptr, 0, MSG_DONTWAIT, nullptr, 0) >= 0) return Kick::done;
  switch (errno) {
    case EAGAIN:
    case ENOBUFS:
    case EINTR:
      return Kick::again;
    case EBUSY:
      return Kick::lost;
    default:
      error_ = errno;
      return Kick::fatal;
  }
}

void Socket::kick_receive() {
  // A busy-polled queue raises no interrupts: nothing arrives unless this socket polls.
  if (!busy_polls_ && !fill.needs_wakeup()) return;
  ::recvfrom(fd(), nullptr, 0, MSG_DONTWAIT, nullptr, nullptr);
}

Result<SocketStatistics> Socket::statistics() const {
  xdp_statistics raw{};
  socklen_t length = sizeof raw;
  if (::getsockopt(fd(), SOL_XDP, XDP_STATISTICS, &raw, &length) != 0) {
    return fail_system(errno, "XDP_STATISTICS");
  }
  return SocketStatistics{.rx_dropped = raw.rx_dropped,
                          .rx_invalid_descriptors = raw.rx_invalid_descs,
                          .tx_invalid_descriptors = raw.tx_invalid_descs,
                          .rx_ring_full = raw.rx_ring_full,
                          .rx_fill_ring_empty = raw.rx_fill_ring_empty_descs,
                          .tx_ring_empty = raw.tx_ring_empty_descs};
}

bool multi_buffer_supported() {
  const FileDescriptor socket(::socket(AF_XDP, SOCK_RAW | SOCK_CLOEXEC, 0));
  sockaddr_xdp address{};
  address.sxdp_family = AF_XDP;
  address.sxdp_flags = kUseSg;
  // The kernel refuses unknown flags before it looks for interface 0, which does not exist.
  return socket &&
         ::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 &&
         errno == ENODEV;
}

bool valid_descriptor(const xdp_desc& descriptor, std::uint64_t umem_bytes, bool multi_buffer) {
  const std::uint32_t known = multi_buffer ? kPacketContinues : 0;
  if (descriptor.len == 0 || (descriptor.options & ~known) != 0) return false;
  if (descriptor.addr >= umem_bytes || descriptor.len > kFrameBytes) return false;
  return descriptor.addr / kFrameBytes == (descriptor.addr + descriptor.len - 1) / kFrameBytes;
}

}  // namespace tarpon::xdp
