// The upper limit of `./dev bench allreduce`: a Transpose AllReduce over UDP sockets without all
// that a transport adds for reliability. Each rank has one thread. Results are float32 sums, in
// place, in order of arrival.
//
// Usage: minimal_allreduce ITERATIONS WARMUP SIZE...
// with the rank and the world size in RANK and WORLD_SIZE, the address of rank 0 in MASTER_ADDR and
// MASTER_PORT, and sizes in bytes. Timing rule and output are those of gloo_allreduce.cc:
// "SIZE CPU_SECONDS MAX_RSS_KIB TIME_US...". An operation that loses a packet ends 1 s after the
// last packet that arrives. Its time is left out on every rank, and rank 0 reports the number of
// such operations on standard error. Every other result is checked, value by value, outside the
// time.
//
// DESIGN NOTES
// 1. A rank owns a shard of the bucket. It adds what arrives for its shard from the receive buffer,
//    and sends a train of sums to all ranks as soon as the last contribution to it is added. Both
//    are in the cache at that time. Sums of other owners are stored where they belong. Packets name
//    their place, so that their order does not matter.
// 2. Credit costs no packet: a rank sends an owner at most kCredit trains whose sums have not come
//    back. This bounds the data in socket buffers, so that these lose nothing.
// 3. Arrivals go first, as they release credit of other ranks. A rank without work sleeps in poll:
//    with fewer cores than ranks, another one needs the core.
#include <arpa/inet.h>

#include <algorithm>
#include <chrono>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <span>
#include <stdexcept>
#include <vector>

#include "tests/bench/tcp_barrier.h"
#include "tests/bench/udp_trains.h"
#include "tools/system/process_usage.h"

namespace tarpon::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kCredit = 8;
constexpr std::chrono::milliseconds kLossLimit(1000);  // without a packet
constexpr std::size_t kLineValues = 16;                // of a cache line

[[gnu::target_clones("avx512f", "avx2", "default")]] void add(float* __restrict sums,
                                                              const float* __restrict values,
                                                              std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) sums[i] += values[i];
}

/// A bucket of values and the operations on it, in place.
class MinimalAllreduce {
 public:
  /// `network` is connected and outlives this object.
  MinimalAllreduce(UdpTrains& network, std::size_t rank, std::size_t world, std::size_t values)
      : network_(network), rank_(rank), bucket_(values), shards_(world) {
    const std::size_t lines = (values + kLineValues - 1) / kLineValues;
    shard_size_ = std::max((lines + world - 1) / world, std::size_t{1}) * kLineValues;
    for (std::size_t i = 0; i < world; ++i) {
      shards_[i].first = std::min(i * shard_size_, values);
      shards_[i].count = std::min((i + 1) * shard_size_, values) - shards_[i].first;
    }
    missing_.resize((shards_[rank].count + network.capacity() - 1) / network.capacity());
  }

  std::span<float> bucket() { return bucket_; }

  /// Ranks give an operation the same number, and never give a number twice. Returns false when
  /// data is missing at the loss limit.
  bool run(std::uint32_t operation) {
    begin(operation);
    while (outstanding_ > 0) {
      if (receive_train() || send_contribution()) continue;
      if (!network_.wait(kLossLimit)) return false;
    }
    return true;
  }

 private:
  struct Shard {
    std::size_t first = 0;
    std::size_t count = 0;
    std::size_t sent = 0;      // values that this rank has sent to the owner
    std::size_t returned = 0;  // sums that have come back
  };

  void begin(std::uint32_t operation) {
    operation_ = operation;
    for (Shard& shard : shards_) shard.sent = shard.returned = 0;
    const std::size_t others = shards_.size() - 1;
    for (std::size_t i = 0; i < missing_.size(); ++i) missing_[i] = others * own_train(i).size();
    const std::size_t own = shards_[rank_].count;
    outstanding_ = bucket_.size() - own + others * own;
  }

  std::span<float> own_train(std::size_t index) {
    const Shard& own = shards_[rank_];
    const std::size_t at = index * network_.capacity();
    return bucket().subspan(own.first + at, std::min(network_.capacity(), own.count - at));
  }

  bool receive_train() {
    const auto train = network_.receive();
    if (!train) return false;
    for (std::size_t at = 0; at < train->bytes.size(); at += train->packet_bytes) {
      const std::size_t left = train->bytes.size() - at;
      handle_packet(train->bytes.subspan(at, std::min(train->packet_bytes, left)));
    }
    return true;
  }

  void handle_packet(std::span<const std::byte> packet) {
    PacketHeader header{};
    if (packet.size() < sizeof header) return;
    std::memcpy(&header, packet.data(), sizeof header);
    const auto* const values = reinterpret_cast<const float*>(packet.data() + sizeof header);
    const std::size_t count = (packet.size() - sizeof header) / sizeof(float);
    // A lost operation leaves packets in the socket's buffer.
    if (header.operation != operation_ || header.first + count > bucket_.size()) return;
    outstanding_ -= count;
    const std::size_t owner = header.first / shard_size_;
    if (owner == rank_) {
      add(&bucket_[header.first], values, count);
      note_added((header.first - shards_[rank_].first) / network_.capacity(), count);
    } else {
      std::memcpy(&bucket_[header.first], values, count * sizeof(float));
      shards_[owner].returned += count;
    }
  }

  void note_added(std::size_t index, std::size_t count) {
    missing_[index] -= count;
    if (missing_[index] > 0) return;
    for (std::size_t i = 1; i < shards_.size(); ++i) {
      send_train((rank_ + i) % shards_.size(), own_train(index));
    }
  }

  /// The next train to the next rank that has credit; false when there is none.
  bool send_contribution() {
    for (std::size_t i = 1; i < shards_.size(); ++i) {
      turn_ = turn_ + 1 == shards_.size() ? 1 : turn_ + 1;
      const std::size_t owner = (rank_ + turn_) % shards_.size();
      Shard& shard = shards_[owner];
      const std::size_t size = std::min(network_.capacity(), shard.count - shard.sent);
      if (size == 0 || shard.sent - shard.returned >= kCredit * network_.capacity()) continue;
      send_train(owner, bucket().subspan(shard.first + shard.sent, size));
      shard.sent += size;
      return true;
    }
    return false;
  }

  void send_train(std::size_t to, std::span<const float> values) {
    const auto first = static_cast<std::uint32_t>(values.data() - bucket_.data());
    network_.send(to, {operation_, first}, values);
  }

  UdpTrains& network_;
  const std::size_t rank_;
  std::vector<float> bucket_;
  std::size_t shard_size_ = 0;
  std::vector<Shard> shards_;         // by owner
  std::vector<std::size_t> missing_;  // values still to be added to each train of the own shard
  std::size_t outstanding_ = 0;       // values still to arrive
  std::size_t turn_ = 0;              // distance to the rank that was sent to last
  std::uint32_t operation_ = 0;
};

/// A small integer, so that sums are exact in any order. Misplaced values do not match it.
float pattern(std::size_t i) {
  return static_cast<float>(static_cast<std::uint32_t>(i) * 2654435761u >> 22);
}

void fill(std::span<float> values, std::size_t rank) {
  const auto factor = static_cast<float>(rank + 1);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = pattern(i) * factor;
}

void check(std::span<const float> values, std::size_t world) {
  const auto factor = static_cast<float>(world * (world + 1) / 2);
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (values[i] != pattern(i) * factor) throw std::runtime_error("wrong result");
  }
}

struct Job {
  std::size_t rank;
  std::size_t world;
  TcpBarrier& barrier;
  UdpTrains& network;
  std::uint32_t operations = 0;
};

struct Measured {
  std::vector<double> times_us;
  double cpu_s = 0;
};

Measured measure(Job& job, std::size_t bytes, int iterations, int warmup) {
  MinimalAllreduce call(job.network, job.rank, job.world, bytes / sizeof(float));
  Measured result;
  for (int i = 0; i < iterations + warmup; ++i) {
    fill(call.bucket(), job.rank);
    job.barrier.any(false);
    const double cpu_before = process_cpu_seconds();
    const auto start = Clock::now();
    const bool whole = call.run(++job.operations);
    const auto stop = Clock::now();
    const double cpu_after = process_cpu_seconds();
    if (job.barrier.any(!whole)) continue;
    check(call.bucket(), job.world);
    if (i < warmup) continue;
    result.cpu_s += cpu_after - cpu_before;
    result.times_us.push_back(std::chrono::duration<double, std::micro>(stop - start).count());
  }
  return result;
}

void print(const Job& job, std::size_t bytes, int iterations, const Measured& measured) {
  std::printf("%zu %.6f %" PRIu64 " 0 0", bytes, measured.cpu_s, max_resident_kib());
  for (const double time : measured.times_us) std::printf(" %.2f", time);
  std::printf("\n");
  std::fflush(stdout);
  const int lost = iterations - static_cast<int>(measured.times_us.size());
  if (job.rank == 0 && lost > 0) {
    std::fprintf(stderr, "minimal_allreduce: %d of %d operations of %zu bytes lost data\n", lost,
                 iterations, bytes);
  }
}

void run(int rank, int world, const sockaddr_in& root, std::span<char* const> words) {
  TcpBarrier barrier(rank, world, root);
  UdpTrains network(barrier.local());
  network.connect(barrier.gather(network.address()), static_cast<std::size_t>(rank));
  Job job{static_cast<std::size_t>(rank), static_cast<std::size_t>(world), barrier, network};
  const int iterations = std::atoi(words[0]), warmup = std::atoi(words[1]);
  // Resolves the neighbours with small packets. The kernel drops trains that wait for an answer.
  measure(job, job.world * kLineValues * sizeof(float), 1, 0);
  for (const char* const word : words.subspan(2)) {
    const std::size_t bytes = std::strtoull(word, nullptr, 10);
    print(job, bytes, iterations, measure(job, bytes, iterations, warmup));
  }
}

int number_in(const char* variable) {
  const char* const text = std::getenv(variable);
  return text == nullptr ? -1 : std::atoi(text);
}

int main_of(int argc, char** argv) {
  const int rank = number_in("RANK"), world = number_in("WORLD_SIZE");
  const int port = number_in("MASTER_PORT");
  const char* const host = std::getenv("MASTER_ADDR");
  sockaddr_in root{};
  root.sin_family = AF_INET;
  root.sin_port = htons(static_cast<std::uint16_t>(port));
  if (argc < 4 || rank < 0 || rank >= world || world < 2 || port <= 0 || host == nullptr ||
      ::inet_pton(AF_INET, host, &root.sin_addr) != 1) {
    std::fprintf(stderr,
                 "usage: minimal_allreduce ITERATIONS WARMUP SIZE... with RANK, WORLD_SIZE (from 2 "
                 "on), MASTER_ADDR (IPv4) and MASTER_PORT set\n");
    return 2;
  }
  try {
    run(rank, world, root, {argv + 1, static_cast<std::size_t>(argc - 1)});
  } catch (const std::exception& error) {
    std::fprintf(stderr, "minimal_allreduce: %s\n", error.what());
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace tarpon::bench

int main(int argc, char** argv) {
  return tarpon::bench::main_of(argc, argv);
}
