// An AF_XDP socket on one receive queue of one interface, with its UMEM and four rings.
//
// Life cycle: create() maps; the owner fills the fill ring; bind() joins the queue, and only then
// does the kernel take frames; the owner inserts fd() into the program's socket map. The destructor
// closes the socket, then unmaps. One thread at a time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "xdp/base/file_descriptor.h"
#include "xdp/base/private_descriptor.h"
#include "xdp/base/result.h"
#include "xdp/kernel.h"
#include "xdp/ring.h"
#include "xdp/umem.h"

namespace tarpon::xdp {

enum class CopyMode : std::uint8_t {
  automatic,  // zero-copy where the driver grants it
  copy,
  zero_copy,  // or an error
};

/// Makes and binds sockets for a process that may not do so itself.
class SocketSource {
 public:
  virtual ~SocketSource() = default;

  /// As open_socket(), for `queue`. Errors: unavailable (the queue is taken; no answer), io.
  virtual Result<FileDescriptor> make(std::uint32_t queue, bool busy_poll) = 0;

  /// Binds the socket that make() returned last, which has its memory and rings. Returns 0 or an
  /// errno; EBUSY: another socket has the queue.
  virtual int bind(std::uint32_t queue, std::uint16_t flags) = 0;
};

/// Makes an AF_XDP socket with all that needs privileges: a large send buffer, busy polling if
/// wanted. Without CAP_NET_ADMIN the kernel refuses these. Errors: permission (CAP_NET_RAW),
/// unavailable (no AF_XDP).
Result<FileDescriptor> open_socket(bool busy_poll);

/// Binds `socket` to a queue, with XDP_... `flags`. Returns 0 or an errno.
int bind_socket(int socket, unsigned interface, std::uint32_t queue, std::uint16_t flags);

struct SocketOptions {
  unsigned interface = 0;  // index
  std::uint32_t queue = 0;
  std::uint32_t rx_size = 2048;  // entries; powers of two
  std::uint32_t tx_size = 2048;
  std::uint32_t fill_size = 4096;  // >= 2 x rx_size
  std::uint32_t completion_size = 2048;
  CopyMode copy = CopyMode::automatic;
  bool multi_buffer = false;       // frames of several chunks
  bool busy_poll = false;          // SO_PREFER_BUSY_POLL; see SocketGrant::busy_poll
  SocketSource* source = nullptr;  // used until bind() has returned; null: this process
};

/// What the kernel granted of the options, read back.
struct SocketGrant {
  bool zero_copy = false;
  bool multi_buffer = false;
  bool busy_poll = false;        // the queue has a NAPI instance that can be polled
  std::uint32_t tx_budget = 32;  // frames that one kick sends in copy mode
};

/// The kernel's six counters of a socket.
struct SocketStatistics {
  std::uint64_t rx_dropped = 0;
  std::uint64_t rx_invalid_descriptors = 0;
  std::uint64_t tx_invalid_descriptors = 0;
  std::uint64_t rx_ring_full = 0;
  std::uint64_t rx_fill_ring_empty = 0;
  std::uint64_t tx_ring_empty = 0;
};

/// The outcome of a kick.
enum class Kick : std::uint8_t {
  done,
  again,  // the kernel made progress, or lacks memory for the moment: kick again later
  lost,   // the driver dropped a frame; it will be completed
  fatal,  // the interface is down or gone: error()
};

/// The mapping of a ring; unmapped on destruction.
class RingMapping {
 public:
  RingMapping() = default;
  RingMapping(void* data, std::size_t bytes) : data_(data), bytes_(bytes) {}
  RingMapping(RingMapping&& other) noexcept;
  RingMapping& operator=(RingMapping&& other) noexcept;
  ~RingMapping();
  std::byte* data() const { return static_cast<std::byte*>(data_); }

 private:
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

class Socket {
 public:
  /// `umem` outlives the socket. Errors: permission, unavailable (no AF_XDP), io.
  static Result<Socket> create(const Umem& umem, const SocketOptions& options);

  /// Joins the queue. Waits at most 100 ms for a queue that was just released. Errors name
  /// interface and queue: unavailable (queue taken: by which process; mode refused; interface
  /// down), io.
  Result<SocketGrant> bind();

  int fd() const { return fd_.get(); }

  ProducerRing<std::uint64_t> fill;  // addresses of free frames
  ProducerRing<xdp_desc> transmit;
  ConsumerRing<xdp_desc> receive;
  ConsumerRing<std::uint64_t> completion;  // addresses of sent frames

  /// Makes the kernel look at the transmit ring when it asks for a wake-up.
  Kick kick_transmit();
  /// Why the last kick was fatal; an errno.
  int error() const { return error_; }
  /// Makes the driver look at the fill ring when it asks for a wake-up; polls the queue where busy
  /// polling was granted.
  void kick_receive();

  Result<SocketStatistics> statistics() const;

 private:
  Socket() = default;

  std::array<RingMapping, 4> mappings_;  // unmapped after the socket is closed
  PrivateDescriptor fd_;
  SocketOptions options_;
  bool busy_polls_ = false;  // granted
  int error_ = 0;
};

/// Whether this kernel takes frames of several chunks (6.6 and later).
bool multi_buffer_supported();

/// Whether the kernel would take `descriptor` for a UMEM of `umem_bytes` in aligned mode: inside
/// one chunk, not empty, no unknown options. A descriptor that fails must not reach the ring.
bool valid_descriptor(const xdp_desc& descriptor, std::uint64_t umem_bytes, bool multi_buffer);

}  // namespace tarpon::xdp
