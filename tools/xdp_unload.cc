// `tarpon xdp unload` and `tarpon xdp clean`
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <thread>

#include "tools/shared_program.h"
#include "tools/xdp_command.h"
#include "tools/xdp_report.h"
#include "transport/clock.h"
#include "xdp/pins.h"
#include "xdp/program.h"

namespace tarpon {
namespace {

constexpr Duration kVanishTime = 1s;  // the kernel detaches behind the last holder's back

/// Whether program `id` leaves the interface in time.
bool vanishes(unsigned interface, std::uint32_t id) {
  for (const Time until = monotonic_now() + kVanishTime;;) {
    const auto attached = xdp::attached_to(interface);
    if (attached && (!*attached || (*attached)->our_program != id)) return true;
    if (monotonic_now() >= until) return false;
    std::this_thread::sleep_for(5ms);
  }
}

std::string directory_of(const std::string& pin) {
  return std::filesystem::path(pin).parent_path().string();
}

Result<void> unload_shared(const XdpReport& report) {
  const std::uint32_t id = report.attached->our_program;
  std::string directory = xdp::default_pin_directory(report.interface);
  for (const SharedRecord& record : shared_records()) {
    if (record.program == id) directory = record.directory;
  }
  if (auto gone = detach_shared(report.interface, id, directory); !gone) return gone;
  fmt::print("{}: unloaded {} (id {}); what it was shared with stays\n", report.name,
             xdp::kProgramName, id);
  return {};
}

Result<void> unload_alone(const XdpReport& report) {
  const std::uint32_t id = report.attached->id;
  if (report.link == 0) {
    return fail(Error::Code::unavailable,
                fmt::format("{}: program {} is attached without a link, not by tarpon: ip link set "
                            "dev {} xdp off",
                            report.name, id, report.name));
  }
  for (const std::string& pin : report.pins) {
    if (::unlink(pin.c_str()) != 0) return fail_system(errno, "removing " + pin);
    xdp::remove_pin_directory(directory_of(pin));
  }
  const std::string who = kept_by({.interface = report.interface,
                                   .name = report.name,
                                   .attached = report.attached,
                                   .link = report.link,
                                   .pins = {},
                                   .holders = report.holders,
                                   .ports = {},
                                   .counters = {},
                                   .unreadable = {},
                                   .sockets = {}});
  if (report.pins.empty()) {
    return fail(Error::Code::unavailable,
                fmt::format("{}: nothing to unload: program {} was not loaded to stay; it goes "
                            "with its job ({})",
                            report.name, id, who));
  }
  if (vanishes(report.interface, id)) {
    fmt::print("{}: unloaded {} (id {})\n", report.name, xdp::kProgramName, id);
  } else {
    fmt::print("{}: unpinned {} (id {}); a running job uses it ({}): it goes with the job\n",
               report.name, xdp::kProgramName, id, who);
  }
  return {};
}

// -- clean

/// Pins of ours whose interface is gone, in any network namespace.
int clean_pins() {
  int removed = 0;
  for (const xdp::Pin& pin : xdp::find_pins()) {
    const bool ours =
        pin.ours && pin.link != 0 && std::filesystem::path(pin.path).filename() == xdp::kLinkPin;
    if (!ours || pin.interface != 0) continue;
    if (::unlink(pin.path.c_str()) != 0) continue;
    xdp::remove_pin_directory(directory_of(pin.path));
    fmt::print("removed {}: its interface is gone\n", pin.path);
    ++removed;
  }
  return removed;
}

/// Directories of a load that was killed half-way.
int clean_directories() {
  std::set<std::string> used;
  for (const SharedRecord& record : shared_records()) used.insert(record.directory);
  std::vector<std::string> unused;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(xdp::pin_root(), error)) {
    const std::string directory = entry.path().string();
    if (xdp::is_of_this_namespace(directory) && !used.contains(directory) &&
        !xdp::holds_link_pin(directory)) {
      unused.push_back(directory);
    }
  }
  for (const std::string& directory : unused) {
    xdp::remove_pin_directory(directory);
    fmt::print("removed {}: it holds no link\n", directory);
  }
  return static_cast<int>(unused.size());
}

int clean_shared() {
  int removed = 0;
  for (const SharedRecord& record : shared_records()) {
    const auto attached = xdp::attached_to(record.interface);
    const bool there =
        attached && *attached && (*attached)->our_program == record.program && record.program != 0;
    if (there && (record.kept || record.owner_alive)) continue;
    if (!there && record.owner_alive) continue;  // about to attach
    if (there) {
      const auto gone = detach_shared(record.interface, record.program, record.directory);
      if (!gone) {
        fmt::print(stderr, "tarpon: {}\n", gone.error().message);
        continue;
      }
    } else {
      xdp::remove_pin_directory(record.directory);
    }
    fmt::print("removed {}: {}\n", record.directory,
               there ? "its process ended before it was confirmed; the program is detached"
                     : "its program is gone");
    ++removed;
  }
  return removed;
}

/// Ports of our programs in this namespace whose process is gone.
Result<int> clean_ports() {
  int removed = 0;
  const auto all = all_interfaces();
  if (!all) return fail(all.error());
  for (const unsigned interface : *all) {
    const auto attached = xdp::attached_to(interface);
    if (!attached) return fail(attached.error());
    if (!*attached || !(*attached)->ours) continue;
    auto program = xdp::Program::find(interface);
    if (!program) {
      fmt::print(stderr, "tarpon: {}\n", program.error().message);
      continue;
    }
    for (const auto& [key, entry] : program->ports()) {
      if (has_udp_socket(key)) continue;
      if (auto closed = program->close_port(key); !closed) return fail(closed.error());
      fmt::print("removed port {} of {}: its socket is gone\n", text_of(key),
                 xdp::interface_text(interface));
      ++removed;
    }
  }
  return removed;
}

}  // namespace

Result<void> unload_program(const XdpOptions& options) {
  const auto interface = find_interface(options.interface);
  if (!interface) return fail(interface.error());
  const auto report = report_of(*interface, xdp::find_pins());
  if (!report) return fail(report.error());
  if (!report->attached) {
    return fail(Error::Code::unavailable,
                fmt::format("{}: no XDP program loaded", options.interface));
  }
  const xdp::Attached& attached = *report->attached;
  if (!attached.ours) {
    return fail(Error::Code::unavailable,
                fmt::format("{}: the XDP program {} (id {}) is somebody else's and stays",
                            options.interface, attached.name, attached.id));
  }
  return attached.dispatcher ? unload_shared(*report) : unload_alone(*report);
}

Result<void> clean_up() {
  const auto ports = clean_ports();
  if (!ports) return fail(ports.error());
  const int removed = *ports + clean_pins() + clean_shared() + clean_directories();
  if (removed == 0) fmt::print("nothing to remove\n");
  return {};
}

}  // namespace tarpon
