#include "tools/xdp_command.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <net/if.h>
#include <CLI/CLI.hpp>

#include <cerrno>
#include <memory>

#include "tools/job_options.h"
#include "tools/voice.h"

namespace tarpon {
namespace {

constexpr const char* kLoadHelp =
    R"(Attaches the program and pins its link and maps, so that it stays until `tarpon xdp unload`; jobs then
use it. With --confirm it is detached again unless the line "yes" comes on standard input in time; also
at the end of input, and after a signal.)";

void add_load(CLI::App& app, XdpOptions& options) {
  CLI::App* load = app.add_subcommand("load", "attach our XDP program to an interface, to stay");
  load->footer(std::string(kLoadHelp) + "\n\n" + app.get_footer());
  load->add_option("interface", options.interface, "the interface")->required();
  load->add_option_function<std::string>(
          "--mode",
          [&options](const std::string& text) {
            if (text != "native" && text != "skb") {
              throw CLI::ValidationError("--mode", '"' + text + "\" is not one of native, skb");
            }
            options.mode = text == "skb" ? xdp::AttachMode::generic : xdp::AttachMode::native;
          },
          "native: in the driver; skb: behind it, slow, for drivers without XDP (default: native)")
      ->type_name("");
  CLI::Option* shared = load->add_flag("--shared", options.shared,
                                       "beside programs of others, by libxdp's dispatcher");
  load->add_option("--pin", options.pin,
                   "directory of a BPF file system for link and maps (default: below "
                   "/sys/fs/bpf/tarpon)")
      ->excludes(shared);
  load->add_option_function<std::string>(
          "--confirm",
          [&options](const std::string& text) {
            auto limit = parse_limit(text);
            if (!limit) throw CLI::ValidationError("--confirm", limit.error().message);
            options.confirm = *limit;
          },
          "detach again unless confirmed within this time, e.g. 30s")
      ->type_name("");
}

}  // namespace

void add_xdp_options(CLI::App& app, XdpOptions& options) {
  app.require_subcommand(1);
  add_load(app, options);
  CLI::App* status =
      app.add_subcommand("status", "what is attached, our ports, sockets and counters");
  status->add_option("interface", options.interface, "the interface (default: all)");
  status->add_flag("--json", options.json, "one JSON object instead of text");
  status->add_flag("--watch", options.watch, "again every second, until Ctrl-C");
  CLI::App* unload =
      app.add_subcommand("unload", "remove our program from an interface, nobody else's");
  unload->add_option("interface", options.interface, "the interface")->required();
  app.add_subcommand("clean", "remove what dead owners left: pins, ports, shared programs");
}

int run_xdp(const CLI::App& app, const XdpOptions& options) {
  Result<void> done;
  if (app.got_subcommand("load")) {
    done = load_program(options);
  } else if (app.got_subcommand("status")) {
    done = show_status(options);
  } else if (app.got_subcommand("unload")) {
    done = unload_program(options);
  } else {
    done = clean_up();
  }
  std::fflush(stdout);
  if (done) return 0;
  Voice().error(done.error().message);
  return 1;
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
