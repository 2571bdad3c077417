#include "tools/xdp/xdp_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <cstring>
#include <fstream>
#include <sstream>

#include "xdp/holders.h"

namespace tarpon {
namespace {

constexpr std::size_t kMostNamed = 8;  // holders, senders, queues in one line

/// The first few, and how many more.
template <typename Values>
std::string some(const Values& values) {
  std::vector<std::string> texts;
  for (const auto& value : values) {
    if (texts.size() == kMostNamed) {
      texts.push_back(fmt::format("{} more", values.size() - kMostNamed));
      break;
    }
    texts.push_back(fmt::format("{}", value));
  }
  return fmt::format("{}", fmt::join(texts, ", "));
}

// Written by hand: the C library's headers for it conflict with the kernel's, which the parser
// needs.
std::uint16_t host_order(__be16 port) {
  return __builtin_bswap16(port);
}

std::string dotted(__be32 address) {
  std::array<std::uint8_t, 4> bytes{};
  std::memcpy(bytes.data(), &address, sizeof address);
  return fmt::format("{}", fmt::join(bytes, "."));
}

/// How many frames of each sender the program dropped as closed; empty if that is not known.
std::map<std::uint32_t, std::uint64_t> late_by_sender(const xdp::Program& program,
                                                      std::uint32_t index) {
  std::map<std::uint32_t, std::uint64_t> result;
  const auto late = program.maps().late(index);
  for (std::uint32_t sender = 0; late && sender < late->size(); ++sender) {
    if ((*late)[sender] != 0) result[sender] = (*late)[sender];
  }
  return result;
}

void add_ports(const xdp::Program& program, XdpReport& report) {
  for (const auto& [key, entry] : program.maps().ports()) {
    PortReport port{.address = dotted(key.address),
                    .port = host_order(key.port),
                    .queues = {},
                    .alive = has_udp_socket(key),
                    .late = {}};
    for (std::uint32_t queue = 0; queue < TARPON_MAX_QUEUES; ++queue) {
      if ((entry.queues >> queue & 1) != 0) port.queues.push_back(queue);
    }
    // The late packets of a multicast group are counted with those of its port.
    const bool group = (entry.mac[0] & 1) != 0;
    if (!group) port.late = late_by_sender(program, entry.index);
    report.ports.push_back(std::move(port));
  }
}

/// "short 0, not_ipv4 3" for verdicts [first, last].
std::string counters_text(const xdp::Verdicts& counters, int first, int last) {
  std::vector<std::string> texts;
  for (int at = first; at <= last; ++at) {
    texts.push_back(fmt::format("{} {}", xdp::name(static_cast<tarpon_verdict>(at)),
                                counters[static_cast<std::size_t>(at)]));
  }
  return fmt::format("{}", fmt::join(texts, ", "));
}

std::string port_text(const PortReport& port) {
  std::vector<std::string> late;
  late.reserve(port.late.size());
  for (const auto& [sender, count] : port.late) {
    late.push_back(fmt::format("rank {}: {}", sender, count));
  }
  return fmt::format("{}:{}, queues {}, late: {}{}", port.address, port.port, some(port.queues),
                     late.empty() ? "none" : some(late),
                     port.alive ? "" : " (dead: tarpon xdp clean removes it)");
}

std::string sockets_text(const XdpReport& report) {
  if (!report.sockets) return "the kernel does not list them (CONFIG_XDP_SOCKETS_DIAG)";
  std::vector<std::string> texts;
  texts.reserve(report.sockets->size());
  for (const xdp::BoundSocket& socket : *report.sockets) {
    texts.push_back(
        fmt::format("queue {} {}", socket.queue, socket.zero_copy ? "zero-copy" : "copy"));
  }
  return texts.empty() ? "none" : some(texts);
}

}  // namespace

std::string text_of(const tarpon_port_key& key) {
  return fmt::format("{}:{}", dotted(key.address), host_order(key.port));
}

bool has_udp_socket(const tarpon_port_key& key) {
  // The kernel prints addresses as a number in the host's order, ports as one in the network's.
  const std::string exact = fmt::format("{:08X}:{:04X}", key.address, host_order(key.port));
  const std::string any = fmt::format("00000000:{:04X}", host_order(key.port));
  std::ifstream file("/proc/thread-self/net/udp");
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    std::string number, local;
    words >> number >> local;
    if (local == exact || local == any) return true;
  }
  return false;
}

Result<XdpReport> report_of(unsigned interface, const std::vector<xdp::Pin>& pins) {
  XdpReport report;
  report.interface = interface;
  report.name = xdp::interface_text(interface);
  auto attached = xdp::attached_to(interface);
  if (!attached) return fail(attached.error());
  report.attached = std::move(*attached);
  if (auto sockets = xdp::sockets_of(interface)) report.sockets = std::move(*sockets);
  if (!report.attached) return report;
  report.link = xdp::link_id(xdp::find_link(report.attached->id, interface));
  if (report.link != 0) report.holders = xdp::link_holders(report.link);
  for (const xdp::Pin& pin : pins) {
    const bool held = report.link != 0 ? pin.link == report.link
                                       : pin.link == 0 && pin.program == report.attached->id;
    if (held) report.pins.push_back(pin.path);
  }
  if (!report.attached->ours) return report;
  const auto program = xdp::Program::find(interface);
  if (!program) {
    report.unreadable = program.error().message;
    return report;
  }
  add_ports(*program, report);
  if (auto counters = program->maps().verdicts()) report.counters = *counters;
  return report;
}

std::string kept_by(const XdpReport& report) {
  if (!report.pins.empty()) return fmt::format("{}", fmt::join(report.pins, ", "));
  if (report.link == 0) return "itself, until it is removed";
  if (report.holders.empty()) return "a process that is not visible here";
  return fmt::format("process {}", some(report.holders));
}

std::string to_text(const XdpReport& report) {
  if (!report.attached) {
    return fmt::format("{:<15} <no XDP program loaded>\n", report.name);
  }
  const xdp::Attached& attached = *report.attached;
  std::string text = fmt::format("{:<15} {:<16} {:<7} {:>6}  {}\n", report.name, attached.name,
                                 xdp::name(attached.mode), attached.id, kept_by(report));
  const auto line = [&text](const char* what, const std::string& value) {
    text += fmt::format("  {:<10} {}\n", what, value);
  };
  for (const xdp::Component& each : attached.components) {
    text += fmt::format(" => {:<11} {:<16} {:<7} {:>6}\n", "", each.name, "", each.id);
  }
  if (!report.pins.empty() && !report.holders.empty()) {
    line("used by", "process " + some(report.holders));
  }
  if (!attached.ours) return text;
  if (!report.unreadable.empty()) line("counters", report.unreadable);
  if (report.unreadable.empty() && report.ports.empty()) line("ports", "none");
  for (const PortReport& port : report.ports) line("port", port_text(port));
  line("sockets", sockets_text(report));
  if (report.counters) {
    const xdp::Verdicts& counters = *report.counters;
    line("not ours", counters_text(counters, TARPON_VERDICT_SHORT, TARPON_VERDICT_NO_PORT));
    line("passed on", counters_text(counters, TARPON_VERDICT_MAC, TARPON_VERDICT_QUEUE));
    line("ours", counters_text(counters, TARPON_VERDICT_CLOSED, TARPON_VERDICT_RING));
  }
  return text;
}

nlohmann::json to_json(const XdpReport& report) {
  nlohmann::json json{{"interface", report.name}, {"index", report.interface}};
  json["sockets"] = nullptr;
  if (report.sockets) {
    json["sockets"] = nlohmann::json::array();
    for (const xdp::BoundSocket& socket : *report.sockets) {
      json["sockets"].push_back({{"queue", socket.queue},
                                 {"zero_copy", socket.zero_copy},
                                 {"umem_bytes", socket.umem_bytes},
                                 {"rx_dropped", socket.rx_dropped},
                                 {"rx_ring_full", socket.rx_ring_full},
                                 {"rx_fill_ring_empty", socket.rx_fill_ring_empty}});
    }
  }
  json["program"] = nullptr;
  if (!report.attached) return json;
  const xdp::Attached& attached = *report.attached;
  json["program"] = {{"name", attached.name},
                     {"id", attached.id},
                     {"mode", xdp::name(attached.mode)},
                     {"ours", attached.ours},
                     {"dispatcher", attached.dispatcher},
                     {"components", nlohmann::json::array()},
                     {"pins", report.pins},
                     {"holders", report.holders}};
  for (const xdp::Component& each : attached.components) {
    json["program"]["components"].push_back(
        {{"name", each.name}, {"id", each.id}, {"ours", each.ours}});
  }
  json["ports"] = nlohmann::json::array();
  for (const PortReport& port : report.ports) {
    nlohmann::json late = nlohmann::json::object();
    for (const auto& [sender, count] : port.late) late[std::to_string(sender)] = count;
    json["ports"].push_back({{"address", port.address},
                             {"port", port.port},
                             {"queues", port.queues},
                             {"alive", port.alive},
                             {"late", late}});
  }
  for (std::size_t at = 0; report.counters && at < report.counters->size(); ++at) {
    json["counters"][xdp::name(static_cast<tarpon_verdict>(at))] = (*report.counters)[at];
  }
  return json;
}

}  // namespace tarpon
