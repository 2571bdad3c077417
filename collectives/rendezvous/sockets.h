// IPv4 TCP sockets of the rendezvous: non-blocking, close-on-exec, every wait bounded.
#pragma once

#include <netinet/in.h>
#include <poll.h>

#include <cstdint>
#include <string>
#include <vector>

#include "collectives/rendezvous_options.h"
#include "transport/time.h"
#include "xdp/base/file_descriptor.h"
#include "xdp/base/result.h"

namespace tarpon::rendezvous {

/// "10.0.0.1", and "10.0.0.1:29500".
std::string host_text(const sockaddr_in& address);
std::string host_port_text(const sockaddr_in& address);

/// The address of `host`, an IPv4 address or a name. A name takes as long as the system's resolver,
/// which has a bound of its own. Errors: invalid_argument (IPv6 only, or no host), unavailable (a
/// name that is not known, or not yet).
Result<sockaddr_in> resolve(const std::string& host, std::uint16_t port);

/// The same, again and again until `deadline` while the name is not known: a cluster may publish
/// the name of rank 0's host after its ranks have started. The error says for how long that was
/// tried. `observer` (may be null) is told of the wait.
Result<sockaddr_in> resolve_until(const std::string& host, std::uint16_t port, Time deadline,
                                  RendezvousObserver* observer);

/// Limits the segments of the connections of `socket` to 256 bytes, in both directions. So control
/// messages pass a path whose MTU is small and not known yet, even if no ICMP message reports it.
/// listen_at() and connect_to() call it. REQUIRES: `socket` has not yet connected or listened.
void limit_segments(const FileDescriptor& socket);

/// Listens at `address`; port 0 takes any. Errors: io (in use, not an address of this host).
Result<FileDescriptor> listen_at(const sockaddr_in& address);

/// The same at a port of `ports`, whatever that of `address` is. Errors: also unavailable (no port
/// is free).
Result<FileDescriptor> listen_in(sockaddr_in address, const PortRange& ports);

/// The address a socket is bound to.
sockaddr_in local_name(const FileDescriptor& socket);

/// Connects until `deadline`. Errors: unavailable with the reason, timeout.
Result<FileDescriptor> connect_to(const sockaddr_in& address, Time deadline);

/// Whether this process, or the system, can open no more sockets after this errno.
bool lacks_resources(int error);

/// Accepts one waiting connection and sets TCP_NODELAY; an empty FileDescriptor when none waits.
/// Errors: io, when this process can open no more sockets.
Result<FileDescriptor> accept_one(const FileDescriptor& listener);

/// Sleeps until one of `entries` is ready or `until`; may return early.
void poll_until(std::vector<pollfd>& entries, Time until);

/// Sleeps until `until`.
void sleep_until(Time until);

}  // namespace tarpon::rendezvous
