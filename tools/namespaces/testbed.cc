#include "tools/namespaces/testbed.h"

#include <fmt/format.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <sstream>
#include <vector>

#include "tools/cli/files/text_file.h"
#include "tools/namespaces/network_namespace.h"
#include "tools/system/subprocess.h"
#include "tools/testbed/loss_program.h"
#include "tools/testbed/segmentation.h"

namespace tarpon {
namespace {

constexpr std::uint32_t kMaxHosts =
    250;  // one digit group of the address, and below the loss ports
static_assert(kMaxHosts <= TARPON_LOSS_MAX_PORTS);

tl::unexpected<Error> refuse(std::string message) {
  return fail(Error::Code::invalid_argument, std::move(message));
}

Result<void> check_loss(const TestbedLoss& loss) {
  if (!(loss.probability >= 0 && loss.probability <= 1)) {
    return refuse(fmt::format("a loss of {}: 0 to 1 is possible", loss.probability));
  }
  // With a larger share a burst would have to start more often than at each packet.
  const double most = loss.burst_packets / (1 + loss.burst_packets);
  if (!(loss.burst_packets >= 1 && loss.burst_share >= 0 && loss.burst_share <= most)) {
    return refuse(
        fmt::format("a loss of {} in bursts of {} packets: bursts have 1 packet or more, and lose "
                    "up to {:.3f} of all",
                    loss.burst_share, loss.burst_packets, std::max(most, 0.0)));
  }
  return {};
}

/// A bucket must hold a frame: 18 bytes are Ethernet's, with a VLAN tag.
Result<void> check_bucket(const char* what, std::uint64_t bits_per_second, std::uint64_t burst,
                          int mtu) {
  if (bits_per_second == 0) {
    return refuse(fmt::format("a {} of 0 bits per second: write for example 2gbit", what));
  }
  const std::uint64_t frame = static_cast<std::uint64_t>(mtu) + 18;
  if (burst < frame || burst > 1u << 30) {
    return refuse(fmt::format("a {} with bursts of {} bytes: {} (a frame) to 1G are possible", what,
                              burst, frame));
  }
  return {};
}

Result<void> check_rate(const TestbedRate& rate, int mtu) {
  if (rate.limit_bytes < rate.burst_bytes) {
    return refuse(fmt::format("a rate with a queue of {} bytes: it has to hold a burst ({} bytes)",
                              rate.limit_bytes, rate.burst_bytes));
  }
  return check_bucket("rate", rate.bits_per_second, rate.burst_bytes, mtu);
}

Result<void> check_limit(const char* what, const TestbedLimit& limit, int mtu) {
  return check_bucket(what, limit.bits_per_second, limit.burst_bytes, mtu);
}

Result<void> check_rates(const TestbedOptions& options) {
  Result<void> good;
  const auto check_rank = [&](Rank rank) -> Result<void> {
    if (rank < options.ranks) return {};
    return refuse(fmt::format("a rate for rank {} of {}: ranks count from 0", rank, options.ranks));
  };
  if (options.rate) good = check_rate(*options.rate, options.mtu);
  for (const auto& [rank, rate] : options.rate_of) {
    if (good) good = check_rank(rank);
    if (good) good = check_rate(rate, options.mtu);
  }
  if (good && options.uplink) good = check_rate(*options.uplink, options.mtu);
  if (good && options.police) good = check_limit("policer", *options.police, options.mtu);
  for (const auto& [rank, limit] : options.police_of) {
    if (good) good = check_rank(rank);
    if (good) good = check_limit("policer", limit, options.mtu);
  }
  if (good && options.flow_limit)
    good = check_limit("flow limit", *options.flow_limit, options.mtu);
  return good;
}

/// Checks that the kernel has the congestion control `wanted`.
Result<void> check_congestion(const std::string& wanted) {
  if (wanted.empty()) return {};
  const auto known = read_text("/proc/sys/net/ipv4/tcp_available_congestion_control");
  if (!known) return fail(known.error());
  std::istringstream words(*known);
  for (std::string word; words >> word;) {
    if (word == wanted) return {};
  }
  return refuse(fmt::format("TCP congestion control \"{}\": this kernel has {}", wanted,
                            std::string_view(*known).substr(0, known->find('\n'))));
}

Result<void> check(const TestbedOptions& options) {
  if (options.places.per_host < 1)
    return refuse("a testbed with 0 ranks on a host: give 1 or more");
  const std::uint32_t hosts = options.places.hosts(options.ranks);
  if (hosts < 1 || hosts > kMaxHosts) {
    return refuse(fmt::format("a testbed of {} ranks on {} hosts: 1 to {} hosts are possible",
                              options.ranks, hosts, kMaxHosts));
  }
  if (options.mtu < 576 || options.mtu > 65535) {
    return refuse(fmt::format("a testbed with MTU {}: 576 to 65535 are possible", options.mtu));
  }
  if (options.transmit_queues < 1 || options.transmit_queues > 256 || options.receive_queues < 1 ||
      options.receive_queues > 256) {
    return refuse(
        fmt::format("a testbed with {} transmit and {} receive queues: 1 to 256 are possible",
                    options.transmit_queues, options.receive_queues));
  }
  if (auto known = check_congestion(options.tcp_congestion); !known) return known;
  if (auto loss = check_loss(options.loss.value_or(TestbedLoss{})); !loss) return loss;
  return check_rates(options);
}

std::string address_of(std::uint32_t host) {
  return fmt::format("10.77.0.{}", host + 1);
}

/// The value that one rank of `host` has in `values`; null: none has one.
template <typename T>
const T* of_host(const std::map<Rank, T>& values, const TestbedOptions& options,
                 std::uint32_t host) {
  for (const auto& [rank, value] : values) {
    if (options.places.host_of(rank, options.ranks) == host) return &value;
  }
  return nullptr;
}

/// Commands for `ip -batch` that make bridge and links; run in the hub.
std::string hub_batch(const TestbedOptions& options, const std::vector<FileDescriptor>& hosts) {
  const std::string shape = fmt::format("mtu {} numtxqueues {} numrxqueues {}", options.mtu,
                                        options.transmit_queues, options.receive_queues);
  fmt::memory_buffer text;
  auto out = std::back_inserter(text);
  fmt::format_to(out, "link add br0 mtu {} type bridge mcast_snooping 0\nlink set br0 up\n",
                 options.mtu);
  for (std::uint32_t host = 0; host < hosts.size(); ++host) {
    fmt::format_to(
        out,
        "link add index {} name p{} {} type veth peer name eth0 {} netns /proc/{}/fd/{}\n"
        "link set p{} master br0 up\n",
        TARPON_LOSS_FIRST_IFINDEX + host, host, shape, shape, ::getpid(), hosts[host].get(), host);
  }
  return fmt::to_string(text);
}

/// Whether the loss programs have something to do.
bool needs_programs(const TestbedOptions& options) {
  return options.loss || options.police || !options.police_of.empty() || options.flow_limit;
}

std::string host_batch(const TestbedOptions& options, std::uint32_t host) {
  const std::string address = address_of(host);
  std::string text =
      fmt::format("link set lo up\naddress add {}/16 dev eth0\nlink set eth0 up\n", address);
  // Set it on the route: the system's setting cannot be changed where /proc/sys is read-only.
  if (!options.tcp_congestion.empty()) {
    text += fmt::format(
        "route change 10.77.0.0/16 dev eth0 proto kernel scope link src {} congctl {}\n", address,
        options.tcp_congestion);
  }
  return text;
}

/// A command for `tc -batch` that shapes what leaves `device`.
std::string shape(const std::string& device, const TestbedRate& rate) {
  return fmt::format("qdisc add dev {} root tbf rate {}bit burst {} limit {}\n", device,
                     rate.bits_per_second, rate.burst_bytes, rate.limit_bytes);
}

/// Commands for `tc -batch`; run in the hub.
std::string rate_batch(const TestbedOptions& options) {
  std::string text;
  for (std::uint32_t host = 0; host < options.places.hosts(options.ranks); ++host) {
    const TestbedRate* const own = of_host(options.rate_of, options, host);
    if (own == nullptr && !options.rate) continue;
    text += shape(fmt::format("p{}", host), own == nullptr ? *options.rate : *own);
  }
  return text;
}

/// `probability` in units of 2^-32.
std::uint64_t chance(double probability) {
  return static_cast<std::uint64_t>(std::llround(std::ldexp(probability, 32)));
}

tarpon_loss_limit loss_limit(const std::optional<TestbedLimit>& limit) {
  return limit ? tarpon_loss_limit{std::max<std::uint64_t>(limit->bits_per_second / 8, 1),
                                   limit->burst_bytes}
               : tarpon_loss_limit{};
}

tarpon_loss_config loss_config(const TestbedOptions& options) {
  const TestbedLoss loss = options.loss.value_or(TestbedLoss{});
  tarpon_loss_config config{};
  config.threshold = chance(loss.probability);
  config.seed = loss.seed;
  if (loss.burst_share > 0) {
    // In the long run start / (start + end) of all packets are in a burst.
    const double end = 1 / loss.burst_packets;
    config.burst_end = chance(end);
    config.burst_start = chance(end * loss.burst_share / (1 - loss.burst_share));
  }
  config.flow = loss_limit(options.flow_limit);
  return config;
}

/// Adds what the queues of links with a rate in a namespace have seen.
Result<void> add_queues(int network_namespace, TestbedQueues& sum) {
  const auto output =
      run_subprocess({{"tc", "-statistics", "-json", "qdisc", "show"}, "", network_namespace});
  if (!output) return fail(output.error());
  for (const auto& one : nlohmann::json::parse(*output, nullptr, /*allow_exceptions=*/false)) {
    if (!one.is_object() || one.value("kind", "") != "tbf") continue;
    sum.packets += one.value("packets", std::uint64_t{0});
    sum.bytes += one.value("bytes", std::uint64_t{0});
    sum.dropped += one.value("drops", std::uint64_t{0});
  }
  return {};
}

Result<void> run_batch(const char* program, std::string batch, int network_namespace) {
  const auto output =
      run_subprocess({{program, "-batch", "-"}, std::move(batch), network_namespace});
  if (!output) return fail(output.error());
  return {};
}

}  // namespace

struct Testbed::State {
  TestbedOptions options;
  std::vector<FileDescriptor> hosts;
  FileDescriptor hub;
  std::optional<LossProgram> loss;

  Result<void> make_links() {
    if (auto done = run_batch("ip", hub_batch(options, hosts), hub.get()); !done) return done;
    for (std::uint32_t host = 0; host < hosts.size(); ++host) {
      auto done = run_batch("ip", host_batch(options, host), hosts[host].get());
      if (done && options.uplink) {
        done = run_batch("tc", shape("eth0", *options.uplink), hosts[host].get());
      }
      if (!done) return done;
    }
    const std::string rates = rate_batch(options);
    return rates.empty() ? Result<void>() : run_batch("tc", rates, hub.get());
  }

  Result<void> attach_loss() {
    if (!needs_programs(options)) return {};
    auto program = LossProgram::load(loss_config(options));
    if (!program) return fail(program.error());
    loss = std::move(*program);
    for (const FileDescriptor& host : hosts) {
      auto cut = in_network_namespace(host.get(), [] { return cut_before_driver("eth0"); });
      if (!cut) return cut;
    }
    return in_network_namespace(hub.get(), [this]() -> Result<void> {
      for (std::uint32_t host = 0; host < hosts.size(); ++host) {
        const TestbedLimit* const own = of_host(options.police_of, options, host);
        const auto limit = own == nullptr ? options.police : *own;
        if (auto done = loss->police(host, loss_limit(limit)); !done) return done;
        if (auto done = loss->attach(host); !done) return done;
      }
      return {};
    });
  }
};

Result<Testbed> Testbed::create(const TestbedOptions& options) {
  if (auto good = check(options); !good) return fail(good.error());
  auto namespaces = make_network_namespaces(options.places.hosts(options.ranks) + 1);
  if (!namespaces) return fail(namespaces.error());
  auto state = std::make_unique<State>();
  state->options = options;
  state->hosts = std::move(*namespaces);
  state->hub = std::move(state->hosts.back());
  state->hosts.pop_back();
  if (auto done = state->make_links(); !done) return fail(done.error());
  if (auto done = state->attach_loss(); !done) return fail(done.error());
  return Testbed(std::move(state));
}

Testbed::Testbed(std::unique_ptr<State> state) : state_(std::move(state)) {}
Testbed::Testbed(Testbed&& other) noexcept = default;
Testbed& Testbed::operator=(Testbed&& other) noexcept = default;
Testbed::~Testbed() = default;

std::uint32_t Testbed::ranks() const {
  return state_->options.ranks;
}

std::uint32_t Testbed::hosts() const {
  return static_cast<std::uint32_t>(state_->hosts.size());
}

Result<void> Testbed::enter(Rank rank) const {
  if (rank >= ranks()) return refuse(fmt::format("no rank {} in a testbed of {}", rank, ranks()));
  return enter_network_namespace(network_namespace(rank));
}

std::string Testbed::address(Rank rank) const {
  return address_of(state_->options.places.host_of(rank, ranks()));
}

int Testbed::network_namespace(Rank rank) const {
  return state_->hosts.at(state_->options.places.host_of(rank, ranks())).get();
}

int Testbed::hub() const {
  return state_->hub.get();
}

Result<TestbedLossCounters> Testbed::loss_counters(std::uint32_t host) const {
  if (!state_->loss) return refuse("this testbed was made without loss");
  const auto port = state_->loss->counters(host);
  if (!port) return fail(port.error());
  return TestbedLossCounters{port->passed, port->dropped, port->limited, port->policed};
}

Result<Testbed::Queues> Testbed::queues() const {
  Queues queues;
  if (auto added = add_queues(hub(), queues.to_hosts); !added) return fail(added.error());
  for (const FileDescriptor& host : state_->hosts) {
    if (auto added = add_queues(host.get(), queues.from_hosts); !added) return fail(added.error());
  }
  return queues;
}

}  // namespace tarpon
