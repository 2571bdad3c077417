// IPv4 interfaces of this network namespace, and which of them a job uses.
//
// Everything is read through sockets of the calling thread's namespace; /sys would show the
// namespace that mounted it.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tools/environment.h"
#include "xdp/result.h"

namespace tarpon {

enum class InterfaceKind { device, loopback, bridge, veth };

/// An interface with one of its IPv4 addresses; an interface with two addresses is listed twice.
struct Interface {
  std::string name;
  std::string address;  // dotted
  int mtu = 0;
  std::string driver;  // "virtio_net", "veth", ...; empty when the kernel does not say
  InterfaceKind kind = InterfaceKind::device;
};

/// Interfaces that are up and have an IPv4 address, in the kernel's order.
Result<std::vector<Interface>> list_interfaces();

/// Its driver by ethtool; empty when the kernel does not say.
std::string interface_driver(const std::string& name);

/// The local address from which packets to `host` (IPv4 or a name) leave. Sends nothing; a name may
/// cost a resolver query. Errors: unavailable (name unknown, no route).
Result<std::string> source_address_towards(const std::string& host);

struct InterfaceRequest {
  std::optional<std::string> name;    // --interface
  std::optional<std::string> host;    // of the rendezvous; nullopt for file://
  std::optional<std::string> source;  // source_address_towards(*host)
  bool all_local = false;             // every rank is on this host
};

struct InterfaceChoice {
  Interface interface;
  std::string reason;  // for the report: "routes to 10.0.0.1"
};

/// By --interface; else by TARPON_SOCKET_IFNAME (NCCL's grammar: prefixes separated by commas, a
/// leading '^' excludes, '=' means exact names) or GLOO_SOCKET_IFNAME (exact names); else loopback
/// when all ranks are local; else the one that routes to the rendezvous; else the only device.
/// Loopback, bridges and veths are taken for remote peers only when named. Pure but for
/// `environment`. Errors name what exists.
Result<InterfaceChoice> choose_interface(const std::vector<Interface>& interfaces,
                                         const InterfaceRequest& request,
                                         const Environment& environment);

/// The host in "tcp://HOST:PORT"; nullopt for file:// and for an unspecified address.
std::optional<std::string> rendezvous_host(std::string_view address);

}  // namespace tarpon
