#include "tools/doctor/doctor_command.h"

#include <fmt/format.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "collectives/environment/environment.h"
#include "collectives/environment/interfaces.h"
#include "tools/cli/colour.h"
#include "tools/cli/exit_code.h"
#include "tools/cli/files/report_output.h"
#include "tools/cli/wrapped_text.h"
#include "tools/doctor/doctor.h"
#include "tools/xdp/xdp_command.h"

namespace tarpon {
namespace {

/// The interface named `named`, else the one that a job would take, else all but loopback.
Result<std::vector<std::string>> interfaces_to_look_at(const std::string& named) {
  if (!named.empty()) {
    if (auto there = find_interface(named); !there) return fail(there.error());
    return std::vector<std::string>{named};
  }
  const auto addressed = list_interfaces();
  if (!addressed) return fail(addressed.error());
  if (const auto choice = choose_interface(*addressed, {}, process_environment())) {
    return std::vector<std::string>{choice->interface.name};
  }
  const auto all = all_interfaces();
  if (!all) return fail(all.error());
  std::vector<std::string> names;
  for (const unsigned each : *all) {
    if (std::string text = xdp::interface_text(each); text != "lo") {
      names.push_back(std::move(text));
    }
  }
  if (names.empty()) {
    return fail(Error::Code::unavailable,
                "no interface but loopback: name it if it is meant, tarpon doctor lo");
  }
  return names;
}

/// Prints the rows. If a row is too long, its command gets a line of its own, for copying.
void print_rows(const std::vector<DoctorRow>& rows) {
  const std::string indent(35, ' ');  // to below "why"
  const Colour colour(STDOUT_FILENO, process_environment());
  for (const DoctorRow& row : rows) {
    std::string line = fmt::format("{:<29} {:<4} {}", row.title, text_of(row.answer), row.why);
    const std::string command = row.command.empty() ? "" : "-> " + row.command;
    const bool fits = command.empty() || line.size() + 1 + command.size() <= kTextWidth;
    if (fits && !command.empty()) line += (row.why.empty() ? "" : " ") + command;
    line.erase(line.find_last_not_of(' ') + 1);
    const std::string lines = wrapped(line, indent);
    fmt::print("{}\n", row.answer == Answer::no ? colour.failure(lines) : lines);
    if (!fits) fmt::print("{}{}\n", indent, command);
  }
}

void print_text(const DoctorFacts& facts, const Diagnosis& diagnosis) {
  fmt::print("# {}: driver {}, MTU {}\n", facts.name,
             facts.driver.empty() ? "unknown" : facts.driver, facts.mtu);
  fmt::print("{:<29} {:<4} {}\n", "# rung", "", "why -> the command that changes it");
  print_rows(diagnosis.rungs);
  fmt::print("# requirement\n");
  print_rows(diagnosis.requirements);
  fmt::print("# auto takes {}: {}\n", name(diagnosis.choice.rung), diagnosis.choice.reason);
  if (!diagnosis.shortfall.empty()) fmt::print("# exit code 1: {}\n", diagnosis.shortfall);
}

nlohmann::json to_json(const std::vector<DoctorRow>& rows) {
  nlohmann::json json = nlohmann::json::array();
  for (const DoctorRow& row : rows) {
    json.push_back({{"id", row.id},
                    {"title", row.title},
                    {"verdict", row.answer == Answer::unknown ? "unknown" : text_of(row.answer)},
                    {"why", row.why},
                    {"command", row.command}});
  }
  return json;
}

nlohmann::json to_json(const DoctorFacts& facts, const Diagnosis& diagnosis) {
  return {{"interface", facts.name},
          {"driver", facts.driver},
          {"mtu", facts.mtu},
          {"rungs", to_json(diagnosis.rungs)},
          {"requirements", to_json(diagnosis.requirements)},
          {"auto", name(diagnosis.choice.rung)},
          {"auto_reason", diagnosis.choice.reason},
          {"best", diagnosis.shortfall.empty()}};
}

Result<bool> examine(const DoctorOptions& options) {
  const auto names = interfaces_to_look_at(options.interface);
  if (!names) return fail(names.error());
  bool best = true;
  nlohmann::json interfaces = nlohmann::json::array();
  for (const std::string& each : *names) {
    const auto facts = read_doctor_facts(each);
    if (!facts) return fail(facts.error());
    const Diagnosis diagnosis = diagnose(*facts);
    best = best && diagnosis.shortfall.empty();
    if (options.json) {
      interfaces.push_back(to_json(*facts, diagnosis));
    } else {
      print_text(*facts, diagnosis);
    }
  }
  if (options.json) {
    fmt::print("{}", json_text(json_report(report_config(), std::move(interfaces))));
  }
  return best;
}

}  // namespace

void add_doctor_options(cli::OptionTable& table, DoctorOptions& options) {
  table.add("Options",
            {{"INTERFACE", cli::interface_name(options.interface),
              "the interface; without one: the one that a job of several hosts would "
              "take, else all but loopback"},
             {"--json", cli::flag(options.json), "one JSON object instead of the table"}});
  table.note("Changes nothing.");
  table.exit_codes(
      "Exit code: 0 when auto takes the best that the driver has (AF_XDP where it has zero-copy, "
      "else io_uring); 1 when something keeps it lower; 2 wrong usage.");
}

int run_doctor(const DoctorOptions& options) {
  const auto best = examine(options);
  std::fflush(stdout);
  if (best) return *best ? 0 : 1;
  return report(best.error());
}

}  // namespace tarpon
