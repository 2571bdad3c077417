// `tarpon xdp serve`
#include <fmt/format.h>
#include <grp.h>
#include <linux/capability.h>
#include <sys/signalfd.h>

#include <cerrno>
#include <csignal>
#include <optional>

#include "tools/system/capabilities.h"
#include "tools/xdp/xdp_command.h"
#include "xdp/helper.h"
#include "xdp/program.h"

namespace tarpon {
namespace {

Result<std::optional<gid_t>> group_of(const std::string& name) {
  if (name.empty()) return std::nullopt;
  const group* const found = ::getgrnam(name.c_str());
  if (found != nullptr) return found->gr_gid;
  return fail(Error::Code::invalid_argument,
              fmt::format("--group {0}: there is no such group: groupadd --system {0}", name));
}

/// Becomes readable when the process is to end.
Result<FileDescriptor> ends() {
  sigset_t signals;
  ::sigemptyset(&signals);
  ::sigaddset(&signals, SIGINT);
  ::sigaddset(&signals, SIGTERM);
  ::sigprocmask(SIG_BLOCK, &signals, nullptr);
  FileDescriptor descriptor(::signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!descriptor) return fail_system(errno, "signalfd");
  return descriptor;
}

}  // namespace

Result<void> serve_interface(const XdpOptions& options) {
  const auto group = group_of(options.group);
  if (!group) return fail(group.error());
  auto may = check_xdp_privileges("serving an interface", "tarpon xdp serve " + options.interface);
  if (!may) return may;
  const std::string path =
      options.socket.empty() ? xdp::helper_path(options.interface) : options.socket;
  const auto interface = find_interface(options.interface);
  if (!interface) return fail(interface.error());
  const auto stop = ends();  // from here on no signal leaves the socket behind
  if (!stop) return fail(stop.error());
  auto helper = xdp::Helper::listen(path, *group);
  if (!helper) return fail(helper.error());
  if (auto loaded = load_program(options); !loaded) return loaded;
  const auto attached = xdp::attached_to(*interface);
  if (!attached) return fail(attached.error());
  auto program = xdp::Program::find(*interface);
  if (!program) return fail(program.error());
  const bool copies = *attached && (*attached)->mode == xdp::AttachMode::generic;
  // For AF_XDP sockets, their send buffers and busy polling, and for maps of operation windows.
  if (auto kept = keep_capabilities({CAP_NET_RAW, CAP_NET_ADMIN, CAP_BPF}); !kept) return kept;
  fmt::print("{}: serves ranks at {}\n", options.interface, path);
  std::fflush(stdout);
  return helper->serve(*interface, std::move(*program), copies, stop->get());
}

}  // namespace tarpon
