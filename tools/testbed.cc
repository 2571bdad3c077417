#include "tools/testbed.h"

#include <fmt/format.h>
#include <unistd.h>

#include <iterator>
#include <vector>

#include "tools/network_namespace.h"
#include "tools/subprocess.h"
#include "tools/testbed/loss_program.h"

namespace tarpon {
namespace {

constexpr std::uint32_t kMaxRanks =
    250;  // one digit group of the address, and below the loss ports
static_assert(kMaxRanks <= TARPON_LOSS_MAX_PORTS);

tl::unexpected<Error> refuse(std::string message) {
  return fail(Error::Code::invalid_argument, std::move(message));
}

Result<void> check(const TestbedOptions& options) {
  if (options.ranks < 1 || options.ranks > kMaxRanks) {
    return refuse(
        fmt::format("a testbed of {} ranks: 1 to {} are possible", options.ranks, kMaxRanks));
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
  if (options.loss && !(options.loss->probability >= 0 && options.loss->probability <= 1)) {
    return refuse(fmt::format("a loss of {}: 0 to 1 is possible", options.loss->probability));
  }
  if (options.rate && options.rate->bits_per_second == 0) {
    return refuse("a rate of 0 bits per second: write for example 2gbit");
  }
  return {};
}

std::string address_of(Rank rank) {
  return fmt::format("10.77.{}.{}", rank / 250, rank % 250 + 1);
}

/// Commands for `ip -batch` that make bridge and links; run in the hub.
std::string hub_batch(const TestbedOptions& options, const std::vector<FileDescriptor>& ranks) {
  const std::string shape = fmt::format("mtu {} numtxqueues {} numrxqueues {}", options.mtu,
                                        options.transmit_queues, options.receive_queues);
  fmt::memory_buffer text;
  auto out = std::back_inserter(text);
  fmt::format_to(out, "link add br0 mtu {} type bridge mcast_snooping 0\nlink set br0 up\n",
                 options.mtu);
  for (std::uint32_t rank = 0; rank < options.ranks; ++rank) {
    fmt::format_to(
        out,
        "link add index {} name p{} {} type veth peer name eth0 {} netns /proc/{}/fd/{}\n"
        "link set p{} master br0 up\n",
        TARPON_LOSS_FIRST_IFINDEX + rank, rank, shape, shape, ::getpid(), ranks[rank].get(), rank);
  }
  return fmt::to_string(text);
}

std::string rank_batch(const TestbedOptions& options, Rank rank) {
  return fmt::format("link set lo up\naddress add {}/16 dev eth0\nlink set eth0 {} up\n",
                     address_of(rank), options.loss ? "gso_max_segs 1" : "");
}

/// Commands for `tc -batch`; run in the hub.
std::string rate_batch(const TestbedRate& rate, std::uint32_t ranks) {
  std::string text;
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    text += fmt::format("qdisc add dev p{} root tbf rate {}bit burst {} limit {}\n", rank,
                        rate.bits_per_second, rate.burst_bytes, rate.limit_bytes);
  }
  return text;
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
  std::vector<FileDescriptor> ranks;
  FileDescriptor hub;
  std::optional<LossProgram> loss;

  Result<void> make_links() {
    if (auto done = run_batch("ip", hub_batch(options, ranks), hub.get()); !done) return done;
    for (std::uint32_t rank = 0; rank < options.ranks; ++rank) {
      auto done = run_batch("ip", rank_batch(options, static_cast<Rank>(rank)), ranks[rank].get());
      if (!done) return done;
    }
    if (!options.rate) return {};
    return run_batch("tc", rate_batch(*options.rate, options.ranks), hub.get());
  }

  Result<void> attach_loss() {
    if (!options.loss) return {};
    auto program = LossProgram::load(options.loss->probability, options.loss->seed);
    if (!program) return fail(program.error());
    loss = std::move(*program);
    return in_network_namespace(hub.get(), [this]() -> Result<void> {
      for (std::uint32_t rank = 0; rank < options.ranks; ++rank) {
        if (auto done = loss->attach(rank); !done) return done;
      }
      return {};
    });
  }
};

Result<Testbed> Testbed::create(const TestbedOptions& options) {
  if (auto good = check(options); !good) return fail(good.error());
  auto namespaces = make_network_namespaces(options.ranks + 1);
  if (!namespaces) return fail(namespaces.error());
  auto state = std::make_unique<State>();
  state->options = options;
  state->ranks = std::move(*namespaces);
  state->hub = std::move(state->ranks.back());
  state->ranks.pop_back();
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

Result<void> Testbed::enter(Rank rank) const {
  if (rank >= ranks()) return refuse(fmt::format("no rank {} in a testbed of {}", rank, ranks()));
  return enter_network_namespace(state_->ranks[rank].get());
}

std::string Testbed::address(Rank rank) const {
  return address_of(rank);
}

int Testbed::network_namespace(Rank rank) const {
  return state_->ranks.at(rank).get();
}

int Testbed::hub() const {
  return state_->hub.get();
}

Result<TestbedLossCounters> Testbed::loss_counters(Rank rank) const {
  if (!state_->loss) return refuse("this testbed was made without loss");
  const auto port = state_->loss->counters(rank);
  if (!port) return fail(port.error());
  return TestbedLossCounters{port->passed, port->dropped};
}

}  // namespace tarpon
