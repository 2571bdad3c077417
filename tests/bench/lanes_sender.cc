// One rank sends full trains to three peers that do not exist, and does some other work for each,
// as a rank does that also receives and adds: what its lanes gain where nothing else limits it.
// Prints one JSON object: {"us": for a train, "cpu_us": processor time of all threads for a train}.
//
// Usage: lanes_sender --address OWN --peers FIRST,SECOND,THIRD --lanes L --work-us W --trains N
#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "transport/clock.h"
#include "transport/ports/udp_socket.h"
#include "transport/ports/uring/uring_port.h"

namespace tarpon::bench {
namespace {

constexpr std::uint32_t kPayload = 1408;
constexpr std::size_t kTrainsAtOnce = 4;  // as the engine offers them
constexpr std::size_t kBucket = 25 << 20;

struct Options {
  std::string address;
  std::vector<std::string> peers;
  std::uint32_t lanes = 1;
  std::uint32_t work_us = 10;
  std::size_t trains = 4000;
};

[[noreturn]] void die(const std::string& what) {
  std::fprintf(stderr, "lanes_sender: %s\n", what.c_str());
  std::exit(1);
}

template <typename T>
T value_or_die(Result<T> result) {
  if (!result) die(result.error().message);
  return std::move(*result);
}

std::unique_ptr<Port> make_port(const Options& options) {
  UdpSocket socket = value_or_die(UdpSocket::open({.address = options.address}));
  std::vector<sockaddr_in> ranks{socket.local()};
  for (const std::string& peer : options.peers) {
    ranks.push_back(value_or_die(ipv4_address(peer, 9)));
  }
  return value_or_die(make_uring_port(std::move(socket), std::move(ranks),
                                      {.max_payload = kPayload, .lanes = options.lanes}));
}

class Sender {
 public:
  Sender(const Options& options, Port& port) : options_(options), port_(port), bucket_(kBucket) {}

  /// Until the port holds nothing more.
  void send(std::size_t trains) {
    for (std::size_t left = trains * port_.capabilities().burst; left > 0 || port_.unsent() > 0;) {
      const Time now = monotonic_now();
      if (!port_.receive(now).empty()) die("a packet came");
      const std::size_t sent = fill_and_send(left);
      left -= sent;
      if (sent == 0) port_.wait(now, now + 10ms);
    }
  }

 private:
  std::size_t fill_and_send(std::size_t most) {
    const std::size_t train = port_.capabilities().burst;
    const auto frames = port_.transmit_frames(std::min(most, train * kTrainsAtOnce));
    for (TxPacket& packet : frames) {
      if (place_ + kPayload > bucket_.size()) place_ = 0;
      std::memset(packet.header, 0, TARPON_HEADER_BYTES);
      packet.peer = static_cast<Rank>(1 + packets_ / train % options_.peers.size());
      packet.length = kPayload;
      packet.payload = &bucket_[place_];
      packet.lender = 1;
      place_ += kPayload;
      if (++packets_ % train == 0) work();
    }
    port_.transmit(frames);
    return frames.size();
  }

  void work() const {
    const Time end = monotonic_now() + options_.work_us * 1us;
    while (monotonic_now() < end) {
    }
  }

  const Options& options_;
  Port& port_;
  std::vector<std::byte> bucket_;
  std::size_t place_ = 0;
  std::size_t packets_ = 0;
};

double processor_us() {
  rusage used{};
  ::getrusage(RUSAGE_SELF, &used);
  const auto us = [](const timeval& time) {
    return 1e6 * static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec);
  };
  return us(used.ru_utime) + us(used.ru_stime);
}

int main_of(int argc, char** argv) {
  Options options;
  CLI::App app{"Trains through a port with lanes, to nobody"};
  app.add_option("--address", options.address, "of this host, IPv4")->required();
  app.add_option("--peers", options.peers, "addresses, with commas")->delimiter(',')->required();
  app.add_option("--lanes", options.lanes)->check(CLI::Range(1, 4));
  app.add_option("--work-us", options.work_us, "beside each train");
  app.add_option("--trains", options.trains);
  CLI11_PARSE(app, argc, argv);
  const std::unique_ptr<Port> port = make_port(options);
  Sender sender(options, *port);
  sender.send(options.trains / 10);
  const Time start = monotonic_now();
  const double before = processor_us();
  sender.send(options.trains);
  const double trains = static_cast<double>(options.trains);
  const double us = std::chrono::duration<double, std::micro>(monotonic_now() - start).count();
  const nlohmann::json result = {{"us", us / trains},
                                 {"cpu_us", (processor_us() - before) / trains}};
  if (port->statistics().tx_dropped > 0) die("the kernel refused packets");
  std::printf("%s\n", result.dump().c_str());
  return 0;
}

}  // namespace
}  // namespace tarpon::bench

int main(int argc, char** argv) {
  return tarpon::bench::main_of(argc, argv);
}
