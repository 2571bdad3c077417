#include "tools/doctor/doctor_facts.h"

#include <ifaddrs.h>
#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <memory>

#include "collectives/environment/interfaces.h"
#include "tools/system/capabilities.h"
#include "tools/system/host_info.h"
#include "transport/ports/udp_options.h"
#include "transport/ports/udp_socket.h"
#include "transport/ports/xdp/xdp_port.h"
#include "xdp/base/file_descriptor.h"
#include "xdp/kernel.h"
#include "xdp/pins.h"

namespace tarpon {
namespace {

FileDescriptor udp_socket() {
  return FileDescriptor(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
}

ifreq request_for(const std::string& name) {
  ifreq request{};
  name.copy(request.ifr_name, IFNAMSIZ - 1);
  return request;
}

std::optional<ChannelCount> channels_of(const std::string& name) {
  const FileDescriptor fd = udp_socket();
  ethtool_channels channels{};
  channels.cmd = ETHTOOL_GCHANNELS;
  ifreq request = request_for(name);
  request.ifr_data = reinterpret_cast<char*>(&channels);
  if (::ioctl(fd.get(), SIOCETHTOOL, &request) != 0) return std::nullopt;
  return ChannelCount{.receive = channels.rx_count + channels.combined_count,
                      .send = channels.tx_count + channels.combined_count,
                      .combined = channels.combined_count > 0,
                      .most = channels.combined_count > 0
                                  ? channels.max_combined
                                  : std::max(channels.max_rx, channels.max_tx)};
}

void read_link(DoctorFacts& facts) {
  const FileDescriptor fd = udp_socket();
  ifreq request = request_for(facts.name);
  if (::ioctl(fd.get(), SIOCGIFMTU, &request) == 0) {
    facts.mtu = static_cast<std::uint32_t>(request.ifr_mtu);
  }
  request = request_for(facts.name);
  if (::ioctl(fd.get(), SIOCGIFFLAGS, &request) == 0) {
    const auto flags = static_cast<unsigned>(request.ifr_flags);
    facts.up = (flags & IFF_UP) != 0;
    facts.loopback = (flags & IFF_LOOPBACK) != 0;
  }
  facts.driver = interface_driver(facts.name);
  facts.channels = channels_of(facts.name);
}

Result<void> read_addresses(DoctorFacts& facts) {
  const auto interfaces = list_interfaces();
  if (!interfaces) return fail(interfaces.error());
  for (const Interface& each : *interfaces) {
    if (each.name == facts.name && facts.address.empty()) facts.address = each.address;
  }
  ifaddrs* head = nullptr;
  if (::getifaddrs(&head) != 0) return fail_system(errno, "cannot list the network interfaces");
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(head, &::freeifaddrs);
  for (const ifaddrs* each = head; each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr == nullptr || each->ifa_addr->sa_family != AF_INET6) continue;
    sockaddr_in6 address{};
    std::memcpy(&address, each->ifa_addr, sizeof address);
    if (facts.name == each->ifa_name && !IN6_IS_ADDR_LINKLOCAL(&address.sin6_addr)) {
      facts.has_ipv6 = true;
    }
  }
  return {};
}

void read_xdp(DoctorFacts& facts) {
  const unsigned index = ::if_nametoindex(facts.name.c_str());
  auto attached = xdp::attached_to(index);
  if (attached) {
    facts.attached = std::move(*attached);
  } else {
    facts.attached_error = attached.error().message;
  }
  if (auto features = xdp::interface_features(index)) {
    facts.features = *features;
  } else {
    facts.features_error = features.error().message;
  }
  if (const auto peer = xdp::veth_peer(index)) {
    facts.peer_channels = channels_of(xdp::interface_text(*peer));
  }
}

bool takes_option(int option) {
  const FileDescriptor fd = udp_socket();
  const int value = option == UDP_GRO ? 1 : 1400;
  return ::setsockopt(fd.get(), IPPROTO_UDP, option, &value, sizeof value) == 0;
}

/// The value of a line "NAME VALUE" or "NAME: VALUE kB" in a file of /proc; 0 if there is none.
std::uint64_t value_in(const char* path, const std::string& name) {
  std::ifstream file(path);
  for (std::string word; file >> word;) {
    std::uint64_t value = 0;
    if (word == name && file >> value) return value;
    file.clear();
  }
  return 0;
}

/// The size of a socket's buffer as the kernel granted it, without its own half.
std::uint64_t buffer_size(int fd, int option) {
  int size = 0;
  socklen_t length = sizeof size;
  if (::getsockopt(fd, SOL_SOCKET, option, &size, &length) != 0) return 0;
  return static_cast<std::uint64_t>(size) / 2;
}

void read_buffers(DoctorFacts& facts) {
  const UdpSocketOptions wanted;
  facts.wanted_buffer = wanted.receive_buffer;
  const auto socket = UdpSocket::open(wanted);
  if (!socket) return;
  facts.receive_buffer = buffer_size(socket->fd(), SO_RCVBUF);
  facts.send_buffer = buffer_size(socket->fd(), SO_SNDBUF);
}

void read_machine(DoctorFacts& facts) {
  const FileDescriptor socket(::socket(AF_XDP, SOCK_RAW | SOCK_CLOEXEC, 0));
  facts.has_af_xdp = socket || errno != EAFNOSUPPORT;
  facts.missing_for_socket = missing_capabilities({CAP_NET_RAW});
  facts.missing_for_program = missing_capabilities({CAP_BPF, CAP_NET_ADMIN, CAP_SYS_ADMIN});
  facts.queue_bytes = xdp_queue_bytes(max_payload_for_mtu(facts.mtu));
  rlimit limit{};
  if (::getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
      !has_capability(CAP_IPC_LOCK)) {
    facts.memlock_bytes = limit.rlim_cur;
  }
  facts.huge_page_bytes = value_in("/proc/meminfo", "Hugepagesize:") << 10;
  facts.huge_pages_free = value_in("/proc/meminfo", "HugePages_Free:");
  facts.bpf_file_system = xdp::bpf_file_system_mounted();
  facts.mounts_go_with_us = xdp::mounts_go_with_this_process();
  std::ifstream("/proc/sys/kernel/io_uring_disabled") >> facts.uring_disabled;
  facts.seccomp = value_in("/proc/thread-self/status", "Seccomp:") != 0;
  read_buffers(facts);
  const HostInfo host = read_host_info();
  facts.cpus = host.cpus;
  facts.cpu_quota = host.cpu_quota;
  facts.udp_gso = takes_option(UDP_SEGMENT);
  facts.udp_gro = takes_option(UDP_GRO);
}

}  // namespace

Result<DoctorFacts> read_doctor_facts(const std::string& name) {
  DoctorFacts facts;
  facts.name = name;
  read_link(facts);
  if (auto done = read_addresses(facts); !done) return fail(done.error());
  read_xdp(facts);
  read_machine(facts);
  facts.rung = read_rung_facts(name, facts.mtu);
  return facts;
}

}  // namespace tarpon
