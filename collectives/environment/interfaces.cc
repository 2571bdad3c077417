#include "collectives/environment/interfaces.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>

#include "collectives/rendezvous/sockets.h"
#include "xdp/base/file_descriptor.h"
#include "xdp/base/system_limits.h"

namespace tarpon {
namespace {

constexpr const char* kNoSocket = "cannot look at the network interfaces";

FileDescriptor query_socket() {
  return FileDescriptor(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
}

ifreq request_for(const std::string& name) {
  ifreq request{};
  name.copy(request.ifr_name, IFNAMSIZ - 1);
  return request;
}

std::string dotted(const sockaddr_in& address) {
  std::array<char, INET_ADDRSTRLEN> text{};
  ::inet_ntop(AF_INET, &address.sin_addr, text.data(), text.size());
  return text.data();
}

InterfaceKind kind_of(unsigned flags, std::string_view driver) {
  if ((flags & IFF_LOOPBACK) != 0) return InterfaceKind::loopback;
  if (driver == "bridge") return InterfaceKind::bridge;
  if (driver == "veth") return InterfaceKind::veth;
  return InterfaceKind::device;
}

std::string_view kind_name(InterfaceKind kind) {
  switch (kind) {
    case InterfaceKind::device:
      return "device";
    case InterfaceKind::loopback:
      return "loopback";
    case InterfaceKind::bridge:
      return "bridge";
    case InterfaceKind::veth:
      return "veth";
  }
  return "";
}

/// Not by IFF_RUNNING, which interfaces lack as well that only wait for something (802.1X).
bool has_carrier(const FileDescriptor& socket, const std::string& name) {
  ethtool_value link{.cmd = ETHTOOL_GLINK, .data = 0};
  ifreq request = request_for(name);
  request.ifr_data = reinterpret_cast<char*>(&link);
  return ::ioctl(socket.get(), SIOCETHTOOL, &request) != 0 || link.data != 0;
}

/// Lists all IPv4 addresses with the names of their interfaces. Not by getifaddrs(), which needs
/// AF_NETLINK: services may be denied it (RestrictAddressFamilies of systemd).
Result<std::vector<ifreq>> list_addresses(const FileDescriptor& socket) {
  std::vector<ifreq> listed(16);
  while (true) {
    ifconf request{};
    request.ifc_len = static_cast<int>(listed.size() * sizeof(ifreq));
    request.ifc_req = listed.data();
    if (::ioctl(socket.get(), SIOCGIFCONF, &request) != 0) {
      return fail_system(errno, "cannot list the network interfaces");
    }
    const std::size_t count = static_cast<std::size_t>(request.ifc_len) / sizeof(ifreq);
    const bool whole = count < listed.size();  // else there may be more
    listed.resize(whole ? count : 2 * count);
    if (whole) return listed;
  }
}

std::string describe(const std::vector<Interface>& interfaces) {
  std::vector<std::string> texts;
  texts.reserve(interfaces.size());
  for (const Interface& each : interfaces) {
    texts.push_back(
        fmt::format("{} ({}{})", each.name, each.address, each.carrier ? "" : ", no carrier"));
  }
  return texts.empty() ? "none has an IPv4 address" : fmt::format("{}", fmt::join(texts, ", "));
}

tl::unexpected<Error> refuse(std::string_view what, const std::vector<Interface>& interfaces) {
  return fail(Error::Code::invalid_argument,
              fmt::format("{}; interfaces that are up: {}", what, describe(interfaces)));
}

/// Ends a refusal: the ways to name an interface.
constexpr std::string_view kNameOne =
    "name one with --interface, TARPON_INTERFACE or the option interface";

/// Interfaces that the environment names.
struct NameFilter {
  std::string origin;  // "TARPON_SOCKET_IFNAME=^docker"
  bool exclude = false;
  bool exact = false;
  std::vector<std::string> names;

  bool admits(const std::string& name) const {
    const bool listed = std::any_of(names.begin(), names.end(), [&](const std::string& each) {
      return exact ? name == each : name.starts_with(each);
    });
    return listed != exclude;
  }
};

std::vector<std::string> split_commas(std::string_view text) {
  std::vector<std::string> out;
  while (!text.empty()) {
    const std::string_view name = text.substr(0, text.find(','));
    if (!name.empty()) out.emplace_back(name);
    text.remove_prefix(std::min(name.size() + 1, text.size()));
  }
  return out;
}

std::optional<NameFilter> name_filter(const Environment& environment) {
  NameFilter filter;
  if (const auto name = environment("TARPON_INTERFACE")) {
    filter.origin = "TARPON_INTERFACE=" + *name;
    filter.exact = true;
    filter.names = {*name};
    return filter;
  }
  if (const auto own = environment("TARPON_SOCKET_IFNAME")) {
    std::string_view text = *own;
    filter.origin = "TARPON_SOCKET_IFNAME=" + *own;
    filter.exclude = text.starts_with('^');
    if (filter.exclude) text.remove_prefix(1);
    filter.exact = text.starts_with('=');
    if (filter.exact) text.remove_prefix(1);
    filter.names = split_commas(text);
    return filter;
  }
  if (const auto gloo = environment("GLOO_SOCKET_IFNAME")) {
    filter.origin = "GLOO_SOCKET_IFNAME=" + *gloo;
    filter.exact = true;
    filter.names = split_commas(*gloo);
    return filter;
  }
  return std::nullopt;
}

const Interface* with_address(const std::vector<Interface>& interfaces,
                              const std::optional<std::string>& address) {
  if (!address) return nullptr;
  for (const Interface& each : interfaces) {
    if (each.address == *address) return &each;
  }
  return nullptr;
}

/// Chooses among the interfaces that the user allows: the one with the address of the request, else
/// the one that routes to the rendezvous, else the first.
Result<InterfaceChoice> choose_allowed(const std::vector<Interface>& allowed,
                                       const InterfaceRequest& request, const std::string& reason) {
  if (request.address) {
    if (const Interface* own = with_address(allowed, request.address)) {
      return InterfaceChoice{*own, reason};
    }
    return refuse(fmt::format("{} does not have the address {}: give one of its own, or leave the "
                              "address out",
                              allowed.front().name, *request.address),
                  allowed);
  }
  const Interface* routed = with_address(allowed, request.source);
  return InterfaceChoice{routed == nullptr ? allowed.front() : *routed, reason};
}

std::vector<Interface> admitted(const std::vector<Interface>& interfaces,
                                const NameFilter& filter) {
  std::vector<Interface> out;
  std::copy_if(interfaces.begin(), interfaces.end(), std::back_inserter(out),
               [&](const Interface& each) { return filter.admits(each.name); });
  return out;
}

/// Whether `one` reaches other hosts: a device, or a veth where there is no device, as in a
/// container.
bool leads_out(const std::vector<Interface>& interfaces, const Interface& one) {
  if (one.kind != InterfaceKind::veth) return one.kind == InterfaceKind::device;
  return std::none_of(interfaces.begin(), interfaces.end(),
                      [](const Interface& each) { return each.kind == InterfaceKind::device; });
}

Result<InterfaceChoice> choose_by_route(const std::vector<Interface>& interfaces,
                                        const InterfaceRequest& request) {
  const Interface* routed = with_address(interfaces, request.source);
  const std::string& host = *request.host;
  if (request.no_source) return fail(*request.no_source);
  if (routed == nullptr) {
    return refuse(fmt::format("no allowed interface routes to {}: {}", host, kNameOne), interfaces);
  }
  // No other host reaches a rendezvous on 127.0.0.1: such a job is local.
  const bool local =
      routed->kind == InterfaceKind::loopback && is_loopback_address(routed->address);
  if (!leads_out(interfaces, *routed) && !local) {
    return refuse(fmt::format("{} is reached through {}, a {}: if all ranks are behind it, name it "
                              "with --interface {}, TARPON_INTERFACE or the option interface",
                              host, routed->name, kind_name(routed->kind), routed->name),
                  interfaces);
  }
  return InterfaceChoice{*routed, fmt::format("routes to {}", host)};
}

Result<InterfaceChoice> choose_unnamed(const std::vector<Interface>& interfaces,
                                       const InterfaceRequest& request) {
  if (request.all_local) {
    for (const Interface& each : interfaces) {
      if (each.kind == InterfaceKind::loopback) {
        return InterfaceChoice{each, "all ranks are on this host"};
      }
    }
  }
  if (request.host) return choose_by_route(interfaces, request);
  const Interface* only = nullptr;
  for (const Interface& each : interfaces) {
    if (each.kind != InterfaceKind::device) continue;
    if (only != nullptr && only->name != each.name) {
      return refuse(fmt::format("several interfaces could reach the other ranks: {}", kNameOne),
                    interfaces);
    }
    if (only == nullptr) only = &each;
  }
  if (only == nullptr) {
    return refuse(fmt::format("no interface reaches other hosts: {}", kNameOne), interfaces);
  }
  return InterfaceChoice{*only, "the only device"};
}

}  // namespace

std::string interface_driver(const std::string& name) {
  const FileDescriptor fd = query_socket();
  ethtool_drvinfo info{};
  info.cmd = ETHTOOL_GDRVINFO;
  ifreq request = request_for(name);
  request.ifr_data = reinterpret_cast<char*>(&info);
  if (::ioctl(fd.get(), SIOCETHTOOL, &request) != 0) return "";
  return {info.driver, ::strnlen(info.driver, sizeof info.driver)};
}

Result<std::vector<Interface>> list_interfaces() {
  const FileDescriptor fd = query_socket();
  if (!fd) return fail(with_limit(Error::system(errno, kNoSocket)));
  const auto listed = list_addresses(fd);
  if (!listed) return fail(listed.error());
  std::vector<Interface> out;
  for (const ifreq& each : *listed) {
    Interface entry;
    // A label such as "eth0:1" belongs to eth0.
    const std::string_view label = each.ifr_name;
    entry.name = label.substr(0, label.find(':'));
    ifreq request = request_for(entry.name);
    if (::ioctl(fd.get(), SIOCGIFFLAGS, &request) != 0) continue;  // it is gone
    const auto flags = static_cast<unsigned short>(request.ifr_flags);
    if ((flags & IFF_UP) == 0) continue;
    sockaddr_in address{};
    std::memcpy(&address, &each.ifr_addr, sizeof address);
    entry.address = dotted(address);
    request = request_for(entry.name);
    if (::ioctl(fd.get(), SIOCGIFMTU, &request) == 0) entry.mtu = request.ifr_mtu;
    entry.driver = interface_driver(entry.name);
    entry.kind = kind_of(flags, entry.driver);
    entry.carrier = has_carrier(fd, entry.name);
    out.push_back(std::move(entry));
  }
  return out;
}

Result<std::string> source_address_towards(const std::string& host, Time until,
                                           RendezvousObserver* observer) {
  constexpr std::uint16_t kAnyPort = 9;  // connecting a UDP socket only looks up the route
  const auto found = rendezvous::resolve_until(host, kAnyPort, until, observer);
  if (!found) return fail(found.error());
  sockaddr_in address = *found;
  const FileDescriptor fd = query_socket();
  if (!fd) return fail(with_limit(Error::system(errno, kNoSocket)));
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (::connect(fd.get(), generic, sizeof address) != 0) {
    return fail(Error::Code::unavailable,
                fmt::format("{}: no route: {}: check the address, and `ip route get {}`", host,
                            std::strerror(errno), host));
  }
  socklen_t length = sizeof address;
  if (::getsockname(fd.get(), generic, &length) != 0) return fail_system(errno, host);
  return dotted(address);
}

namespace {

Result<InterfaceChoice> choose(const std::vector<Interface>& interfaces,
                               const InterfaceRequest& request, const Environment& environment) {
  if (request.name) {
    const NameFilter filter{"", false, true, {*request.name}};
    const auto allowed = admitted(interfaces, filter);
    if (allowed.empty()) {
      return refuse(fmt::format("{} {}: no such interface, or it is down or has no IPv4 address",
                                request.named_by, *request.name),
                    interfaces);
    }
    return choose_allowed(allowed, request, "named by " + request.named_by);
  }
  if (request.address) {
    if (const Interface* own = with_address(interfaces, request.address)) {
      return InterfaceChoice{*own, "has the address " + *request.address};
    }
    return refuse(fmt::format("no interface has the address {}: give one of this host, or leave it "
                              "out",
                              *request.address),
                  interfaces);
  }
  const auto filter = name_filter(environment);
  if (!filter) return choose_unnamed(interfaces, request);
  const auto allowed = admitted(interfaces, *filter);
  if (allowed.empty()) return refuse(filter->origin + ": no interface matches", interfaces);
  if (!filter->exclude) return choose_allowed(allowed, request, "matches " + filter->origin);
  auto choice = choose_unnamed(allowed, request);
  if (choice) choice->reason += " (" + filter->origin + ")";
  return choice;
}

}  // namespace

Result<InterfaceChoice> choose_interface(const std::vector<Interface>& interfaces,
                                         const InterfaceRequest& request,
                                         const Environment& environment) {
  auto choice = choose(interfaces, request, environment);
  if (!choice || choice->interface.carrier) return choice;
  return refuse(
      fmt::format("{} ({}) has no carrier: connect its cable, or set the other end of its "
                  "link up, or {}",
                  choice->interface.name, choice->reason, kNameOne),
      interfaces);
}

Result<InterfaceChoice> choose_interface(InterfaceRequest request, const Environment& environment) {
  const auto interfaces = list_interfaces();
  if (!interfaces) return fail(interfaces.error());
  if (request.host && !request.source && !request.all_local) {
    const bool named = request.name || request.address;
    auto source = source_address_towards(*request.host, named ? Time{} : request.host_until,
                                         request.observer);
    if (source) {
      request.source = *std::move(source);
    } else {
      request.no_source = source.error();
    }
  }
  return choose_interface(*interfaces, request, environment);
}

std::optional<std::string> rendezvous_host(std::string_view address) {
  constexpr std::string_view kScheme = "tcp://";
  if (!address.starts_with(kScheme)) return std::nullopt;
  address.remove_prefix(kScheme.size());
  const std::string host(address.substr(0, address.rfind(':')));
  if (host.empty() || host == "0.0.0.0" || host == "*") return std::nullopt;
  return host;
}

bool is_loopback_address(std::string_view address) {
  return address.starts_with("127.");
}

}  // namespace tarpon
