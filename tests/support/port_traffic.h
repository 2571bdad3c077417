// Numbered packets over a port, each byte checked: what the tests of the live UDP ports share.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <vector>

#include "bpf/wire.h"
#include "transport/clock.h"
#include "transport/ports/mmsg_port.h"
#include "transport/ports/uring/uring_port.h"

namespace tarpon::test {

using Factory = Result<std::unique_ptr<Port>> (*)(UdpSocket, std::vector<sockaddr_in>,
                                                  UdpPortOptions, UdpFlows);

/// A port and what makes it.
struct Kind {
  const char* name;
  Factory make;
  std::uint32_t lanes = 1;
};

inline constexpr std::uint32_t kTestJob = 0x7a51e9c3;  // cookie of every packet sent here
inline constexpr Duration kPatience = 20s;  // bound of every loop; never reached by a working port

inline UdpSocket open_socket(UdpSocketOptions options = {}) {
  auto socket = UdpSocket::open(options);
  if (!socket) throw std::runtime_error(socket.error().message);
  return std::move(*socket);
}

/// A packet as the tests see it: a number in the header, and a payload that follows from it.
struct Message {
  Rank peer = 0;
  std::uint32_t number = 0;
  std::uint32_t length = 0;
  std::uint8_t flow = 0;
};

inline std::byte pattern(std::uint32_t number, std::uint32_t at) {
  return static_cast<std::byte>((number * 131u + at * 7u + (at >> 8)) & 0xff);
}

inline void fill(std::byte* out, std::uint32_t number, std::uint32_t length) {
  for (std::uint32_t i = 0; i < length; ++i) out[i] = pattern(number, i);
}

/// What came: number -> times, after a check of every byte.
struct Inbox {
  std::map<std::uint32_t, int> seen;
  std::map<Rank, int> sources;
  std::size_t packets = 0;
  std::uint64_t bytes = 0;

  void take(std::span<const RxPacket> batch) {
    for (const RxPacket& packet : batch) {
      ASSERT_GE(packet.length, TARPON_HEADER_BYTES);
      tarpon_header header;
      std::memcpy(&header, packet.data, sizeof header);
      const std::uint32_t number = header.slot;
      const std::uint32_t length = header.operation;
      ASSERT_EQ(length, packet.length - TARPON_HEADER_BYTES);
      const std::byte* const payload = packet.data + TARPON_HEADER_BYTES;
      std::vector<std::byte> wanted(length);
      fill(wanted.data(), number, length);
      ASSERT_TRUE(std::equal(wanted.begin(), wanted.end(), payload));
      ++seen[number];
      ++sources[packet.source];
      ++packets;
      bytes += packet.length;
    }
  }
};

/// One round of driving: sleep a little, then take what is there.
inline void drive(Port& port, Inbox& inbox, Duration slice = 50ms) {
  const Time now = monotonic_now();
  port.wait(now, now + slice);
  for (auto batch = port.receive(now); !batch.empty(); batch = port.receive(now)) inbox.take(batch);
}

/// Until `packets` are there or, after `patience`, not.
inline void collect(Port& port, Inbox& inbox, std::size_t packets, Duration patience = kPatience) {
  const Time end = monotonic_now() + patience;
  while (inbox.packets < packets && monotonic_now() < end) drive(port, inbox);
}

struct SendOptions {
  const std::vector<std::byte>* lent = nullptr;  // payload of message i at i x its length
  std::function<void()> on_back_pressure;
};

inline void prepare(TxPacket& packet, const Message& message, std::size_t index,
                    const SendOptions& options) {
  packet.peer = message.peer;
  packet.flow = message.flow;
  packet.length = message.length;
  tarpon_header header{};
  header.magic = TARPON_MAGIC;
  header.version = TARPON_WIRE_VERSION;
  header.job = kTestJob;
  header.slot = message.number;
  header.operation = message.length;
  std::memcpy(packet.header, &header, sizeof header);
  if (options.lent != nullptr) {
    packet.payload = options.lent->data() + index * message.length;
    packet.lender = 1;
  } else {
    fill(packet.room, message.number, message.length);
  }
}

inline void send(Port& port, const std::vector<Message>& messages,
                 const SendOptions& options = {}) {
  const Time end = monotonic_now() + kPatience;
  std::size_t next = 0;
  while (next < messages.size() && monotonic_now() < end) {
    const auto frames = port.transmit_frames(messages.size() - next);
    if (frames.empty()) {
      if (options.on_back_pressure) options.on_back_pressure();
      port.wait(monotonic_now(), monotonic_now() + 20ms);
      continue;
    }
    for (TxPacket& packet : frames) prepare(packet, messages[next], next, options), ++next;
    port.transmit(frames);
  }
  ASSERT_EQ(next, messages.size());
}

inline void drain(Port& port) {
  const Time end = monotonic_now() + kPatience;
  while (port.unsent() > 0 && monotonic_now() < end) {
    port.wait(monotonic_now(), monotonic_now() + 20ms);
  }
  EXPECT_EQ(port.unsent(), 0u);
}

inline std::vector<Message> run_of(std::size_t count, std::uint32_t length, Rank peer) {
  std::vector<Message> result(count);
  for (std::size_t i = 0; i < count; ++i) {
    result[i] = {.peer = peer, .number = static_cast<std::uint32_t>(i), .length = length};
  }
  return result;
}

inline bool each_once(const Inbox& inbox, std::size_t count) {
  if (inbox.seen.size() != count || inbox.packets != count) return false;
  return inbox.seen.begin()->first == 0 && inbox.seen.rbegin()->first == count - 1;
}

}  // namespace tarpon::test
