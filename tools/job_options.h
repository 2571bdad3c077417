// The options that every command of a job shares: who takes part, over what, until when.
#pragma once

#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>

#include "collectives/communicator.h"
#include "tools/cli_fwd.h"
#include "tools/launch_place.h"
#include "tools/testbed.h"
#include "transport/ports/udp_options.h"
#include "xdp/result.h"

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
  std::uint32_t flows = 0;  // 0: by trial
  tarpon_integrity integrity = TARPON_INTEGRITY_UDP;
  bool busy_poll = false;
  FaultOptions faults;
  Duration deadline = 10s;
  std::optional<Duration> rendezvous_timeout;
  bool deadline_given = false;
  std::uint64_t retain_bytes = 64ull << 20;
  Duration dead_after = 5s;
  Mechanisms mechanisms;
  std::vector<LossBudget> loss_budgets;  // ascending by step; empty: no verdicts are asked for
  std::uint64_t max_rate = 0;            // bit/s; 0: no cap
  std::string flight;                    // directory of dumps; empty: TARPON_FLIGHT, or none
  std::FILE* text = stdout;              // where the report's text goes

  /// Never longer than an explicit --deadline.
  Duration rendezvous_bound() const;
};

/// A duration above 0.
Result<Duration> parse_limit(const std::string& text);

void add_job_options(CLI::App& app, JobOptions& options);

/// Of them only --local-ranks and what shapes the testbed.
void add_testbed_job_options(CLI::App& app, JobOptions& options);

/// What CLI11 cannot see: combinations that make no sense.
Result<void> check_job_options(const JobOptions& options);

}  // namespace tarpon
