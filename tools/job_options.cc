#include "tools/job_options.h"

#include <fmt/format.h>

#include <algorithm>

#include "tools/option_kinds.h"
#include "tools/testbed_shape.h"
#include "tools/units.h"

namespace tarpon {

Duration JobOptions::rendezvous_bound() const {
  const Duration bound = rendezvous_timeout.value_or(30s);
  return deadline_given ? std::min(bound, deadline) : bound;
}

namespace {

void add_local_ranks(CLI::App& app, JobOptions& options, const char* description) {
  app.add_option("--local-ranks", options.local_ranks, description)
      ->check(CLI::Range(1u, Connection::kMaxRanks));
}

void add_place_options(CLI::App& app, JobOptions& options) {
  add_local_ranks(app, options, "start this many ranks on this machine and show one report");
  app.add_option("--rank", options.place.rank, "this rank; else from the launcher's environment");
  app.add_option("--world-size", options.place.world_size, "ranks in the job");
  app.add_option("--rendezvous", options.place.rendezvous,
                 "where the ranks meet: tcp://HOST:PORT (rank 0's) or file://PATH");
  app.add_option("--interface", options.interface, "network interface that carries the job");
}

void add_network_options(CLI::App& app, JobOptions& options) {
  add_choice(
      app, "--net", options.network,
      std::map<std::string, Network>{{"loopback", Network::loopback}, {"veth", Network::veth}},
      "network of --local-ranks: loopback, or veth (one network namespace per rank on a "
      "bridge; needs root)")
      ->default_str("loopback");
}

void add_veth_options(CLI::App& app, JobOptions& options) {
  add_shape_options(app, options.testbed);
  app.add_option("--background", options.background,
                 "veth: bulk TCP flows between the first two ranks");
  app.add_option("--seed", options.seed, "of injected faults and losses")
      ->check(whole_number(UINT64_MAX))
      ->capture_default_str();
}

void add_data_path_options(CLI::App& app, JobOptions& options) {
  add_choice(app, "--datapath", options.datapath,
             std::map<std::string, Datapath>{{"auto", Datapath::automatic},
                                             {"xdp", Datapath::xdp},
                                             {"uring", Datapath::uring},
                                             {"mmsg", Datapath::mmsg}},
             "auto, xdp (AF_XDP), uring (io_uring) or mmsg (sendmmsg, recvmmsg)")
      ->default_str("auto");
  app.add_option("--gso-segments", options.gso_segments,
                 "uring, mmsg: packets in one GSO train, 1 to 64; 1: no GSO")
      ->check(CLI::Range(1u, kMaxGsoSegments))
      ->capture_default_str();
  add_choice(
      app, "--flows", options.flows,
      std::map<std::string, std::uint32_t>{{"1", 1}, {"2", 2}, {"4", 4}, {"8", 8}, {"auto", 0}},
      "UDP flows from this rank to each other: 1, 2, 4, 8, or auto (4 for messages of 1 MiB "
      "and more, where a trial shows that they carry more than one)")
      ->default_str("auto");
  add_choice(app, "--integrity", options.integrity,
             std::map<std::string, tarpon_integrity>{{"none", TARPON_INTEGRITY_NONE},
                                                     {"udp", TARPON_INTEGRITY_UDP},
                                                     {"crc32c", TARPON_INTEGRITY_CRC32C}},
             "what protects payloads: udp (the kernel's checksum), crc32c, none (benchmarks)")
      ->default_str("udp");
  app.add_flag("--busy-poll", options.busy_poll,
               "AF_XDP: poll the driver; the report says when that has no effect");
  add_parsed(app, "--retain", options.retain_bytes, parse_bytes,
             "results kept for late ranks, bytes (64M)");
  add_parsed(app, "--dead-after", options.dead_after, parse_limit,
             "a rank is dead after so long without a packet, while an exact call needs it (5s)");
  add_parsed(app, "--max-rate", options.max_rate, parse_rate,
             "cap of what each rank sends, as 1gbit (none)");
  add_parsed(app, "--inject-loss", options.faults.loss, parse_probability,
             "drop this share of what arrives, as 1%, from --seed");
  add_parsed(app, "--inject-duplicate", options.faults.duplicate, parse_probability,
             "deliver this share twice");
  add_parsed(app, "--inject-reorder", options.faults.reorder, parse_probability,
             "hold this share back for up to 1 ms");
  add_parsed(app, "--inject-corrupt", options.faults.corrupt, parse_probability,
             "flip a bit in this share");
}

}  // namespace

void add_job_options(CLI::App& app, JobOptions& options) {
  add_place_options(app, options);
  add_network_options(app, options);
  add_veth_options(app, options);
  add_data_path_options(app, options);
  app.add_option_function<std::string>(
      "--deadline",
      [&options](const std::string& text) {
        const auto value = parse_limit(text);
        if (!value) throw CLI::ValidationError("--deadline", value.error().message);
        options.deadline = *value;
        options.deadline_given = true;
      },
      "hard limit of every operation (10s)");
  add_parsed(app, "--rendezvous-timeout", options.rendezvous_timeout, parse_limit,
             "how long to wait for all ranks (30s)");
}

void add_testbed_job_options(CLI::App& app, JobOptions& options) {
  add_local_ranks(app, options, "start the program this many times, each in its own namespace");
  add_veth_options(app, options);
}

Result<Duration> parse_limit(const std::string& text) {
  auto value = parse_duration(text);
  if (value && *value <= Duration::zero()) {
    return fail(Error::Code::invalid_argument,
                fmt::format("\"{}\" leaves no time: give a duration like 10s", text));
  }
  return value;
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
                "--mtu, --rate, --loss, --burst-loss, --police, --flow-limit, --tcp-congestion and "
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
