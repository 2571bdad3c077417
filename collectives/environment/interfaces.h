// IPv4 interfaces of this network namespace, and which of them a job uses.
//
// Everything is read through sockets of the calling thread's namespace; /sys would show the
// namespace that mounted it.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "collectives/environment/environment.h"
#include "collectives/rendezvous_options.h"
#include "transport/time.h"
#include "xdp/base/result.h"

namespace tarpon {

enum class InterfaceKind { device, loopback, bridge, veth };

/// An interface with one of its IPv4 addresses; an interface with two addresses is listed twice.
struct Interface {
  std::string name;
  std::string address;  // dotted
  int mtu = 0;
  std::string driver;  // "virtio_net", "veth", ...; empty when the kernel does not say
  InterfaceKind kind = InterfaceKind::device;
  bool carrier = true;  // false: no cable, or the other end is down. True if the driver cannot tell
};

/// Interfaces that are up and have an IPv4 address, in the kernel's order.
Result<std::vector<Interface>> list_interfaces();

/// Returns the driver of the interface `name`, by ethtool; empty when the kernel does not say.
std::string interface_driver(const std::string& name);

/// The local address from which packets to `host` (IPv4 or a name) leave. Sends nothing; a name may
/// cost a resolver query. Waits until `until` for a name that is not known yet, and tells
/// `observer` (may be null) so. Errors: unavailable (name unknown, no route), invalid_argument
/// (IPv6).
Result<std::string> source_address_towards(const std::string& host, Time until = {},
                                           RendezvousObserver* observer = nullptr);

/// What is known of the interface that a job is to use.
struct InterfaceRequest {
  std::optional<std::string> name = std::nullopt;
  std::string named_by = "interface";                 // for messages: which option gave `name`
  std::optional<std::string> address = std::nullopt;  // IPv4, dotted: one that the interface has
  std::optional<std::string> host = std::nullopt;     // of the rendezvous; nullopt for file://
  std::optional<std::string> source = std::nullopt;   // source_address_towards(*host)
  std::optional<Error> no_source = std::nullopt;      // why `source` is not known
  bool all_local = false;                             // every rank is on this host
  Time host_until{};  // how long a name in `host` may be unknown, if it has to be looked up
  RendezvousObserver* observer = nullptr;  // is told of that wait
};

struct InterfaceChoice {
  Interface interface;
  std::string reason;  // for the report: "routes to 10.0.0.1"
};

/// Chooses by `request.name`; else by `request.address`; else by TARPON_INTERFACE (a name); else by
/// TARPON_SOCKET_IFNAME (NCCL's grammar: prefixes separated by commas, a leading '^' excludes, '='
/// means exact names) or GLOO_SOCKET_IFNAME (exact names); else loopback when all ranks are local;
/// else the interface that routes to the rendezvous; else the only device. `request.address`
/// selects among the addresses of an interface that is named. Loopback and bridges serve remote
/// peers only when they are named. So do veths, except that a veth is taken if it routes to the
/// rendezvous and the host has no other device: it is the way out of a container. An interface
/// without carrier is refused. Pure but for `environment`. Errors name the interfaces that exist.
Result<InterfaceChoice> choose_interface(const std::vector<Interface>& interfaces,
                                         const InterfaceRequest& request,
                                         const Environment& environment);

/// The same with list_interfaces(), and `request.source` found where it is missing. Errors: also
/// those of both functions.
Result<InterfaceChoice> choose_interface(InterfaceRequest request, const Environment& environment);

/// The host in "tcp://HOST:PORT"; nullopt for file:// and for an unspecified address.
std::optional<std::string> rendezvous_host(std::string_view address);

/// Whether `address` (IPv4, dotted) is in 127.0.0.0/8, which only its own host reaches.
bool is_loopback_address(std::string_view address);

}  // namespace tarpon
