// `tarpon xdp load`
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <functional>

#include "collectives/environment/interfaces.h"
#include "tools/cli/confirmation.h"
#include "tools/cli/units.h"
#include "tools/system/capabilities.h"
#include "tools/system/drivers.h"
#include "tools/system/shared_program.h"
#include "tools/xdp/xdp_command.h"
#include "xdp/pins.h"
#include "xdp/program.h"

namespace tarpon {
namespace {

using xdp::Attached;
using xdp::AttachMode;

/// Where and how to load the program.
struct Place {
  unsigned interface = 0;
  std::string name;
  std::string directory;
  AttachMode mode = AttachMode::native;
};

/// The path as the kernel's mounts name it, without "..", symbolic links or a last slash, because
/// pins are compared with it.
Result<std::string> canonical_directory(const std::string& text) {
  std::error_code error;
  const auto absolute = std::filesystem::absolute(text, error);
  auto path = error ? absolute : std::filesystem::weakly_canonical(absolute, error);
  if (error) return fail_system(error.value(), "--pin " + text);
  if (!path.has_filename()) path = path.parent_path();
  return path.string();
}

std::vector<std::string> pins_of(std::uint32_t link) {
  std::vector<std::string> paths;
  for (const xdp::Pin& pin : xdp::find_pins()) {
    if (link != 0 && pin.link == link) paths.push_back(pin.path);
  }
  return paths;
}

/// Refuses a foreign program, by its name, and one of ours in another mode than asked for.
Result<void> check_attached(const Attached& attached, const Place& place,
                            const XdpOptions& options) {
  if (!attached.ours) {
    if (options.shared) return {};  // attach_shared() checks whether sharing works
    return fail(
        Error::Code::unavailable,
        fmt::format("{} has the XDP program {} (id {}) of somebody else: unload it with the "
                    "program that attached it, or try --shared",
                    place.name, attached.name, attached.id));
  }
  if (options.shared && !attached.dispatcher) {
    return fail(Error::Code::unavailable,
                fmt::format("{} has our program (id {}) alone, not shared: tarpon xdp unload {} "
                            "first",
                            place.name, attached.id, place.name));
  }
  if (options.mode && attached.mode != *options.mode) {
    return fail(
        Error::Code::unavailable,
        fmt::format("{} has our program (id {}) in {} mode: tarpon xdp unload {} first", place.name,
                    attached.our_program, xdp::name(attached.mode), place.name));
  }
  return {};
}

void print_effect(const Place& place) {
  const std::string driver = interface_driver(place.name);
  const DriverNotes notes = driver_notes(driver);
  if (place.mode == AttachMode::generic) {
    fmt::print("# {}: skb mode resets nothing\n", place.name);
  } else {
    fmt::print("# {}: attaching to the driver {} {}\n", place.name,
               driver.empty() ? "(unknown)" : driver, notes.text);
  }
  std::fflush(stdout);
}

/// Prepares the directory for pins. Removes pins of a dead program, but not those of a live one.
Result<void> prepare_directory(const Place& place) {
  if (auto mounted = xdp::mount_bpf_file_system(); !mounted) return mounted;
  if (auto good = xdp::check_pin_directory(place.directory); !good) return good;
  for (const xdp::Pin& pin : xdp::find_pins()) {
    if (std::filesystem::path(pin.path).parent_path() != place.directory) continue;
    if (pin.interface != 0 || !pin.ours) {
      return fail(Error::Code::invalid_argument,
                  fmt::format("{} is taken by {}: choose another --pin", place.directory,
                              pin.interface != 0 ? "the program of another interface"
                                                 : "pins of somebody else"));
    }
  }
  xdp::remove_pin_directory(place.directory);
  return {};
}

/// Waits for the confirmation if one is asked for, with few privileges. Without it calls `undo`,
/// which returns what became of the program.
Result<void> confirmed(const Place& place, const XdpOptions& options,
                       const std::function<std::string()>& undo) {
  if (!options.confirm) return {};
  // To detach it or pin it; for libxdp.
  auto kept = keep_capabilities({CAP_SYS_ADMIN, CAP_NET_ADMIN, CAP_BPF});
  if (!kept) return kept;
  fmt::print("{}: attached; the line \"yes\" within {} keeps it\n", place.name,
             format_duration(*options.confirm));
  std::fflush(stdout);
  const Confirmation answer = wait_for_confirmation(*options.confirm);
  if (answer == Confirmation::yes) return {};
  return fail(Error::Code::timeout,
              fmt::format("{}: not confirmed ({}): {}", place.name, reason(answer), undo()));
}

/// Detaches the program that this command attached, even if jobs use it by now: a user who cannot
/// confirm may have lost the connection to the machine because of it.
std::string take_back(xdp::Program& program, const Place& place) {
  if (!program.attached_here()) return "left to the job it belongs to";
  if (auto gone = program.detach(); !gone) return gone.error().message;
  const auto attached = xdp::attached_to(place.interface);
  if (!attached) return attached.error().message;
  const bool there = *attached && (*attached)->our_program == program.id();
  return there ? "still attached" : "detached again";
}

Result<void> load_alone(const Place& place, const XdpOptions& options, bool attached_already) {
  if (auto prepared = prepare_directory(place); !prepared) return prepared;
  if (!attached_already) print_effect(place);
  auto program = xdp::Program::use(place.interface, place.mode);
  if (!program) return fail(program.error());
  const auto undo = [&] { return take_back(*program, place); };
  if (auto kept = confirmed(place, options, undo); !kept) return kept;
  if (auto pinned = program->pin(place.directory); !pinned) return pinned;
  const auto attached = xdp::attached_to(place.interface);
  if (!attached) return fail(attached.error());
  if (!*attached || (*attached)->our_program != program->id()) {
    xdp::remove_pin_directory(place.directory);
    return fail(Error::Code::unavailable, place.name + ": another process detached it meanwhile");
  }
  fmt::print("{}: {} ({}, id {}), pinned at {}\n", place.name,
             program->attached_here() ? "loaded" : "already loaded by a job, stays now",
             xdp::name((*attached)->mode), program->id(), place.directory);
  return {};
}

Result<void> load_shared(const Place& place, const XdpOptions& options) {
  if (auto good = check_sharing(place.interface, place.mode); !good) return good;
  print_effect(place);
  const auto id = attach_shared(place.interface, place.mode, place.directory);
  if (!id) return fail(id.error());
  const auto undo = [&]() -> std::string {
    const auto gone = detach_shared(place.interface, *id, place.directory);
    return gone ? "detached again" : gone.error().message;
  };
  if (auto kept = confirmed(place, options, undo); !kept) return kept;
  if (auto kept = keep_shared(place.directory); !kept) return kept;
  fmt::print("{}: loaded ({}, id {}), shared by libxdp's dispatcher\n", place.name,
             xdp::name(place.mode), *id);
  return {};
}

}  // namespace

Result<void> load_program(const XdpOptions& options) {
  const auto interface = find_interface(options.interface);
  if (!interface) return fail(interface.error());
  const auto directory = options.pin.empty()
                             ? Result<std::string>(xdp::default_pin_directory(*interface))
                             : canonical_directory(options.pin);
  if (!directory) return fail(directory.error());
  Place place{.interface = *interface,
              .name = options.interface,
              .directory = *directory,
              .mode = options.mode.value_or(AttachMode::native)};
  auto may = check_xdp_privileges("loading an XDP program", "tarpon xdp load " + place.name);
  if (!may) return may;
  const auto attached = xdp::attached_to(*interface);
  if (!attached) return fail(attached.error());
  if (*attached) {
    const Attached& there = **attached;
    if (auto good = check_attached(there, place, options); !good) return good;
    const auto pins = pins_of(xdp::link_id(xdp::find_link(there.id, *interface)));
    if (there.ours && (there.dispatcher || !pins.empty())) {
      fmt::print("{}: already loaded ({}, id {}), {}\n", place.name, xdp::name(there.mode),
                 there.our_program,
                 there.dispatcher ? "shared by libxdp's dispatcher"
                                  : fmt::format("pinned at {}", fmt::join(pins, ", ")));
      return {};
    }
  }
  if (options.shared) return load_shared(place, options);
  return load_alone(place, options, attached->has_value());
}

}  // namespace tarpon
