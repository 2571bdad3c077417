#include "tools/job/options/job_options.h"

#include <fmt/format.h>

#include <algorithm>

#include "collectives/communicator.h"
#include "tools/cli/environment_variables.h"
#include "tools/cli/units.h"
#include "tools/namespaces/testbed_shape.h"

namespace tarpon {

std::optional<Duration> JobOptions::rendezvous_bound(const JobPlace& place,
                                                     const Environment& environment) const {
  if (rendezvous_timeout || environment("TARPON_RENDEZVOUS_TIMEOUT")) return rendezvous_timeout;
  const Duration usual =
      local_ranks > 0 ? RendezvousOptions().timeout : usual_rendezvous_timeout(place);
  return deadline_given ? std::min(usual, deadline) : usual;
}

namespace {

using cli::Scope;

constexpr const char* kTestbedGroup = "Network namespaces (need root)";

cli::Option local_ranks(JobOptions& options, const char* help) {
  return {"--local-ranks",
          otherwise(cli::whole(options.local_ranks, 1u, Communicator::kMostRanks), ""), help};
}

cli::Value deadline(JobOptions& options) {
  const auto parse = [&options](const std::string& text) {
    options.deadline_given = true;
    return parse_limit(text);
  };
  return cli::parsed(options.deadline, "DURATION", parse, format_duration);
}

cli::Value ports(JobOptions& options) {
  return otherwise(cli::parsed(options.ports, "FIRST-LAST", parse_port_range),
                   "TARPON_PORTS, else any");
}

void add_place_options(cli::OptionTable& table, JobOptions& options) {
  table.add(
      "Ranks and rendezvous",
      {local_ranks(options, "start this many ranks on this machine and show one report"),
       {"--rank", cli::whole(options.place.rank), "this rank; else from the launcher's variables"},
       {"--world-size", cli::whole(options.place.world_size), "ranks in the job", Scope::job},
       {"--rendezvous", cli::text(options.place.rendezvous, "ADDRESS"),
        "where the ranks meet: tcp://HOST:PORT (a port of rank 0's host) or file://PATH"},
       {"--rendezvous-timeout",
        otherwise(cli::duration(options.rendezvous_timeout), "TARPON_RENDEZVOUS_TIMEOUT, else 30s"),
        "how long to wait for all ranks; the default is 5m where a launcher has started ranks on "
        "several hosts, and at most a --deadline that is given"},
       {"--ports", ports(options),
        "UDP and TCP ports to use, as 29600-29699; the ranks of a host share them"},
       {"--secret-file", otherwise(cli::text(options.secret_file, "FILE"), "TARPON_SECRET_FILE"),
        "the secret of the job, alike on all ranks: connections are TLS, packets carry tags; "
        "openssl rand -hex 32 makes one",
        Scope::job},
       {"--interface", cli::interface_name(options.interface),
        "network interface that carries the job"},
       {"--deadline", deadline(options), "hard limit of every operation", Scope::job}});
}

void add_veth_options(cli::OptionTable& table, const char* group, JobOptions& options) {
  add_shape_options(table, group, options.testbed);
  table.add(group, {{"--background", otherwise(cli::whole(options.background), ""),
                     "veth: bulk TCP flows between the first two ranks"}});
}

cli::Option seed(JobOptions& options) {
  return {"--seed", cli::whole(options.seed), "seed of injected faults and losses"};
}

void add_network_options(cli::OptionTable& table, JobOptions& options) {
  constexpr const char* kGroup = "Network of --local-ranks";
  table.add(kGroup,
            {{"--net",
              cli::choice(options.network, cli::Choices<Network>{{"loopback", Network::loopback},
                                                                 {"veth", Network::veth}}),
              "veth: as root, a network namespace for each rank on a bridge"}});
  add_veth_options(table, kGroup, options);
}

cli::Value datapath(JobOptions& options) {
  return otherwise(
      cli::choice(options.datapath, cli::Choices<Datapath>{{"auto", Datapath::automatic},
                                                           {"mmsg", Datapath::mmsg},
                                                           {"uring", Datapath::uring},
                                                           {"xdp", Datapath::xdp}}),
      "TARPON_DATAPATH, else auto");
}

cli::Value hosts(JobOptions& options) {
  return otherwise(cli::choice(options.hosts, cli::Choices<bool>{{"off", false}, {"on", true}}),
                   "TARPON_HOSTS, else on");
}

cli::Value flows(JobOptions& options) {
  return cli::choice(options.flows, cli::Choices<std::uint32_t>{
                                        {"1", 1}, {"2", 2}, {"4", 4}, {"8", 8}, {"auto", 0}});
}

cli::Value lanes(JobOptions& options) {
  return otherwise(
      cli::choice(options.lanes,
                  cli::Choices<std::uint32_t>{{"1", 1}, {"2", 2}, {"3", 3}, {"4", 4}, {"auto", 0}}),
      "TARPON_LANES, else auto");
}

cli::Value integrity(JobOptions& options) {
  return otherwise(cli::choice(options.integrity,
                               cli::Choices<tarpon_integrity>{{"crc32c", TARPON_INTEGRITY_CRC32C},
                                                              {"keyed", TARPON_INTEGRITY_KEYED},
                                                              {"none", TARPON_INTEGRITY_NONE},
                                                              {"sealed", TARPON_INTEGRITY_SEALED},
                                                              {"udp", TARPON_INTEGRITY_UDP}}),
                   "udp; keyed with a secret");
}

void add_data_path_options(cli::OptionTable& table, JobOptions& options) {
  table.add(
      "Data path",
      {{"--hosts", hosts(options),
        "on: calls add up in each host first, through memory that its ranks share", Scope::job},
       {"--datapath", datapath(options),
        "xdp: AF_XDP; uring: io_uring; mmsg: sendmmsg and recvmmsg; auto: AF_XDP where it is "
        "loaded "
        "and zero-copy, else uring, else mmsg"},
       {"--flows", flows(options),
        "UDP flows from this rank to each other; auto: 4 for messages of 1 MiB and more, where a "
        "trial shows that they carry more than one"},
       {"--lanes", lanes(options),
        "uring, mmsg: threads that work for this rank: the driver, and threads that send for it; "
        "auto: by the processors that the ranks of this machine may use; 1 on 2"},
       {"--gso-segments", cli::whole(options.gso_segments, 1u, kMaxGsoSegments),
        "uring, mmsg: packets in one GSO train, 1 to 64; 1: no GSO"},
       {"--busy-poll", cli::flag(options.busy_poll),
        "AF_XDP: poll the driver; the report says when that has no effect"},
       {"--integrity", integrity(options),
        "what protects packets; udp: the kernel's checksum; none: for benchmarks; with a secret, "
        "which --local-ranks makes itself: keyed: tags that no stranger can make; sealed: payloads "
        "are encrypted too",
        Scope::job},
       {"--max-rate", cli::rate(options.max_rate), "cap of what each rank sends, as 1gbit"},
       {"--retain", cli::size(options.retain_bytes), "memory of results kept for late ranks"},
       {"--silent-after", cli::duration(options.silent_after),
        "bounded calls go on without a rank after so long without a packet of it", Scope::job},
       {"--dead-after", cli::duration(options.dead_after),
        "a rank is dead when exact calls have needed it for so long, without a packet of it",
        Scope::job}});
}

}  // namespace

void add_job_options(cli::OptionTable& table, JobOptions& options) {
  add_place_options(table, options);
  add_network_options(table, options);
  add_data_path_options(table, options);
  std::vector<cli::Variable> variables = place_variables();
  for (cli::Variable& one : network_variables()) variables.push_back(std::move(one));
  table.environment(std::move(variables));
}

void add_fault_options(cli::OptionTable& table, JobOptions& options) {
  table.add(
      kFaultGroup,
      {{"--inject-loss", cli::share(options.faults.loss),
        "drop this share of the packets that arrive, as 1%"},
       {"--inject-duplicate", cli::share(options.faults.duplicate), "deliver them twice"},
       {"--inject-reorder", cli::share(options.faults.reorder), "hold them back for up to 1 ms"},
       {"--inject-corrupt", cli::share(options.faults.corrupt), "flip a bit in them"},
       seed(options)});
}

void add_testbed_job_options(cli::OptionTable& table, JobOptions& options) {
  table.add(
      kTestbedGroup,
      {local_ranks(options, "start the program this many times, each in a namespace of its host")});
  add_veth_options(table, kTestbedGroup, options);
  table.add(kTestbedGroup, {seed(options)});
}

Result<void> check_job_options(const JobOptions& options) {
  const bool placed = options.place.rank || options.place.world_size;
  if (options.local_ranks > 0 && placed) {
    return fail(Error::Code::invalid_argument,
                "--local-ranks starts all ranks itself: leave --rank and --world-size out");
  }
  if (options.local_ranks > 0 && options.place.rendezvous) {
    return fail(Error::Code::invalid_argument,
                "--local-ranks starts all ranks itself: leave --rendezvous out");
  }
  const bool shaped = is_shaped(options.testbed) || options.background > 0;
  if (shaped && (options.network != Network::veth || options.local_ranks == 0)) {
    return fail(Error::Code::invalid_argument,
                "--per-host, --mtu, --rate, --loss, --burst-loss, --police, --flow-limit, "
                "--tcp-congestion and "
                "--background shape the testbed: add --local-ranks P --net veth");
  }
  if (options.network == Network::veth && options.local_ranks == 0) {
    return fail(Error::Code::invalid_argument, "--net veth needs --local-ranks P");
  }
  if (options.background > 0 && options.local_ranks < 2) {
    return fail(Error::Code::invalid_argument, "--background needs at least 2 ranks");
  }
  return {};
}

}  // namespace tarpon
