// The least that AF_XDP needs, for a baseline: one queue, its UMEM and rings, and a program of six
// instructions that redirects every frame. Shares nothing with xdp/, so that what is wrong or slow
// there does not spoil the comparison. System calls alone: also for a static program in a guest.
//
// A failed call ends the program with a line that names it. One thread at a time.
#pragma once

#include <linux/if_xdp.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace tarpon::bench {

inline constexpr std::uint32_t kChunk = 4096;

using MacAddress = std::array<std::uint8_t, 6>;

struct MinimalOptions {
  std::string interface;
  std::uint32_t queue = 0;
  std::uint32_t frame_bytes = 1442;  // of every frame sent, Ethernet header included
  bool multi_buffer = false;         // XDP_USE_SG
  std::uint16_t copy_flags = 0;      // XDP_COPY, XDP_ZEROCOPY, or 0: as the driver can
  std::uint32_t receive_chunks = 1024;
  std::uint32_t in_flight = 192;  // frames sent and not completed
};

[[noreturn]] void die(const std::string& what);

class MinimalSocket {
 public:
  explicit MinimalSocket(const MinimalOptions& options);
  ~MinimalSocket();
  MinimalSocket(const MinimalSocket&) = delete;
  MinimalSocket& operator=(const MinimalSocket&) = delete;

  const MacAddress& mac() const { return mac_; }
  bool zero_copy() const { return zero_copy_; }

  /// Writes the headers of every frame to send: Ethernet, IPv4, UDP.
  void prepare(const MacAddress& destination);

  /// Sends up to `most` frames, as many as may be in flight; returns their number.
  std::uint32_t send(std::uint32_t most);
  /// Takes completions; false when nothing is in flight any more.
  bool reap();

  /// Takes up to `most` chunks that came, gives them back to the kernel, and counts.
  std::uint32_t receive(std::uint32_t most);
  std::uint64_t packets() const { return packets_; }
  std::uint64_t bytes() const { return bytes_; }
  /// Frames that came and found no room, by the kernel's count.
  std::uint64_t lost() const;

  /// Sleeps until `events` (of poll), at most 100 ms.
  void sleep(short events) const;

 private:
  struct Ring {
    std::uint32_t* producer = nullptr;
    std::uint32_t* consumer = nullptr;
    std::uint32_t* flags = nullptr;
    void* entries = nullptr;
    std::uint32_t mask = 0;
    std::uint32_t next = 0;  // ours: of the producer or of the consumer
  };

  void make_rings();
  void attach();
  void bind_queue();
  void kick();
  void take(const xdp_desc& part);

  MinimalOptions options_;
  unsigned index_ = 0;
  MacAddress mac_{};
  int fd_ = -1;
  int program_ = -1, map_ = -1, link_ = -1;
  std::byte* memory_ = nullptr;
  std::uint32_t span_ = 1;  // chunks of a frame to send
  Ring fill_, completion_, receive_, transmit_;
  std::vector<std::uint32_t> free_;  // frames to send, a stack
  std::uint32_t flying_ = 0;
  std::uint64_t packets_ = 0;
  std::uint64_t bytes_ = 0;
  bool inside_ = false;  // the next chunk continues a frame
  bool ours_ = false;    // of the frame that it belongs to
  bool zero_copy_ = false;
};

}  // namespace tarpon::bench
