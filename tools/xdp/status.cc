// `tarpon xdp status`
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <unistd.h>

#include <cerrno>
#include <csignal>

#include "tools/cli/files/report_output.h"
#include "tools/xdp/xdp_command.h"
#include "tools/xdp/xdp_report.h"

namespace tarpon {
namespace {

constexpr const char* kClearScreen = "\033[H\033[2J";
constexpr timespec kWatchPeriod{.tv_sec = 1, .tv_nsec = 0};

Result<std::vector<XdpReport>> reports_of(const std::vector<unsigned>& interfaces) {
  const std::vector<xdp::Pin> pins = xdp::find_pins();
  std::vector<XdpReport> reports;
  for (const unsigned each : interfaces) {
    auto report = report_of(each, pins);
    if (!report) return fail(report.error());
    reports.push_back(std::move(*report));
  }
  return reports;
}

void print_text(const std::vector<XdpReport>& reports) {
  fmt::print("{:<15} {:<16} {:<7} {:>6}  {}\n", "Interface", "Program name", "Mode", "ID",
             "Kept by");
  for (const XdpReport& report : reports) fmt::print("{}", to_text(report));
}

void print_json(const std::vector<XdpReport>& reports, bool one_line) {
  nlohmann::json interfaces = nlohmann::json::array();
  for (const XdpReport& report : reports) interfaces.push_back(to_json(report));
  const nlohmann::json json = json_report(report_config(), std::move(interfaces));
  fmt::print("{}", json_text(json, one_line));
}

/// Shows the current state of the named interface, or of every one.
Result<void> show_once(const XdpOptions& options) {
  std::vector<unsigned> interfaces;
  if (options.interface.empty()) {
    auto all = all_interfaces();
    if (!all) return fail(all.error());
    interfaces = std::move(*all);
  } else {
    const auto one = find_interface(options.interface);
    if (!one) return fail(one.error());
    interfaces.push_back(*one);
  }
  const auto reports = reports_of(interfaces);
  if (!reports) return fail(reports.error());
  const bool screen = options.watch && !options.json && ::isatty(STDOUT_FILENO) == 1;
  if (screen) fmt::print("{}", kClearScreen);
  if (options.json) {
    print_json(*reports, options.watch);
  } else {
    print_text(*reports);
  }
  if (options.watch && !options.json && !screen) fmt::print("\n");
  std::fflush(stdout);
  return {};
}

}  // namespace

Result<void> show_status(const XdpOptions& options) {
  if (!options.watch) return show_once(options);
  sigset_t signals;
  ::sigemptyset(&signals);
  ::sigaddset(&signals, SIGINT);
  ::sigaddset(&signals, SIGTERM);
  ::sigprocmask(SIG_BLOCK, &signals, nullptr);
  do {
    if (auto shown = show_once(options); !shown) return shown;
    if (std::ferror(stdout) != 0) return fail_system(EPIPE, "standard output");
  } while (::sigtimedwait(&signals, nullptr, &kWatchPeriod) < 0);
  return {};
}

}  // namespace tarpon
