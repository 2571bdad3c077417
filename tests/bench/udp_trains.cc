#include "tests/bench/udp_trains.h"

#include <netinet/udp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "tests/bench/tcp_barrier.h"

namespace tarpon::bench {
namespace {

constexpr std::size_t kMaxTrainBytes = 65507;  // bytes of UDP payload over IPv4
constexpr std::size_t kMaxPackets = 64;        // UDP_MAX_SEGMENTS of older kernels
constexpr std::size_t kHeaderBytes = 28;       // IPv4 and UDP
constexpr int kSocketBuffer = 64 << 20;

FileDescriptor make_socket() {
  FileDescriptor result(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!result) fail_system("UDP socket");
  return result;
}

void set_option(const FileDescriptor& socket, int level, int name, int value) {
  if (::setsockopt(socket.get(), level, name, &value, sizeof value) != 0) {
    fail_system("option of a UDP socket");
  }
}

std::size_t path_mtu(const FileDescriptor& connected) {
  int mtu = 0;
  socklen_t size = sizeof mtu;
  if (::getsockopt(connected.get(), IPPROTO_IP, IP_MTU, &mtu, &size) != 0) fail_system("IP_MTU");
  return static_cast<std::size_t>(mtu);
}

/// Without the mark of a merged train the datagram is one packet.
std::size_t packet_bytes_of(msghdr& message, std::size_t received) {
  for (cmsghdr* at = CMSG_FIRSTHDR(&message); at != nullptr; at = CMSG_NXTHDR(&message, at)) {
    if (at->cmsg_level != IPPROTO_UDP || at->cmsg_type != UDP_GRO) continue;
    int bytes = 0;
    std::memcpy(&bytes, CMSG_DATA(at), sizeof bytes);
    return static_cast<std::size_t>(bytes);
  }
  return received;
}

}  // namespace

UdpTrains::UdpTrains(const sockaddr_in& local) : socket_(make_socket()), buffer_(kMaxTrainBytes) {
  set_option(socket_, SOL_SOCKET, SO_RCVBUFFORCE, kSocketBuffer);
  set_option(socket_, IPPROTO_UDP, UDP_GRO, 1);
  address_ = local;
  address_.sin_port = 0;
  auto* const address = reinterpret_cast<sockaddr*>(&address_);
  socklen_t size = sizeof address_;
  if (::bind(socket_.get(), address, size) != 0) fail_system("bind of a UDP socket");
  if (::getsockname(socket_.get(), address, &size) != 0) fail_system("getsockname");
}

void UdpTrains::connect(std::span<const sockaddr_in> addresses, std::size_t own_rank) {
  peers_.resize(addresses.size());
  for (std::size_t rank = 0; rank < addresses.size(); ++rank) {
    if (rank == own_rank) continue;
    FileDescriptor peer = make_socket();
    set_option(peer, SOL_SOCKET, SO_SNDBUFFORCE, kSocketBuffer);
    const auto* const address = reinterpret_cast<const sockaddr*>(&addresses[rank]);
    if (::connect(peer.get(), address, sizeof addresses[rank]) != 0) fail_system("connect");
    const std::size_t room = path_mtu(peer) - kHeaderBytes - sizeof(PacketHeader);
    values_of_packet_ = room / sizeof(float);
    const std::size_t packet = sizeof(PacketHeader) + values_of_packet_ * sizeof(float);
    set_option(peer, IPPROTO_UDP, UDP_SEGMENT, static_cast<int>(packet));
    packets_of_train_ = std::min(kMaxPackets, kMaxTrainBytes / packet);
    peers_[rank] = std::move(peer);
  }
  headers_.resize(packets_of_train_);
  pieces_.resize(2 * packets_of_train_);
}

void UdpTrains::send(std::size_t rank, PacketHeader header, std::span<const float> values) {
  std::size_t packets = 0;
  for (std::size_t at = 0; at < values.size(); at += values_of_packet_, ++packets) {
    const auto packet = values.subspan(at, std::min(values_of_packet_, values.size() - at));
    headers_[packets] = {header.operation, header.first + static_cast<std::uint32_t>(at)};
    pieces_[2 * packets] = {&headers_[packets], sizeof(PacketHeader)};
    pieces_[2 * packets + 1] = {const_cast<float*>(packet.data()), packet.size_bytes()};
  }
  msghdr message{};
  message.msg_iov = pieces_.data();
  message.msg_iovlen = 2 * packets;
  if (::sendmsg(peers_[rank].get(), &message, 0) < 0) fail_system("sending a train");
}

std::optional<UdpTrains::Train> UdpTrains::receive() {
  iovec whole{buffer_.data(), buffer_.size()};
  alignas(cmsghdr) std::byte control[CMSG_SPACE(sizeof(int))];
  msghdr message{};
  message.msg_iov = &whole;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  const ssize_t received = ::recvmsg(socket_.get(), &message, MSG_DONTWAIT);
  if (received < 0 && errno == EAGAIN) return std::nullopt;
  if (received < 0) fail_system("receiving a train");
  const auto bytes = static_cast<std::size_t>(received);
  return Train{{buffer_.data(), bytes}, packet_bytes_of(message, bytes)};
}

bool UdpTrains::wait(std::chrono::milliseconds limit) const {
  pollfd entry{socket_.get(), POLLIN, 0};
  const int ready = ::poll(&entry, 1, static_cast<int>(limit.count()));
  if (ready < 0 && errno != EINTR) fail_system("poll");
  return ready != 0;
}

}  // namespace tarpon::bench
