// The same traffic as xdp_minimal's, through Tarpon's ports: packets with a valid header that the
// XDP program lets into the ring, counted behind Port::receive().
//
// Usage: xdp_port_pair send|receive --interface IFACE --address ADDR --peer ADDR [options]
// Start the receiver first, and the sender once it has printed "ready". The receiver measures for
// --seconds from the first packet on; the sender sends a little longer than that, as fast as the
// port takes packets. Bytes are those of Ethernet frames. Prints one line of JSON.
#include <net/if.h>
#include <netinet/in.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <vector>

#include "bpf/packet.h"
#include "collectives/engine/kernels/reduce.h"
#include "tests/bench/pause.h"
#include "tools/system/process_usage.h"
#include "transport/clock.h"
#include "transport/integrity.h"
#include "transport/ports/mmsg_port.h"
#include "transport/ports/uring/uring_port.h"
#include "transport/ports/xdp/xdp_port.h"

namespace tarpon::bench {
namespace {

constexpr std::size_t kBatch = 64;
constexpr std::uint16_t kUdpPort = 47000;
constexpr std::uint32_t kJob = 5;
constexpr std::uint32_t kMultiBufferPayload = 8896;
constexpr std::size_t kBufferBytes = 256 << 10;  // of the source and of the sink: both stay in L2
constexpr Duration kPatience = 10s;              // for the first packet
constexpr Duration kSendLonger = 100ms;          // than the receiver measures

/// What happens to payloads.
enum class Work {
  bare,    // nothing
  reduce,  // the source writes them into the frame (or lends them), the sink adds them
  crc,     // as reduce, and CRC32C is made and checked as the endpoint does
};

struct Options {
  std::string role;
  std::string interface;
  std::string address;
  std::string peer;
  std::string datapath = "xdp";
  xdp::CopyMode copy = xdp::CopyMode::automatic;
  std::uint32_t queue = 0;
  std::uint32_t frame_bytes = 1442;
  std::uint32_t gso_segments = 1;
  bool multi_buffer = false;
  Work work = Work::bare;
  double seconds = 0.5;
  double spin_us = 20;  // looked again before a receiver sleeps

  std::uint32_t payload() const {
    return frame_bytes - static_cast<std::uint32_t>(TARPON_FRAME_HEADER_BYTES);
  }
};

[[noreturn]] void die(const std::string& what) {
  std::fprintf(stderr, "xdp_port_pair: %s\n", what.c_str());
  std::exit(1);
}

template <typename T>
T value_or_die(Result<T> result) {
  if (!result) die(result.error().message);
  return std::move(*result);
}

/// Rank 0 sends, rank 1 receives.
std::unique_ptr<Port> make_port(const Options& options) {
  auto socket = value_or_die(UdpSocket::open({.address = options.address, .port = kUdpPort}));
  const sockaddr_in mine = socket.local();
  const sockaddr_in other = value_or_die(ipv4_address(options.peer, kUdpPort));
  std::vector<sockaddr_in> peers = {mine, other};
  if (options.role == "receive") std::swap(peers[0], peers[1]);
  const std::uint32_t rounded =
      (options.payload() + kPayloadStep - 1) / kPayloadStep * kPayloadStep;
  const std::uint32_t largest = std::max(kPayloadStep, rounded);
  const UdpPortOptions udp{.max_payload = largest, .gso_segments = options.gso_segments};
  if (options.datapath == "mmsg") {
    return value_or_die(make_mmsg_port(std::move(socket), peers, udp));
  }
  if (options.datapath == "uring") {
    return value_or_die(make_uring_port(std::move(socket), peers, udp));
  }
  const unsigned index = ::if_nametoindex(options.interface.c_str());
  auto program = value_or_die(xdp::Program::use(index, xdp::AttachMode::native));
  const XdpPortOptions wanted{.interface = index,
                              .queues = {options.queue},
                              .job = kJob,
                              .max_payload = options.multi_buffer ? kMultiBufferPayload : largest,
                              .copy = options.copy};
  auto queues = value_or_die(XdpQueues::open(wanted));
  return value_or_die(make_xdp_port(std::move(socket),
                                    std::make_unique<xdp::OwnAccess>(std::move(program)),
                                    std::move(queues), peers, wanted));
}

/// What happened between two moments.
class Window {
 public:
  explicit Window(const Port& port)
      : start_(monotonic_now()), cpu_(process_cpu_seconds()), before_(port.statistics()) {}

  Time start() const { return start_; }

  void print(const Options& options, const Port& port, std::uint64_t wrong) const {
    const PortStatistics after = port.statistics();
    const std::uint64_t packets = after.rx_packets - before_.rx_packets;
    const std::uint64_t lower = TARPON_FRAME_HEADER_BYTES - TARPON_HEADER_BYTES;
    const nlohmann::json json = {
        {"role", options.role},
        {"frame", options.frame_bytes},
        {"seconds", std::chrono::duration<double>(monotonic_now() - start_).count()},
        {"packets", packets},
        {"bytes", after.rx_bytes - before_.rx_bytes + packets * lower},
        {"lost", after.rx_overruns - before_.rx_overruns},
        {"sent", after.tx_packets - before_.tx_packets},
        {"not_sent", after.tx_dropped - before_.tx_dropped},
        {"system_calls", after.system_calls - before_.system_calls},
        {"waits", after.waits - before_.waits},
        {"slow_path", after.slow_path},
        {"wrong", wrong},
        {"cpu_s", process_cpu_seconds() - cpu_}};
    std::printf("%s\n", json.dump().c_str());
  }

 private:
  Time start_;
  double cpu_;
  PortStatistics before_;
};

/// Where payloads come from: a buffer of ones that is walked through again and again.
class Source {
 public:
  Source(const Options& options, const PortCapabilities& port)
      : work_(options.work),
        gathers_(port.gathers),
        length_(options.payload()),
        values_(kBufferBytes / sizeof(float), 1.0f) {
    header_.magic = TARPON_MAGIC;
    header_.version = TARPON_WIRE_VERSION;
    header_.type = TARPON_DATA;
    header_.job = kJob;
    header_.length = static_cast<std::uint16_t>(length_);
    if (work_ == Work::crc) header_.flags = TARPON_INTEGRITY_CRC32C << TARPON_INTEGRITY_SHIFT;
  }

  void fill(TxPacket& frame) {
    frame.peer = 1;
    frame.length = length_;
    frame.payload = frame.room;
    std::memcpy(frame.header, &header_, sizeof header_);
    if (work_ == Work::bare) return;
    const std::byte* const from = take();
    if (gathers_) {
      frame.payload = from;
    } else {
      std::memcpy(frame.room, from, length_);
    }
    if (work_ != Work::crc) return;
    const std::uint32_t check = packet_check(header_, {frame.payload, length_});
    std::memcpy(frame.header + offsetof(tarpon_header, check), &check, sizeof check);
  }

 private:
  const std::byte* take() {
    if (at_ + length_ > kBufferBytes) at_ = 0;
    const auto* const from = reinterpret_cast<const std::byte*>(values_.data()) + at_;
    at_ += (length_ + sizeof(float) - 1) / sizeof(float) * sizeof(float);
    return from;
  }

  const Work work_;
  const bool gathers_;
  const std::uint32_t length_;
  std::vector<float> values_;
  std::size_t at_ = 0;
  tarpon_header header_{};
};

/// Where they go: a buffer to which they are added, walked through in the same way.
class Sink {
 public:
  explicit Sink(Work work)
      : work_(work),
        kernels_(reduce_kernels(DataType::float32, ReduceOp::sum)),
        sums_(kBufferBytes / sizeof(float), 0.0f) {}

  void take(const RxPacket& packet) {
    if (work_ == Work::bare) return;
    const std::span payload(packet.data + TARPON_HEADER_BYTES, packet.length - TARPON_HEADER_BYTES);
    if (work_ == Work::crc) {
      tarpon_header header;
      std::memcpy(&header, packet.data, sizeof header);
      if (packet_check(header, payload) != header.check) ++wrong_;
    }
    const std::size_t elements = payload.size() / sizeof(float);
    if (at_ + elements > sums_.size()) at_ = 0;
    kernels_.only.combine(&sums_[at_], &sums_[at_], payload.data(), elements);
    at_ += elements;
    added_ += elements;
  }

  /// Packets with a wrong checksum; where every one was added once, the ones add up.
  std::uint64_t wrong() const {
    const double total = std::accumulate(sums_.begin(), sums_.end(), 0.0);
    return wrong_ + (total == static_cast<double>(added_) ? 0 : 1);
  }

 private:
  const Work work_;
  const ReduceKernels& kernels_;
  std::vector<float> sums_;
  std::size_t at_ = 0;
  std::uint64_t added_ = 0;
  std::uint64_t wrong_ = 0;
};

void check(const Port& port) {
  if (const auto error = port.failure()) die(error->message);
}

void run_sender(const Options& options, Port& port) {
  Source source(options, port.capabilities());
  const Window window(port);
  const Time until =
      window.start() + kSendLonger +
      std::chrono::duration_cast<Duration>(std::chrono::duration<double>(options.seconds));
  for (Time now = window.start(); now < until; now = monotonic_now()) {
    const std::span<TxPacket> frames = port.transmit_frames(kBatch);
    if (frames.empty()) {
      check(port);
      port.wait(now, now + 1ms);
      continue;
    }
    for (TxPacket& frame : frames) source.fill(frame);
    port.transmit(frames);
  }
  window.print(options, port, 0);
}

/// One batch; its size.
std::size_t take(Port& port, Time now, Sink& sink) {
  const std::span<const RxPacket> packets = port.receive(now);
  for (const RxPacket& packet : packets) sink.take(packet);
  return packets.size();
}

void run_receiver(const Options& options, Port& port) {
  Sink sink(options.work);
  std::printf("ready\n");
  std::fflush(stdout);
  const Time patience = monotonic_now() + kPatience;
  while (take(port, monotonic_now(), sink) == 0) {
    check(port);
    if (monotonic_now() > patience) die("no packet came in 10 s");
    port.wait(monotonic_now(), patience);
  }
  const Window window(port);
  const Time until = window.start() + std::chrono::duration_cast<Duration>(
                                          std::chrono::duration<double>(options.seconds));
  const auto spin = std::chrono::duration_cast<Duration>(
      std::chrono::duration<double, std::micro>(options.spin_us));
  Time busy = window.start();
  for (Time now = busy; now < until; now = monotonic_now()) {
    if (take(port, now, sink) > 0) {
      busy = now;
    } else if (now - busy > spin) {
      check(port);
      port.wait(now, now + 100ms);
    } else {
      pause_a_little();
    }
  }
  window.print(options, port, sink.wrong());
}

void add_options(CLI::App& app, Options& options) {
  app.add_option("role", options.role)->required()->check(CLI::IsMember({"send", "receive"}));
  app.add_option("--interface", options.interface)->required();
  app.add_option("--address", options.address, "of this side, IPv4")->required();
  app.add_option("--peer", options.peer, "address of the other side")->required();
  app.add_option("--datapath", options.datapath)->check(CLI::IsMember({"xdp", "uring", "mmsg"}));
  app.add_option("--copy", options.copy)
      ->transform(CLI::CheckedTransformer(
          std::map<std::string, xdp::CopyMode>{{"auto", xdp::CopyMode::automatic},
                                               {"copy", xdp::CopyMode::copy},
                                               {"zero-copy", xdp::CopyMode::zero_copy}}));
  app.add_option("--queue", options.queue)->check(CLI::Range(0, 63));
  app.add_option("--frame", options.frame_bytes, "bytes, Ethernet header included")
      ->check(CLI::Range(static_cast<int>(TARPON_FRAME_HEADER_BYTES), 9002));
  app.add_option("--gso-segments", options.gso_segments, "uring, mmsg: packets in a train (1)")
      ->check(CLI::Range(1, 64));
  app.add_flag("--multi-buffer", options.multi_buffer);
  app.add_option("--work", options.work, "with payloads")
      ->transform(CLI::CheckedTransformer(std::map<std::string, Work>{
          {"bare", Work::bare}, {"reduce", Work::reduce}, {"crc", Work::crc}}));
  app.add_option("--seconds", options.seconds)->check(CLI::Range(0.01, 60.0));
  app.add_option("--spin-us", options.spin_us, "before a receiver sleeps (20)");
}

int main_of(int argc, char** argv) {
  Options options;
  CLI::App app{"Packets through one of Tarpon's ports, one way, as fast as it takes them"};
  add_options(app, options);
  CLI11_PARSE(app, argc, argv);
  if (options.payload() > xdp_single_buffer_payload() && options.datapath == "xdp" &&
      !options.multi_buffer) {
    die("a frame of " + std::to_string(options.frame_bytes) + " bytes needs --multi-buffer");
  }
  const std::unique_ptr<Port> port = make_port(options);
  if (options.role == "receive") {
    run_receiver(options, *port);
  } else {
    run_sender(options, *port);
  }
  return 0;
}

}  // namespace
}  // namespace tarpon::bench

int main(int argc, char** argv) {
  return tarpon::bench::main_of(argc, argv);
}
