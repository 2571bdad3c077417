// The options that every command of a job shares: ranks, network, data path and time limits.
#pragma once

#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>

#include "collectives/communicator.h"
#include "tools/cli/option_table.h"
#include "tools/job/options/launch_place.h"
#include "tools/namespaces/testbed.h"
#include "transport/ports/udp_options.h"
#include "xdp/base/result.h"

namespace tarpon {

enum class Network { loopback, veth };

struct JobOptions {
  std::uint32_t local_ranks = 0;  // 0: this process is one rank
  LaunchFlags place;
  std::optional<std::string> interface;
  Network network = Network::loopback;  // of local ranks
  TestbedOptions testbed;               // veth; ranks and seed are those of the job
  std::uint32_t background = 0;         // veth: bulk TCP flows between ranks 0 and 1
  std::uint64_t seed = 1;
  std::optional<Datapath> datapath;  // else TARPON_DATAPATH, or auto
  std::uint32_t gso_segments = kMaxGsoSegments;
  std::uint32_t flows = 0;             // 0: by trial
  std::optional<std::uint32_t> lanes;  // 0: by processors; else TARPON_LANES, or that
  bool multicast = false;
  std::optional<bool> hosts;                  // else TARPON_HOSTS, or on
  std::optional<tarpon_integrity> integrity;  // else TARPON_INTEGRITY, or udp
  /// Without: TARPON_SECRET_FILE, TARPON_SECRET_FD, or none.
  std::optional<std::string> secret_file;
  bool busy_poll = false;
  FaultOptions faults;
  Duration deadline = 10s;
  std::optional<Duration> rendezvous_timeout;  // else TARPON_RENDEZVOUS_TIMEOUT, or the usual one
  PortRange ports;
  bool deadline_given = false;
  std::uint64_t retain_bytes = CommunicatorOptions().retain_bytes;
  Duration silent_after = CommunicatorOptions().silent_after;
  Duration dead_after = CommunicatorOptions().dead_after;
  Mechanisms mechanisms;
  std::vector<LossBudget> loss_budgets;  // ascending by step; empty: no verdicts are asked for
  std::uint64_t max_rate = 0;            // bit/s; 0: no cap
  std::string flight;                    // directory of dumps; empty: TARPON_FLIGHT, or none
  std::FILE* text = stdout;              // where the report's text goes

  /// How long the rank at `place` waits for all ranks, if an option says so: --rendezvous-timeout;
  /// without that and TARPON_RENDEZVOUS_TIMEOUT, an explicit --deadline limits the usual time.
  std::optional<Duration> rendezvous_bound(const JobPlace& place,
                                           const Environment& environment) const;
};

/// Ranks and rendezvous, network, data path; and the variables that a job reads.
void add_job_options(cli::OptionTable& table, JobOptions& options);

/// Title of the options of injected faults.
inline constexpr const char* kFaultGroup = "Faults, for tests";

/// --inject-*, --seed. A separate function, because they come late in a help text.
void add_fault_options(cli::OptionTable& table, JobOptions& options);

/// Only --local-ranks and what shapes the testbed.
void add_testbed_job_options(cli::OptionTable& table, JobOptions& options);

/// Refuses combinations of options that make no sense.
Result<void> check_job_options(const JobOptions& options);

}  // namespace tarpon
