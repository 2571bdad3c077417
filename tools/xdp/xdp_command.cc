#include "tools/xdp/xdp_command.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <net/if.h>

#include <cerrno>
#include <memory>

#include "tools/cli/exit_code.h"
#include "tools/system/capabilities.h"
#include "xdp/helper_messages.h"
#include "xdp/pins.h"

namespace tarpon {
namespace {

constexpr const char* kGroup = "Options";

/// What commands keep, before they do anything: to mount the BPF file system, and to attach, pin,
/// find and detach programs, by libxdp too; to see the parent's mount namespace, and the processes
/// of other users that hold a program.
const std::vector<int> kNeeded{CAP_SYS_ADMIN, CAP_NET_ADMIN, CAP_BPF, CAP_SYS_PTRACE,
                               CAP_DAC_READ_SEARCH};

/// The row INTERFACE of the three commands that have it.
cli::Option interface_row(XdpOptions& options, const char* help, bool required) {
  return {.names = "INTERFACE",
          .value = cli::interface_name(options.interface),
          .help = help,
          .required = required};
}

int finish(const Result<void>& done) {
  std::fflush(stdout);
  if (done) return 0;
  Voice().error(done.error().message);
  return kFailed;
}

}  // namespace

void add_xdp_load_options(cli::OptionTable& table, XdpOptions& options) {
  using xdp::AttachMode;
  const cli::Choices<AttachMode> modes{{"native", AttachMode::native},
                                       {"skb", AttachMode::generic}};
  table.add(
      kGroup,
      {interface_row(options, "the interface", true),
       {"--mode", otherwise(cli::choice(options.mode, modes), "native"),
        "native: in the driver; skb: behind it, slow, for drivers without XDP"},
       {"--shared", cli::flag(options.shared), "beside programs of others, by libxdp's dispatcher"},
       {.names = "--pin",
        .value = otherwise(cli::directory(options.pin), "below " + xdp::pin_root()),
        .help = "directory of a BPF file system for link and maps",
        .excludes = {"--shared"}},
       {"--confirm", cli::duration(options.confirm),
        "detach again, under running jobs too, unless confirmed within this time, as 30s"}});
  table.note(
      "Attaches the program and pins its link and maps, so that it stays until tarpon xdp unload; "
      "jobs then use it. With --confirm it is detached again unless the line \"yes\" comes on "
      "standard input in time; also at the end of input, and after a signal.");
}

void add_xdp_serve_options(cli::OptionTable& table, XdpOptions& options) {
  table.add(kGroup,
            {interface_row(options, "the interface", true),
             {"--socket", otherwise(cli::file(options.socket), xdp::helper_path("INTERFACE")),
              "where ranks ask; they look at the default place"},
             {"--group", cli::text(options.group, "NAME"), "whose members may ask, beside root"}});
  table.note(
      "Loads the program as tarpon xdp load does, unless it is loaded, and gives AF_XDP sockets to "
      "ranks that may not make them: each of its own UDP port, in this network namespace. Who has "
      "such a socket can send any frame on the interface. Runs until Ctrl-C or SIGTERM; the "
      "program and running jobs stay.");
}

void add_xdp_status_options(cli::OptionTable& table, XdpOptions& options) {
  table.add(kGroup, {interface_row(options, "the interface; without one: all", false),
                     {"--json", cli::flag(options.json), "one JSON object instead of text"},
                     {"--watch", cli::flag(options.watch), "again every second, until Ctrl-C"}});
}

void add_xdp_unload_options(cli::OptionTable& table, XdpOptions& options) {
  table.add(kGroup, {interface_row(options, "the interface", true)});
}

void add_xdp_clean_options(cli::OptionTable& table, XdpOptions&) {
  table.note("Detaches what dead owners left, never what belongs to a running process.");
}

int run_xdp_load(const XdpOptions& options) {
  const auto kept = keep_capabilities(kNeeded);
  return finish(kept ? load_program(options) : kept);
}

int run_xdp_serve(const XdpOptions& options) {
  return finish(serve_interface(options));
}

int run_xdp_status(const XdpOptions& options) {
  return finish(show_status(options));
}

int run_xdp_unload(const XdpOptions& options) {
  const auto kept = keep_capabilities(kNeeded);
  return finish(kept ? unload_program(options) : kept);
}

int run_xdp_clean(const XdpOptions&) {
  const auto kept = keep_capabilities(kNeeded);
  return finish(kept ? clean_up() : kept);
}

Result<std::vector<unsigned>> all_interfaces() {
  const std::unique_ptr<struct if_nameindex, decltype(&::if_freenameindex)> list(
      ::if_nameindex(), &::if_freenameindex);
  if (list == nullptr) return fail_system(errno, "cannot list the network interfaces");
  std::vector<unsigned> all;
  for (const struct if_nameindex* each = list.get(); each->if_index != 0; ++each) {
    all.push_back(each->if_index);
  }
  return all;
}

Result<unsigned> find_interface(const std::string& name) {
  if (const unsigned index = ::if_nametoindex(name.c_str()); index != 0) return index;
  auto all = all_interfaces();
  if (!all) return fail(all.error());
  std::vector<std::string> names;
  names.reserve(all->size());
  for (const unsigned each : *all) names.push_back(xdp::interface_text(each));
  return fail(Error::Code::invalid_argument,
              fmt::format("no interface \"{}\": this network namespace has {}", name,
                          fmt::join(names, ", ")));
}

}  // namespace tarpon
