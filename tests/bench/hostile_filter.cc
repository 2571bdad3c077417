// What `./dev bench hostile` runs beside the job: the CPU time that one hostile packet costs until
// the socket filter of a UDP port has refused it (UdpSocket::refuse_strangers()).
//
// Usage: hostile_filter [--rounds N] [--frames N]
// One thread sends frames over a veth pair. The kernel receives each of them in that thread, before
// send() returns, so its CPU time has both sides. Two classes of tests/hostile take turns:
// datagrams whose UDP length is beyond their end, which end before the kernel looks for a socket,
// and datagrams without the job's cookie, which the filter refuses. All else costs the same. One
// line a round:
//   {"malformed_us", "refused_us"}: CPU time of a frame of each class
// The difference is the filter's cost: to find the port, to run the program and to drop the packet.
// The program ends with 1 when the filter has not refused every frame.
#include <net/if.h>
#include <sys/ioctl.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "tests/hostile/hostile_frames.h"
#include "tools/namespaces/network_namespace.h"
#include "tools/namespaces/testbed.h"
#include "transport/ports/udp_socket.h"

namespace tarpon::bench {
namespace {

constexpr Rank kAttacked = 0, kStranger = 1;
constexpr std::uint32_t kJob = 0x12345678;
constexpr double kUnlimited = 1e12;  // frames a second

struct Options {
  std::uint32_t rounds = 9;
  std::uint64_t frames = 20'000;  // of each class, in a round
};

[[noreturn]] void die(const std::string& what) {
  std::fprintf(stderr, "hostile_filter: %s\n", what.c_str());
  std::exit(1);
}

const hostile::HostileClass& class_of(std::string_view name) {
  const auto classes = hostile::classes();
  const auto found = std::find_if(classes.begin(), classes.end(),
                                  [name](const auto& one) { return one.name == name; });
  if (found == classes.end()) die("no class " + std::string(name));
  return *found;
}

/// The attacked socket and its address, in the namespace of its rank.
UdpSocket open_attacked(const Testbed& network, hostile::Target& target) {
  std::optional<UdpSocket> socket;
  const auto opened =
      in_network_namespace(network.network_namespace(kAttacked), [&]() -> Result<void> {
        auto made = UdpSocket::open({.address = network.address(kAttacked)});
        if (!made) return fail(made.error());
        made->refuse_strangers(kJob);
        target.address = made->local();
        socket.emplace(std::move(*made));
        ifreq request{};
        target.interface.copy(request.ifr_name, sizeof request.ifr_name - 1);
        if (::ioctl(socket->fd(), SIOCGIFHWADDR, &request) != 0) return fail_system(errno, "MAC");
        std::memcpy(target.mac.data(), request.ifr_hwaddr.sa_data, target.mac.size());
        return {};
      });
  if (!opened) die(opened.error().message);
  return std::move(*socket);
}

double thread_cpu_us() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return 1e6 * static_cast<double>(now.tv_sec) + 1e-3 * static_cast<double>(now.tv_nsec);
}

/// CPU time of one frame of `one`.
double cost_us(hostile::HostileSender& sender, const hostile::HostileClass& one,
               std::uint64_t frames, Random& random) {
  const double before = thread_cpu_us();
  const std::uint64_t sent = sender.send(one, frames, kUnlimited, random);
  if (sent != frames) die("the kernel did not take every frame");
  return (thread_cpu_us() - before) / static_cast<double>(frames);
}

void run(const Options& options) {
  auto network = Testbed::create({});
  if (!network) die(network.error().message);
  hostile::Target target;
  target.interface = network->interface();
  target.job = kJob;
  const UdpSocket attacked = open_attacked(*network, target);
  target.spoofed = *ipv4_address(network->address(kStranger), attacked.port());
  if (const auto entered = network->enter(kStranger); !entered) die(entered.error().message);
  auto sender = hostile::HostileSender::open(target);
  if (!sender) die(sender.error().message);
  Random random(20261125);
  const auto& malformed = class_of("udp_length_beyond");
  const auto& refused = class_of("job_zero");
  for (std::uint32_t round = 0; round < options.rounds; ++round) {
    const std::uint32_t before = attacked.refused();
    const nlohmann::json line{{"malformed_us", cost_us(*sender, malformed, options.frames, random)},
                              {"refused_us", cost_us(*sender, refused, options.frames, random)}};
    if (attacked.refused() - before != options.frames) die("the filter let frames through");
    std::printf("%s\n", line.dump().c_str());
  }
}

}  // namespace
}  // namespace tarpon::bench

int main(int argc, char** argv) {
  tarpon::bench::Options options;
  CLI::App app("What one hostile packet costs the filter of a UDP port.");
  app.add_option("--rounds", options.rounds);
  app.add_option("--frames", options.frames, "of each class, in a round")
      ->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  tarpon::bench::run(options);
  return 0;
}
