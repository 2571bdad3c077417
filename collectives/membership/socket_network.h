// The mesh's byte streams over TCP: non-blocking sockets and an epoll instance.
//
// A dead connection is noticed when data is sent on it: unacknowledged data ends a connection after
// kUnacknowledged. The kernel probes idle connections, which also keeps the state of firewalls.
//
// With a secret the streams have TLS (SecureSocket): the end that connects is the client. The
// machine hears of a stream that this rank opens when its handshake is over; bytes that come on a
// stream count from then on. Streams bounds both times.
//
// wait() may run without a lock while other members are called from other threads; all other
// members need the caller's lock.
#pragma once

#include <netinet/in.h>
#include <sys/epoll.h>

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "collectives/membership/streams.h"
#include "collectives/port_range.h"
#include "collectives/secret/secure_socket.h"
#include "transport/ports/wake_event.h"
#include "xdp/base/private_descriptor.h"
#include "xdp/base/result.h"

namespace tarpon::mesh {

/// The socket on which a rank listens, for the life of the job.
struct Door {
  FileDescriptor listener;
  std::uint16_t port = 0;
};

/// Listens at `address` (IPv4), at a port of `ports`. Errors: invalid_argument, io, unavailable (no
/// port is free).
Result<Door> open_door(const std::string& address, const PortRange& ports = {});

class SocketNetwork final : public Network {
 public:
  static constexpr Duration kUnacknowledged = 5s;
  /// Connections that are accepted in one round. A flood cannot hold the lock, nor displace a
  /// stranger of an earlier round before its HELLO is read.
  static constexpr int kAccepts = static_cast<int>(Streams::kMaxStrangers / 2);

  /// `doors`: where each rank listens, by rank. Connections leave from the address of `door`, which
  /// the other ranks expect. `tls`: null without a secret. Errors: io.
  static Result<std::unique_ptr<SocketNetwork>> make(Door door, std::vector<sockaddr_in> doors,
                                                     std::shared_ptr<const TlsContext> tls = {});

  StreamId connect(Rank peer) override;
  std::size_t write(StreamId stream, std::string_view bytes) override;
  void close(StreamId stream) override;
  /// Closes all streams and the door. REQUIRES: connect(), wait() and dispatch() are called no
  /// more.
  void close_all();

  /// Sleeps until a socket is ready, wake() is called, or `until`.
  void wait(Time now, Time until);
  /// Passes on the events that wait() found. Only for the thread that calls wait().
  void dispatch(Streams& streams, Time now);
  /// Why this process could not accept or make a connection: it lacks a file descriptor or memory.
  /// The latest such error. The network tries again by itself.
  const std::optional<Error>& shortage() const { return shortage_; }
  /// Ends wait(). May be called from any thread, without the lock.
  void wake() { event_.wake(); }

 private:
  enum class Phase : std::uint8_t { connecting, handshake, open };
  struct Stream {
    SecureSocket socket;
    Phase phase = Phase::open;
    Rank peer = 0;  // until it is open
    int error = 0;  // connect() has failed at once
  };

  SocketNetwork(Door door, std::vector<sockaddr_in> doors, std::shared_ptr<const TlsContext> tls,
                FileDescriptor epoll, FileDescriptor event);
  bool watch(int operation, int fd, StreamId stream, std::uint32_t events);
  StreamId add(FileDescriptor socket, bool connecting, int error);
  std::uint64_t ranks_at(const FileDescriptor& socket) const;
  void accept_some(Streams& streams, Time now);
  void handle(StreamId stream, std::uint32_t events, Streams& streams, Time now);
  void finish_connect(StreamId stream, Streams& streams, Time now);
  void go_on_with_handshake(StreamId stream, Streams& streams, Time now);
  void read(StreamId stream, Streams& streams, Time now);

  PrivateDescriptor listener_;
  const std::vector<sockaddr_in> doors_;
  const std::shared_ptr<const TlsContext> tls_;
  PrivateDescriptor epoll_;
  WakeEvent event_;
  std::map<StreamId, Stream> streams_;
  std::vector<StreamId> failed_;  // connect() failed at once
  StreamId last_ = 0;
  std::array<epoll_event, 64> ready_{};
  int ready_count_ = 0;
  std::optional<Error> shortage_;
  Time listen_at_ = kNever;  // the door is not watched until then: no descriptor was left
};

}  // namespace tarpon::mesh
