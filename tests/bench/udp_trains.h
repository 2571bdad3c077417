// float32 from rank to rank over UDP at the lowest cost that sockets allow: trains of equal
// packets, which the kernel cuts (UDP_SEGMENT) and merges (UDP_GRO), sent from where the values
// lie. Nothing is acknowledged, and nothing that is lost is sent again.
//
// Throws std::system_error where a system call fails. One thread at a time.
#pragma once

#include <netinet/in.h>
#include <sys/uio.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "xdp/base/file_descriptor.h"

namespace tarpon::bench {

/// Before the values of each packet, in the byte order of the host.
struct PacketHeader {
  std::uint32_t operation;
  std::uint32_t first;  // place of the first value in the bucket
};

class UdpTrains {
 public:
  /// Receives at a free port of the address of `local`.
  explicit UdpTrains(const sockaddr_in& local);

  const sockaddr_in& address() const { return address_; }

  /// Call once. `addresses`: of all ranks, by rank. The MTU must be the same towards all of them.
  void connect(std::span<const sockaddr_in> addresses, std::size_t own_rank);

  /// Values that fit into one train.
  std::size_t capacity() const { return values_of_packet_ * packets_of_train_; }

  /// Sends at most capacity() values as one train; the kernel has copied them when this returns.
  /// `header` is that of the first packet.
  void send(std::size_t rank, PacketHeader header, std::span<const float> values);

  /// The bytes of the oldest train that waits, and those of each of its packets but the last.
  struct Train {
    std::span<const std::byte> bytes;
    std::size_t packet_bytes;
  };
  /// The train is valid until the next call; none when nothing waits.
  std::optional<Train> receive();

  /// Sleeps until a train waits; false when none has come after `limit`.
  bool wait(std::chrono::milliseconds limit) const;

 private:
  FileDescriptor socket_;  // receives from all ranks
  sockaddr_in address_{};
  std::vector<FileDescriptor> peers_;  // by rank: a connected socket, which only sends
  std::size_t values_of_packet_ = 0;
  std::size_t packets_of_train_ = 0;
  std::vector<PacketHeader> headers_;  // of the train that is being sent
  std::vector<iovec> pieces_;
  std::vector<std::byte> buffer_;
};

}  // namespace tarpon::bench
