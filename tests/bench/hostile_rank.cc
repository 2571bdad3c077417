// What `./dev bench hostile` and `trust` run, under `tarpon testbed` with three ranks: ranks 0 and
// 1 make exact calls, rank 2 is a stranger's host that sends hostile packets
// (tests/hostile/hostile_frames.h) to rank 0, in the name of rank 1.
//
// Usage: hostile_rank BOARD [options]
//   BOARD  an empty file; the processes share it as memory
// Blocks of calls take turns: without hostile packets, with datagrams that the kernel drops before
// it looks for a socket (only if --packets-of names them), with those of strangers (no cookie),
// with those of insiders. In a job with a secret insiders know the cookie, which every packet
// shows, and no key. Rank 0 prints one line for each block:
//   {"packets_of": "nobody"|"malformed"|"strangers"|"insiders", "calls", "cpu_s", "packets",
//   "seconds"}
// CPU time is that of all threads of rank 0, less the filling and checking of buffers. A result
// that is wrong ends the program with 1.
#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <new>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "collectives/communicator.h"
#include "collectives/job_secret.h"
#include "collectives/rendezvous/control.h"
#include "tests/hostile/hostile_frames.h"
#include "tools/system/process_usage.h"
#include "transport/clock.h"
#include "transport/ports/udp_socket.h"
#include "xdp/base/file_descriptor.h"

namespace tarpon::bench {
namespace {

constexpr Rank kStranger = 2;
constexpr std::string_view kMalformed = "udp_length_beyond";
constexpr Duration kPatience = 30s;
constexpr Duration kSettle = 20ms;  // packets that are still under way when a block begins

enum Traffic : int { nobody, malformed, strangers, insiders };
const std::map<std::string, Traffic> kTrafficOf{
    {"nobody", nobody}, {"malformed", malformed}, {"strangers", strangers}, {"insiders", insiders}};

const std::string& name(Traffic traffic) {
  return std::find_if(kTrafficOf.begin(), kTrafficOf.end(),
                      [=](const auto& one) { return one.second == traffic; })
      ->first;
}

struct Board {
  std::atomic<bool> ready = false;  // those below are set
  std::array<std::uint8_t, ETH_ALEN> mac{};
  sockaddr_in address{}, spoofed{};
  std::uint32_t job = 0;
  tarpon_integrity integrity = TARPON_INTEGRITY_UDP;

  std::atomic<int> traffic = nobody;
  std::atomic<bool> over = false;
  std::atomic<std::uint64_t> packets = 0;  // sent so far
};

struct Options {
  std::string board;
  std::string datapath = "uring";
  Rank rank = 0;
  std::string rendezvous, interface;
  std::uint32_t rounds = 3;
  double seconds = 2;  // of a block
  double rate = 2000;  // hostile packets a second
  std::size_t elements = 250'000;
  std::vector<Traffic> packets_of{nobody, strangers, insiders};
  std::string secret_file;  // empty: the job has no secret
};

[[noreturn]] void die(const std::string& what) {
  std::fprintf(stderr, "hostile_rank: %s\n", what.c_str());
  std::exit(1);
}

std::string environment(const char* name) {
  const char* const value = std::getenv(name);
  if (value == nullptr) die(fmt::format("{} is not set: start it with tarpon testbed", name));
  return value;
}

Board& open_board(const std::string& path) {
  const FileDescriptor file(open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (file.get() < 0 || ftruncate(file.get(), sizeof(Board)) != 0) die("no board at " + path);
  void* const memory =
      mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (memory == MAP_FAILED) die("the board cannot be mapped");
  return *static_cast<Board*>(memory);  // zeros are a Board
}

ifreq ask_interface(const std::string& interface, unsigned long question) {
  const FileDescriptor any(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  ifreq request{};
  interface.copy(request.ifr_name, sizeof request.ifr_name - 1);
  if (::ioctl(any.get(), question, &request) != 0) die("no addresses of " + interface);
  return request;
}

std::array<std::uint8_t, ETH_ALEN> mac_of(const std::string& interface) {
  const ifreq answer = ask_interface(interface, SIOCGIFHWADDR);
  std::array<std::uint8_t, ETH_ALEN> mac{};
  std::memcpy(mac.data(), answer.ifr_hwaddr.sa_data, mac.size());
  return mac;
}

std::string address_of(const std::string& interface) {
  const ifreq answer = ask_interface(interface, SIOCGIFADDR);
  sockaddr_in address{};
  std::memcpy(&address, &answer.ifr_addr, sizeof address);
  std::array<char, INET_ADDRSTRLEN> text{};
  return inet_ntop(AF_INET, &address.sin_addr, text.data(), text.size());
}

std::unique_ptr<Communicator> connect(const Options& options) {
  CommunicatorOptions wanted;
  wanted.rendezvous.rank = options.rank;
  wanted.rendezvous.world_size = kStranger;
  wanted.rendezvous.address = options.rendezvous;
  wanted.rendezvous.timeout = kPatience;
  wanted.interface = options.interface;
  wanted.address = address_of(options.interface);
  wanted.mtu = 1500;
  if (!options.secret_file.empty()) {
    auto secret = JobSecret::read_file(options.secret_file);
    if (!secret) die(secret.error().message);
    wanted.rendezvous.secret = std::move(*secret);
  }
  wanted.datapath = options.datapath == "xdp"    ? Datapath::xdp
                    : options.datapath == "mmsg" ? Datapath::mmsg
                                                 : Datapath::uring;
  auto communicator = Communicator::connect(wanted);
  if (!communicator) die(communicator.error().message);
  return std::move(*communicator);
}

// -- the stranger's host
// ---------------------------------------------------------------------------

void send_hostile_packets(const Options& options, Board& board) {
  while (!board.ready) std::this_thread::sleep_for(1ms);
  auto sender = hostile::HostileSender::open({.interface = options.interface,
                                              .mac = board.mac,
                                              .address = board.address,
                                              .spoofed = board.spoofed,
                                              .job = board.job,
                                              .integrity = board.integrity});
  if (!sender) die(sender.error().message);
  Random random(20261123);
  // Each call loses the time by which its last sleep is too long.
  const auto at_once = std::max<std::uint64_t>(16, static_cast<std::uint64_t>(options.rate / 100));
  while (!board.over) {
    const int traffic = board.traffic;
    if (traffic == nobody) std::this_thread::sleep_for(1ms);
    for (const hostile::HostileClass& one : hostile::classes()) {
      const bool fits = one.name == kMalformed                  ? traffic == malformed
                        : one.group == hostile::Group::stranger ? traffic == strangers
                        : one.group == hostile::Group::insider  ? traffic == insiders
                                                                : false;
      if (!fits || board.traffic != traffic) continue;
      board.packets += sender->send(one, at_once, options.rate, random);
    }
  }
}

// -- the ranks of the job
// ---------------------------------------------------------------------------

class Calls {
 public:
  Calls(const Options& options, Communicator& communicator)
      : rank_(options.rank), communicator_(communicator), values_(options.elements) {}

  /// One exact call. Rank 0's `last` reaches both ranks; returns it.
  bool run(bool last) {
    const double before = thread_cpu_seconds();
    std::fill(values_.begin(), values_.end(), static_cast<float>(rank_ + 1));
    values_.back() = last ? 1.0f : 0.0f;
    own_cpu_s_ += thread_cpu_seconds() - before;
    const auto report = communicator_.allreduce({.input = values_.data(),
                                                 .output = values_.data(),
                                                 .count = values_.size(),
                                                 .deadline = kPatience});
    if (!report) die(report.error().message);
    if (report->status != Status::complete) die(report->detail);
    const double after = thread_cpu_seconds();
    for (std::size_t i = 0; i + 1 < values_.size(); ++i) {
      if (values_[i] != 3.0f) die(fmt::format("element {} is wrong: {}", i, values_[i]));
    }
    own_cpu_s_ += thread_cpu_seconds() - after;
    return values_.back() != 0.0f;
  }

  /// What run() has spent so far outside of AllReduce.
  double own_cpu_seconds() const { return own_cpu_s_; }

 private:
  static double thread_cpu_seconds() {
    timespec now{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
  }

  const Rank rank_;
  Communicator& communicator_;
  std::vector<float> values_;
  double own_cpu_s_ = 0;
};

/// Rank 0: calls for `options.seconds`.
void measure(const Options& options, Board& board, Traffic traffic, Calls& calls) {
  board.traffic = traffic;
  std::this_thread::sleep_for(kSettle);
  const std::uint64_t packets = board.packets;
  const double cpu = process_cpu_seconds() - calls.own_cpu_seconds();
  const Time begin = monotonic_now();
  const Time end =
      begin + std::chrono::duration_cast<Duration>(std::chrono::duration<double>(options.seconds));
  std::uint64_t made = 0;
  for (; monotonic_now() < end; ++made) calls.run(false);
  const nlohmann::json line{
      {"packets_of", name(traffic)},
      {"calls", made},
      {"cpu_s", process_cpu_seconds() - calls.own_cpu_seconds() - cpu},
      {"packets", board.packets - packets},
      {"seconds", std::chrono::duration<double>(monotonic_now() - begin).count()}};
  std::printf("%s\n", line.dump().c_str());
  std::fflush(stdout);
}

void publish_target(const Options& options, const Communicator& communicator, std::uint32_t job,
                    Board& board) {
  const std::vector<RankInfo>& ranks = communicator.ranks();
  board.mac = mac_of(options.interface);
  board.address = *ipv4_address(ranks[0].address, ranks[0].port);
  board.spoofed = *ipv4_address(ranks[1].address, ranks[1].port);
  board.job = job;
  board.integrity = communicator.integrity();
  board.ready = true;
}

void run_rank(const Options& options, Board& board) {
  const std::unique_ptr<Communicator> communicator = connect(options);
  Calls calls(options, *communicator);
  if (options.rank == 0) {
    publish_target(options, *communicator, communicator->control().job(), board);
    for (int i = 0; i < 10; ++i) calls.run(false);  // warm-up
    for (std::uint32_t round = 0; round < options.rounds; ++round) {
      for (const Traffic traffic : options.packets_of) measure(options, board, traffic, calls);
    }
    calls.run(true);
    board.over = true;
  } else {
    while (!calls.run(false)) {
    }
  }
  if (const auto closed = communicator->close(kPatience); !closed) die(closed.error().message);
}

Options parse(int argc, char** argv) {
  Options options;
  CLI::App app("One process of ./dev bench hostile and trust");
  app.add_option("board", options.board)->required();
  app.add_option("--datapath", options.datapath)->check(CLI::IsMember({"uring", "mmsg", "xdp"}));
  app.add_option("--rounds", options.rounds);
  app.add_option("--seconds", options.seconds, "of a block")->check(CLI::PositiveNumber);
  app.add_option("--rate", options.rate, "hostile packets a second")->check(CLI::PositiveNumber);
  app.add_option("--elements", options.elements)->check(CLI::PositiveNumber);
  app.add_option("--packets-of", options.packets_of)->transform(CLI::Transformer(kTrafficOf));
  app.add_option("--secret-file", options.secret_file);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error));
  }
  options.rank = static_cast<Rank>(std::stoul(environment("RANK")));
  options.interface = environment("TARPON_SOCKET_IFNAME");
  options.rendezvous = "tcp://" + environment("MASTER_ADDR") + ":" + environment("MASTER_PORT");
  return options;
}

}  // namespace
}  // namespace tarpon::bench

int main(int argc, char** argv) {
  const tarpon::bench::Options options = tarpon::bench::parse(argc, argv);
  tarpon::bench::Board& board = tarpon::bench::open_board(options.board);
  if (options.rank == tarpon::bench::kStranger) {
    tarpon::bench::send_hostile_packets(options, board);
  } else {
    tarpon::bench::run_rank(options, board);
  }
  return 0;
}
