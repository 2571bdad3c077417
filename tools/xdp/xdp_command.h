// `tarpon xdp`: loads our XDP program, serves it to ranks without privileges, shows what is
// attached, removes ours, cleans up. Words and exit codes are those of xdp-loader where it has
// them.
#pragma once

#include <optional>
#include <string>

#include "tools/cli/option_table.h"
#include "transport/time.h"
#include "xdp/attached.h"

namespace tarpon {

struct XdpOptions {
  std::string interface;  // status: may be empty, all of them
  std::optional<xdp::AttachMode> mode;
  bool shared = false;
  std::string pin;                  // directory; empty: the default one
  std::optional<Duration> confirm;  // detach again unless confirmed within it
  bool json = false;
  bool watch = false;
  std::string socket;  // serve: path; empty: xdp::helper_path()
  std::string group;   // serve: that may connect; empty: root's
};

void add_xdp_load_options(cli::OptionTable& table, XdpOptions& options);
void add_xdp_serve_options(cli::OptionTable& table, XdpOptions& options);
void add_xdp_status_options(cli::OptionTable& table, XdpOptions& options);
void add_xdp_unload_options(cli::OptionTable& table, XdpOptions& options);
void add_xdp_clean_options(cli::OptionTable& table, XdpOptions& options);

/// Each returns 0, or 1 after one line that says what is wrong.
int run_xdp_load(const XdpOptions& options);
int run_xdp_serve(const XdpOptions& options);
int run_xdp_status(const XdpOptions& options);
int run_xdp_unload(const XdpOptions& options);
int run_xdp_clean(const XdpOptions& options);

/// The parts, each in a file of its own.
Result<void> load_program(const XdpOptions& options);
Result<void> serve_interface(const XdpOptions& options);
Result<void> show_status(const XdpOptions& options);
Result<void> unload_program(const XdpOptions& options);
Result<void> clean_up();

/// Index of an interface of this network namespace, up or down. The error names what exists.
Result<unsigned> find_interface(const std::string& name);

/// All of them. Errors: io.
Result<std::vector<unsigned>> all_interfaces();

}  // namespace tarpon
