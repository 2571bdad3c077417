#include "tests/bench/minimal_socket.h"

#include <arpa/inet.h>
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/if_link.h>
#include <linux/ip.h>
#include <linux/udp.h>
#include <net/if.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>

namespace tarpon::bench {
namespace {

constexpr std::uint32_t kRing = 2048;
constexpr std::uint16_t kUseSg = 1 << 4;  // XDP_USE_SG
constexpr std::uint32_t kContinues = 1;   // XDP_PKT_CONTD
constexpr int kMaxTxSkbBudget = 9;        // XDP_MAX_TX_SKB_BUDGET, since 6.17
constexpr std::uint16_t kUdpPort = 9;     // discard
constexpr int kBindTries = 50;

long bpf(int command, bpf_attr& attributes) {
  return ::syscall(SYS_bpf, command, &attributes, sizeof attributes);
}

std::uint32_t acquire(std::uint32_t* index) {
  return std::atomic_ref(*index).load(std::memory_order_acquire);
}

void release(std::uint32_t* index, std::uint32_t value) {
  std::atomic_ref(*index).store(value, std::memory_order_release);
}

bool needs_wakeup(std::uint32_t* flags) {
  return (std::atomic_ref(*flags).load(std::memory_order_relaxed) & XDP_RING_NEED_WAKEUP) != 0;
}

struct [[gnu::packed]] Headers {
  ethhdr ethernet;
  iphdr ip;
  udphdr udp;
};

std::uint16_t checksum(const iphdr& header) {
  std::uint16_t words[sizeof header / 2];
  std::memcpy(words, &header, sizeof header);
  const std::uint32_t sum = std::accumulate(std::begin(words), std::end(words), 0u);
  return static_cast<std::uint16_t>(~((sum & 0xffff) + (sum >> 16)));
}

int make_socket_map() {
  bpf_attr attributes{};
  attributes.map_type = BPF_MAP_TYPE_XSKMAP;
  attributes.key_size = attributes.value_size = 4;
  attributes.max_entries = 64;
  return static_cast<int>(bpf(BPF_MAP_CREATE, attributes));
}

/// return bpf_redirect_map(map, ctx->rx_queue_index, XDP_PASS);
int load_program(int map) {
  const bpf_insn program[] = {
      {.code = BPF_LDX | BPF_MEM | BPF_W, .dst_reg = 2, .src_reg = 1, .off = 16, .imm = 0},
      {.code = BPF_LD | BPF_DW | BPF_IMM,
       .dst_reg = 1,
       .src_reg = BPF_PSEUDO_MAP_FD,
       .off = 0,
       .imm = map},
      {.code = 0, .dst_reg = 0, .src_reg = 0, .off = 0, .imm = 0},
      {.code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = 3, .src_reg = 0, .off = 0, .imm = XDP_PASS},
      {.code = BPF_JMP | BPF_CALL,
       .dst_reg = 0,
       .src_reg = 0,
       .off = 0,
       .imm = BPF_FUNC_redirect_map},
      {.code = BPF_JMP | BPF_EXIT, .dst_reg = 0, .src_reg = 0, .off = 0, .imm = 0}};
  bpf_attr attributes{};
  attributes.prog_type = BPF_PROG_TYPE_XDP;
  attributes.insns = reinterpret_cast<std::uintptr_t>(program);
  attributes.insn_cnt = sizeof program / sizeof *program;
  attributes.license = reinterpret_cast<std::uintptr_t>("Apache-2.0");
  attributes.prog_flags = BPF_F_XDP_HAS_FRAGS;
  return static_cast<int>(bpf(BPF_PROG_LOAD, attributes));
}

MacAddress mac_of(const std::string& interface) {
  ifreq request{};
  std::strncpy(request.ifr_name, interface.c_str(), IFNAMSIZ - 1);
  const int fd = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0 || ::ioctl(fd, SIOCGIFHWADDR, &request) != 0) die("MAC of " + interface);
  ::close(fd);
  MacAddress mac;
  std::memcpy(mac.data(), request.ifr_hwaddr.sa_data, mac.size());
  return mac;
}

}  // namespace

void die(const std::string& what) {
  std::fprintf(stderr, "xdp_minimal: %s: %s\n", what.c_str(), std::strerror(errno));
  std::exit(1);
}

MinimalSocket::MinimalSocket(const MinimalOptions& options)
    : options_(options),
      index_(::if_nametoindex(options.interface.c_str())),
      mac_(mac_of(options.interface)),
      span_((options.frame_bytes + kChunk - 1) / kChunk) {
  const std::uint32_t chunks = options_.receive_chunks + options_.in_flight * span_;
  const std::size_t bytes = std::size_t{chunks} * kChunk;
  void* const memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (memory == MAP_FAILED) die("mmap of the UMEM");
  memory_ = static_cast<std::byte*>(memory);
  fd_ = ::socket(AF_XDP, SOCK_RAW | SOCK_CLOEXEC, 0);
  if (fd_ < 0) die("AF_XDP socket");
  xdp_umem_reg region{};
  region.addr = reinterpret_cast<std::uintptr_t>(memory_);
  region.len = bytes;
  region.chunk_size = kChunk;
  if (::setsockopt(fd_, SOL_XDP, XDP_UMEM_REG, &region, sizeof region) != 0) die("XDP_UMEM_REG");
  make_rings();
  for (std::uint32_t i = 0; i < options_.receive_chunks; ++i) {
    static_cast<std::uint64_t*>(fill_.entries)[fill_.next++ & fill_.mask] =
        std::uint64_t{i} * kChunk;
  }
  release(fill_.producer, fill_.next);
  attach();
  bind_queue();
  for (std::uint32_t i = options_.in_flight; i > 0; --i) {
    free_.push_back(options_.receive_chunks + (i - 1) * span_);
  }
}

MinimalSocket::~MinimalSocket() {
  for (const int fd : {link_, fd_, program_, map_}) ::close(fd);
}

void MinimalSocket::make_rings() {
  struct Part {
    int option;
    std::uint32_t size;
    off_t page;
    Ring* ring;
    std::size_t entry;
  };
  const Part parts[] = {
      {XDP_UMEM_FILL_RING, kRing, XDP_UMEM_PGOFF_FILL_RING, &fill_, sizeof(std::uint64_t)},
      {XDP_UMEM_COMPLETION_RING, kRing, XDP_UMEM_PGOFF_COMPLETION_RING, &completion_,
       sizeof(std::uint64_t)},
      {XDP_RX_RING, kRing, XDP_PGOFF_RX_RING, &receive_, sizeof(xdp_desc)},
      {XDP_TX_RING, kRing, XDP_PGOFF_TX_RING, &transmit_, sizeof(xdp_desc)}};
  for (const Part& part : parts) {
    if (::setsockopt(fd_, SOL_XDP, part.option, &part.size, sizeof part.size) != 0) {
      die("size of a ring");
    }
  }
  xdp_mmap_offsets offsets{};
  socklen_t length = sizeof offsets;
  if (::getsockopt(fd_, SOL_XDP, XDP_MMAP_OFFSETS, &offsets, &length) != 0) die("ring offsets");
  const xdp_ring_offset* const of[] = {&offsets.fr, &offsets.cr, &offsets.rx, &offsets.tx};
  for (std::size_t i = 0; i < 4; ++i) {
    void* const data =
        ::mmap(nullptr, of[i]->desc + parts[i].size * parts[i].entry, PROT_READ | PROT_WRITE,
               MAP_SHARED | MAP_POPULATE, fd_, parts[i].page);
    if (data == MAP_FAILED) die("mmap of a ring");
    auto* const base = static_cast<std::byte*>(data);
    const auto word = [base](std::uint64_t at) {
      return reinterpret_cast<std::uint32_t*>(base + at);
    };
    *parts[i].ring = {word(of[i]->producer), word(of[i]->consumer), word(of[i]->flags),
                      base + of[i]->desc,    parts[i].size - 1,     0};
  }
}

void MinimalSocket::attach() {
  map_ = make_socket_map();
  if (map_ < 0) die("XSKMAP");
  program_ = load_program(map_);
  if (program_ < 0) die("loading the redirecting program");
  bpf_attr attributes{};
  attributes.link_create.prog_fd = static_cast<std::uint32_t>(program_);
  attributes.link_create.target_ifindex = index_;
  attributes.link_create.attach_type = BPF_XDP;
  attributes.link_create.flags = XDP_FLAGS_DRV_MODE;
  link_ = static_cast<int>(bpf(BPF_LINK_CREATE, attributes));
  if (link_ < 0) die("attaching to " + options_.interface);
}

void MinimalSocket::bind_queue() {
  sockaddr_xdp address{};
  address.sxdp_family = AF_XDP;
  address.sxdp_ifindex = index_;
  address.sxdp_queue_id = options_.queue;
  address.sxdp_flags = static_cast<std::uint16_t>(XDP_USE_NEED_WAKEUP | options_.copy_flags |
                                                  (options_.multi_buffer ? kUseSg : 0));
  // After a close the kernel frees the queue in the background.
  int tries = 0;
  while (::bind(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    if (errno != EBUSY || ++tries == kBindTries) die("bind to " + options_.interface);
    ::usleep(2000);
  }
  xdp_options granted{};
  socklen_t length = sizeof granted;
  if (::getsockopt(fd_, SOL_XDP, XDP_OPTIONS, &granted, &length) != 0) die("XDP_OPTIONS");
  zero_copy_ = (granted.flags & XDP_OPTIONS_ZEROCOPY) != 0;
  const std::uint32_t budget = kRing;  // refused before 6.17: then a kick sends 32
  (void)::setsockopt(fd_, SOL_XDP, kMaxTxSkbBudget, &budget, sizeof budget);
  bpf_attr attributes{};
  attributes.map_fd = static_cast<std::uint32_t>(map_);
  attributes.key = reinterpret_cast<std::uintptr_t>(&options_.queue);
  attributes.value = reinterpret_cast<std::uintptr_t>(&fd_);
  if (bpf(BPF_MAP_UPDATE_ELEM, attributes) != 0) die("XSKMAP entry");
}

void MinimalSocket::prepare(const MacAddress& destination) {
  Headers headers{};
  std::copy(destination.begin(), destination.end(), headers.ethernet.h_dest);
  std::copy(mac_.begin(), mac_.end(), headers.ethernet.h_source);
  headers.ethernet.h_proto = htons(ETH_P_IP);
  headers.ip.version = 4;
  headers.ip.ihl = sizeof headers.ip / 4;
  headers.ip.ttl = 1;
  headers.ip.protocol = IPPROTO_UDP;
  headers.ip.saddr = headers.ip.daddr = htonl(0x0a4e0000);  // 10.78.0.0
  const std::uint32_t bytes = options_.frame_bytes - static_cast<std::uint32_t>(sizeof(ethhdr));
  headers.ip.tot_len = htons(static_cast<std::uint16_t>(bytes));
  headers.ip.check = checksum(headers.ip);
  headers.udp.dest = htons(kUdpPort);
  headers.udp.len = htons(static_cast<std::uint16_t>(bytes - sizeof(iphdr)));
  for (const std::uint32_t frame : free_) {
    std::memcpy(memory_ + std::size_t{frame} * kChunk, &headers, sizeof headers);
  }
}

std::uint32_t MinimalSocket::send(std::uint32_t most) {
  const auto count = std::min(most, static_cast<std::uint32_t>(free_.size()));
  auto* const entries = static_cast<xdp_desc*>(transmit_.entries);
  for (std::uint32_t i = 0; i < count; ++i) {
    const std::uint64_t base = std::uint64_t{free_.back()} * kChunk;
    free_.pop_back();
    for (std::uint32_t at = 0; at < options_.frame_bytes; at += kChunk) {
      const std::uint32_t left = options_.frame_bytes - at;
      entries[transmit_.next++ & transmit_.mask] = {base + at, std::min(left, kChunk),
                                                    left > kChunk ? kContinues : 0};
    }
  }
  flying_ += count;
  if (count > 0) release(transmit_.producer, transmit_.next);
  if (flying_ > 0 && needs_wakeup(transmit_.flags)) kick();
  return count;
}

void MinimalSocket::kick() {
  if (::sendto(fd_, nullptr, 0, MSG_DONTWAIT, nullptr, 0) >= 0) return;
  if (errno == EAGAIN || errno == ENOBUFS || errno == EBUSY || errno == EINTR) return;
  die("sending");
}

bool MinimalSocket::reap() {
  const std::uint32_t end = acquire(completion_.producer);
  const auto* const entries = static_cast<const std::uint64_t*>(completion_.entries);
  for (; completion_.next != end; ++completion_.next) {
    const auto chunk =
        static_cast<std::uint32_t>(entries[completion_.next & completion_.mask] / kChunk);
    if ((chunk - options_.receive_chunks) % span_ != 0) continue;  // not a frame's first
    free_.push_back(chunk);
    --flying_;
  }
  release(completion_.consumer, completion_.next);
  return flying_ > 0;
}

/// Counts whole frames of ours. A receiver cannot but look at what came: the program takes all.
void MinimalSocket::take(const xdp_desc& part) {
  if (!inside_) {
    Headers headers;
    std::memcpy(&headers, memory_ + part.addr, sizeof headers);
    ours_ = headers.ethernet.h_proto == htons(ETH_P_IP) && headers.udp.dest == htons(kUdpPort);
  }
  inside_ = (part.options & kContinues) != 0;
  if (!ours_) return;
  bytes_ += part.len;
  if (!inside_) ++packets_;
}

std::uint32_t MinimalSocket::receive(std::uint32_t most) {
  const std::uint32_t waiting = acquire(receive_.producer) - receive_.next;
  const std::uint32_t count = std::min(most, waiting);
  const auto* const entries = static_cast<const xdp_desc*>(receive_.entries);
  auto* const fill = static_cast<std::uint64_t*>(fill_.entries);
  for (std::uint32_t i = 0; i < count; ++i) {
    const xdp_desc& one = entries[receive_.next++ & receive_.mask];
    take(one);
    fill[fill_.next++ & fill_.mask] = one.addr / kChunk * kChunk;
  }
  if (count > 0) {
    release(receive_.consumer, receive_.next);
    release(fill_.producer, fill_.next);
  }
  if (needs_wakeup(fill_.flags)) ::recvfrom(fd_, nullptr, 0, MSG_DONTWAIT, nullptr, nullptr);
  return count;
}

std::uint64_t MinimalSocket::lost() const {
  xdp_statistics raw{};
  socklen_t length = sizeof raw;
  if (::getsockopt(fd_, SOL_XDP, XDP_STATISTICS, &raw, &length) != 0) die("XDP_STATISTICS");
  return raw.rx_dropped + raw.rx_ring_full;
}

void MinimalSocket::sleep(short events) const {
  pollfd entry{fd_, events, 0};
  ::poll(&entry, 1, 100);
}

}  // namespace tarpon::bench
