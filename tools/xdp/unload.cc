// `tarpon xdp unload` and `tarpon xdp clean`
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <set>
#include <thread>

#include "tools/system/capabilities.h"
#include "tools/system/shared_program.h"
#include "tools/xdp/xdp_command.h"
#include "tools/xdp/xdp_report.h"
#include "transport/clock.h"
#include "xdp/pins.h"
#include "xdp/program.h"

namespace tarpon {
namespace {

constexpr Duration kVanishTime = 1s;  // the kernel detaches some time after the last holder's end

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
    fmt::print(
        "{}: unpinned {} (id {}); a running job or tarpon xdp serve uses it ({}): it goes with "
        "that\n",
        report.name, xdp::kProgramName, id, who);
  }
  return {};
}

// -- clean

/// The results of a clean-up. It goes on after a failure.
struct Cleaning {
  int removed = 0;
  std::vector<std::string> failures{};
};

/// Removes pins of ours whose interface is gone, in any network namespace.
void clean_pins(Cleaning& cleaning) {
  for (const xdp::Pin& pin : xdp::find_pins()) {
    const bool ours =
        pin.ours && pin.link != 0 && std::filesystem::path(pin.path).filename() == xdp::kLinkPin;
    if (!ours || pin.interface != 0) continue;
    if (::unlink(pin.path.c_str()) != 0) {
      cleaning.failures.push_back(Error::system(errno, "removing " + pin.path).message);
      continue;
    }
    xdp::remove_pin_directory(directory_of(pin.path));
    fmt::print("removed {}: its interface is gone\n", pin.path);
    ++cleaning.removed;
  }
}

/// Removes directories of a load that was killed half-way.
void clean_directories(Cleaning& cleaning) {
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
    if (std::filesystem::exists(directory, error) || error) {
      cleaning.failures.push_back(directory + " holds files that are not ours: remove it by hand");
      continue;
    }
    fmt::print("removed {}: it holds no link\n", directory);
    ++cleaning.removed;
  }
}

/// The program that a shared record is about and that is still attached; 0: there is none.
Result<std::uint32_t> recorded_program(const SharedRecord& record) {
  const auto attached = xdp::attached_to(record.interface);
  if (!attached && attached.error().system_errno == ENODEV) return 0u;  // the interface is gone
  if (!attached) return fail(attached.error());
  if (!*attached || !(*attached)->ours) return 0u;
  // The record's process may have ended after attaching and before recording the program. Only
  // `load --shared` attaches ours below a dispatcher, so that program belongs to the record.
  const bool half_way = record.program == 0 && (*attached)->dispatcher;
  return half_way || (*attached)->our_program == record.program ? (*attached)->our_program : 0u;
}

void clean_shared(Cleaning& cleaning) {
  for (const SharedRecord& record : shared_records()) {
    if (record.owner_alive) continue;  // it confirms or detaches by itself
    const auto program = recorded_program(record);
    if (!program) {
      cleaning.failures.push_back(program.error().message);
      continue;
    }
    if (*program != 0 && record.kept) continue;
    if (*program != 0) {
      const auto gone = detach_shared(record.interface, *program, record.directory);
      if (!gone) {
        cleaning.failures.push_back(gone.error().message);
        continue;
      }
    } else {
      xdp::remove_pin_directory(record.directory);
    }
    fmt::print("removed {}: {}\n", record.directory,
               *program != 0 ? "its process ended before it was confirmed; the program is detached"
                             : "its program is gone");
    ++cleaning.removed;
  }
}

/// Removes ports of our program on `interface` whose process is gone.
Result<void> clean_ports(unsigned interface, Cleaning& cleaning) {
  const auto attached = xdp::attached_to(interface);
  if (!attached) return fail(attached.error());
  if (!*attached || !(*attached)->ours) return {};
  auto program = xdp::Program::find(interface);
  if (!program) return fail(program.error());
  for (const auto& [key, entry] : program->maps().ports()) {
    if (has_udp_socket(key)) continue;
    if (auto closed = program->maps().close_port(key); !closed) return closed;
    fmt::print("removed port {} of {}: its socket is gone\n", text_of(key),
               xdp::interface_text(interface));
    ++cleaning.removed;
  }
  return {};
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
  if (auto may = check_xdp_privileges("cleaning up", "tarpon xdp clean"); !may) return may;
  Cleaning cleaning;
  const auto all = all_interfaces();
  if (!all) return fail(all.error());
  for (const unsigned interface : *all) {
    const auto done = clean_ports(interface, cleaning);
    if (!done) cleaning.failures.push_back(done.error().message);
  }
  clean_pins(cleaning);
  clean_shared(cleaning);
  clean_directories(cleaning);
  if (!cleaning.failures.empty()) {
    return fail(Error::Code::io, fmt::format("{}", fmt::join(cleaning.failures, "; ")));
  }
  if (cleaning.removed == 0) fmt::print("nothing to remove\n");
  return {};
}

}  // namespace tarpon
