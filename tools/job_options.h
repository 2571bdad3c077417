// The options that every command of a job shares: who takes part, over what, until when.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>

#include "collectives/communicator.h"
#include "tools/launcher.h"
#include "transport/ports/udp_options.h"
#include "xdp/result.h"

namespace tarpon {

enum class Network { loopback, veth };

struct JobOptions {
  std::uint32_t local_ranks = 0;  // 0: this process is one rank
  LaunchFlags place;
  std::optional<std::string> interface;
  Network network = Network::loopback;  // of local ranks
  std::uint32_t mtu = 1500;             // veth
  std::uint64_t rate = 0;               // veth: bit/s of every link; 0: not shaped
  double loss = 0;                      // veth: at the ingress of the bridge
  std::uint32_t background = 0;         // veth: bulk TCP flows between ranks 0 and 1
  std::uint64_t seed = 1;
  Datapath datapath = Datapath::automatic;
  std::uint32_t gso_segments = kMaxGsoSegments;
  tarpon_integrity integrity = TARPON_INTEGRITY_UDP;
  bool busy_poll = false;
  FaultOptions faults;
  Duration deadline = 10s;
  std::optional<Duration> rendezvous_timeout;
  bool deadline_given = false;
  std::uint64_t retain_bytes = 64ull << 20;
  std::string command_line;  // for the report

  /// Never longer than an explicit --deadline.
  Duration rendezvous_bound() const;
};

/// Adds an option whose text goes through `parse` (a Result-returning function).
template <typename T, typename Parse>
CLI::Option* add_parsed(CLI::App& app, const std::string& name, T& target, Parse parse,
                        const std::string& description) {
  return app.add_option_function<std::string>(
      name,
      [&target, parse, name](const std::string& text) {
        auto value = parse(text);
        if (!value) throw CLI::ValidationError(name, value.error().message);
        target = *value;
      },
      description);
}

/// Adds an option with a few named values, in lower or upper case.
template <typename T>
CLI::Option* add_choice(CLI::App& app, const std::string& name, T& target,
                        const std::map<std::string, T>& choices, const std::string& description) {
  const auto choose = [&target, choices, name](const std::string& text) {
    const auto found = choices.find(CLI::detail::to_lower(text));
    if (found == choices.end()) {
      std::string known;
      for (const auto& [word, value] : choices) known += (known.empty() ? "" : ", ") + word;
      throw CLI::ValidationError(name, '"' + text + "\" is not one of " + known);
    }
    target = found->second;
  };
  return app.add_option_function<std::string>(name, choose, description)->type_name("");
}

/// For counts of which 0 makes no sense.
inline CLI::Range at_least_one() {
  return {1u, UINT32_MAX};
}

/// A duration above 0.
Result<Duration> parse_limit(const std::string& text);

void add_job_options(CLI::App& app, JobOptions& options);

/// Of them only --local-ranks and what shapes the testbed.
void add_testbed_job_options(CLI::App& app, JobOptions& options);

/// What CLI11 cannot see: combinations that make no sense.
Result<void> check_job_options(const JobOptions& options);

}  // namespace tarpon
