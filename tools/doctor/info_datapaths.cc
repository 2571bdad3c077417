#include "tools/doctor/info_datapaths.h"

#include <fmt/format.h>

#include "collectives/environment/interfaces.h"
#include "tools/doctor/doctor.h"
#include "xdp/base/printable.h"

namespace tarpon {
namespace {

using nlohmann::json;

InfoRow text_row(const char* id, const char* title, const std::string& text) {
  return {id, title, text, text};
}

InfoRow datapath_row(const DoctorRow& rung) {
  std::string text{text_of(rung.answer)};
  if (!rung.why.empty()) text += ": " + rung.why;
  if (!rung.command.empty()) text += " -> " + rung.command;
  const bool known = rung.answer != Answer::unknown;
  return {rung.id, rung.title, text,
          json{{"usable", known ? json(rung.answer == Answer::yes) : json(nullptr)},
               {"why", rung.why},
               {"command", rung.command}}};
}

/// The interface that a job of several hosts would take, else loopback.
InterfaceChoice interface_of_job(const Environment& environment) {
  const auto chosen = choose_interface(InterfaceRequest{}, environment);
  if (chosen) return *chosen;
  InterfaceChoice loopback;
  loopback.interface.name = "lo";
  loopback.reason =
      "of a job of several hosts: " + printable(chosen.error().message, kLongestMessage);
  return loopback;
}

}  // namespace

InfoSection read_datapaths(const Environment& environment) {
  const InterfaceChoice choice = interface_of_job(environment);
  const std::string& name = choice.interface.name;
  InfoSection section{"datapaths", fmt::format("Data paths on {} ({})", name, choice.reason), {}};
  section.rows.push_back({"interface", "", "", name});
  const auto facts = read_doctor_facts(name);
  if (!facts) {
    section.rows.push_back(text_row("error", "unknown", facts.error().message));
    return section;
  }
  const Diagnosis diagnosis = diagnose(*facts);
  for (const DoctorRow& rung : diagnosis.rungs) section.rows.push_back(datapath_row(rung));
  section.rows.push_back(text_row("auto", "auto", diagnosis.choice.reason));
  section.rows.push_back(text_row("more", "more", fmt::format("tarpon doctor {}", name)));
  return section;
}

}  // namespace tarpon
