// What `tarpon xdp status` reports about XDP on one interface.
#pragma once

#include <array>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "xdp/attached.h"
#include "xdp/pins.h"
#include "xdp/program.h"
#include "xdp/socket_list.h"

namespace tarpon {

/// One listening port, or the multicast group of one.
struct PortReport {
  std::string address;  // dotted
  std::uint16_t port = 0;
  std::vector<std::uint32_t> queues;
  bool alive = false;                           // its UDP socket is there
  std::map<std::uint32_t, std::uint64_t> late;  // packets dropped as closed, by sender; complete.
                                                // Those of a group are in its port's
};

struct XdpReport {
  unsigned interface = 0;
  std::string name;
  std::optional<xdp::Attached> attached;
  std::uint32_t link = 0;         // id; 0: attached without one
  std::vector<std::string> pins;  // of the link, or of the program
  std::vector<int> holders;       // processes that hold the link
  // Of our program; empty without it.
  std::vector<PortReport> ports;
  std::optional<xdp::Verdicts> counters;
  std::string unreadable;  // why they cannot be read, if the program has another version
  std::optional<std::vector<xdp::BoundSocket>> sockets;  // nullopt: the kernel does not say
};

/// `pins`: xdp::find_pins(). Errors: permission, io.
Result<XdpReport> report_of(unsigned interface, const std::vector<xdp::Pin>& pins);

/// "10.0.0.1:7000"
std::string text_of(const tarpon_port_key& key);

/// Whether an ordinary UDP socket of this network namespace is bound to it: every port of ours has
/// one beside its AF_XDP sockets.
bool has_udp_socket(const tarpon_port_key& key);

/// "a job's processes 12, 13"; what keeps the program attached.
std::string kept_by(const XdpReport& report);

/// Lines for a reader, each below 160 bytes but for paths.
std::string to_text(const XdpReport& report);
nlohmann::json to_json(const XdpReport& report);

}  // namespace tarpon
