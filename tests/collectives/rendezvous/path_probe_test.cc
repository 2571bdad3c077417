// Probes between threads over loopback, through ports that lose large packets.
#include "collectives/rendezvous/path_probe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <thread>

#include "transport/clock.h"
#include "transport/ports/fault_port.h"
#include "transport/ports/forwarding_port.h"
#include "transport/ports/mmsg_port.h"
#include "transport/ports/udp_socket.h"
#include "transport/probe_packet.h"

namespace tarpon::rendezvous::path_probe_test {
namespace {

using ::testing::HasSubstr;

constexpr std::uint32_t kFull = 1408;

/// Loses without a word what is longer than `limit(peer)` bytes of IPv4 packet.
class LimitedPort : public ForwardingPort {
 public:
  using Limit = std::function<std::uint32_t(Rank peer)>;
  LimitedPort(std::unique_ptr<Port> inner, Limit limit)
      : ForwardingPort(std::move(inner)), limit_(std::move(limit)) {}

  void transmit(std::span<TxPacket> packets) override {
    for (TxPacket& packet : packets) {
      if (packet_bytes(packet.length) > limit_(packet.peer)) packet.peer = kNobody;
    }
    ForwardingPort::transmit(packets);
  }

 private:
  static constexpr Rank kNobody = 1000;  // the port below drops it
  Limit limit_;
};

/// What differs from a healthy job of ranks that start together.
struct Job {
  std::uint32_t ranks = 3;
  std::function<std::uint32_t(Rank from, Rank to)> limit = [](Rank, Rank) { return 1500; };
  FaultOptions faults = {};
  std::function<void(Rank, const std::vector<sockaddr_in>&, std::uint32_t job)> before_begin =
      [](Rank, const auto&, std::uint32_t) {};
  std::optional<Rank> leaves = {};  // after begin()
};

struct Outcome {
  std::vector<Result<PathSize>> sizes;
  std::vector<std::uint64_t> sent;    // packets, by rank
  std::vector<std::uint8_t> blocked;  // by rank
  Duration longest{};
};

class Rig {
 public:
  explicit Rig(const Job& job) : job_(job) {
    for (std::uint32_t rank = 0; rank < job.ranks; ++rank) {
      auto socket = UdpSocket::open({});
      if (!socket) throw std::runtime_error(socket.error().message);
      addresses_.push_back(socket->local());
      sockets_.push_back(std::move(*socket));
      RankInfo info;
      info.host = "here";
      info.address = "127.0.0.1";
      info.mtu = 1500;
      infos_.push_back(std::move(info));
    }
  }

  Outcome run() {
    Outcome outcome{std::vector<Result<PathSize>>(job_.ranks, fail(Error::Code::io, "did not run")),
                    std::vector<std::uint64_t>(job_.ranks),
                    std::vector<std::uint8_t>(job_.ranks),
                    {}};
    std::vector<std::thread> threads;
    std::vector<Duration> times(job_.ranks);
    for (std::uint32_t rank = 0; rank < job_.ranks; ++rank) {
      threads.emplace_back([&, rank] {
        outcome.sizes[rank] = probe(static_cast<Rank>(rank), outcome, times[rank]);
      });
    }
    for (std::thread& thread : threads) thread.join();
    outcome.longest = *std::max_element(times.begin(), times.end());
    std::filesystem::remove(file_);
    return outcome;
  }

 private:
  Result<PathSize> probe(Rank rank, Outcome& outcome, Duration& time) {
    auto control = ControlChannel::join({.rank = rank,
                                         .world_size = job_.ranks,
                                         .address = "file://" + file_,
                                         .listener = nullptr,
                                         .agreed = ""});
    if (!control) return fail(control.error());
    const std::uint32_t cookie = (*control)->job();
    auto made = make_mmsg_port(std::move(sockets_[rank]), addresses_,
                               {.max_payload = kFull, .job = cookie}, {});
    if (!made) return fail(made.error());
    std::unique_ptr<Port> port = std::make_unique<LimitedPort>(
        std::move(*made), [this, rank](Rank peer) { return job_.limit(rank, peer); });
    FaultOptions faults = job_.faults;
    faults.seed += rank;
    if (faults.any()) port = std::make_unique<FaultPort>(std::move(port), faults);
    const Time deadline = monotonic_now() + 30s;
    if (auto met = (*control)->all_gather("", deadline); !met) return fail(met.error());
    const Time start = monotonic_now();
    PathProbe probe(*port, **control, kFull);
    job_.before_begin(rank, addresses_, cookie);
    probe.begin();
    if (auto met = (*control)->all_gather("", deadline); !met) return fail(met.error());
    if (job_.leaves == rank) return fail(Error::Code::io, "left");
    auto size = probe.finish(infos_, deadline);
    outcome.blocked[rank] = probe.blocked();
    time = monotonic_now() - start;
    outcome.sent[rank] = port->statistics().tx_packets + port->statistics().tx_dropped;
    return size;
  }

  static std::string next_file() {
    static std::atomic<int> next = 0;
    return ::testing::TempDir() + "tarpon-path-" + std::to_string(::getpid()) + "-" +
           std::to_string(next++);
  }

  const Job job_;
  const std::string file_ = next_file();
  std::vector<UdpSocket> sockets_;
  std::vector<sockaddr_in> addresses_;
  std::vector<RankInfo> infos_;
};

/// The slot that all ranks took, for one reason; 0, with a failed test, when they differ.
std::uint32_t slot_of(const Outcome& outcome, std::string* reason = nullptr) {
  for (const auto& size : outcome.sizes) {
    if (!size) {
      ADD_FAILURE() << size.error().message;
      return 0;
    }
    EXPECT_EQ(size->slot_bytes, outcome.sizes[0]->slot_bytes);
    EXPECT_EQ(size->reason, outcome.sizes[0]->reason);
  }
  if (reason != nullptr) *reason = outcome.sizes[0]->reason;
  return outcome.sizes[0]->slot_bytes;
}

TEST(PathProbeTest, healthy__costs_one_packet_a_pair) {
  const Outcome outcome = Rig({.ranks = 8}).run();
  std::string reason;
  EXPECT_EQ(slot_of(outcome, &reason), kFull);
  EXPECT_EQ(reason, "");
  for (const std::uint64_t sent : outcome.sent) EXPECT_EQ(sent, 7u);
}

TEST(PathProbeTest, one_direction__shrinks_the_slots_of_all) {
  const Outcome outcome =
      Rig({.limit = [](Rank from, Rank to) { return from == 0 && to == 2 ? 1400u : 1500u; }}).run();
  std::string reason;
  EXPECT_EQ(slot_of(outcome, &reason), 1280u);
  EXPECT_EQ(reason,
            "slots shrink to 1280 bytes: rank 0 -> rank 2 carries packets of 1372 bytes and none "
            "of 1436 (interface MTU 1500)");
}

TEST(PathProbeTest, every_pair__shrinks_to_the_smallest) {
  const Outcome outcome =
      Rig({.limit = [](Rank from, Rank) { return from == 1 ? 576u : 1450u; }}).run();
  EXPECT_EQ(slot_of(outcome), TARPON_MIN_PAYLOAD);
}

TEST(PathProbeTest, below_the_smallest_slot__is_an_error_of_all_ranks) {
  const Outcome outcome =
      Rig({.limit = [](Rank from, Rank to) { return from == 2 && to == 1 ? 500u : 1500u; }}).run();
  for (const auto& size : outcome.sizes) {
    ASSERT_FALSE(size);
    EXPECT_THAT(size.error().message, HasSubstr("rank 2 (here, 127.0.0.1) -> rank 1"));
    EXPECT_THAT(size.error().message, HasSubstr("only packets below 540 bytes arrive"));
  }
}

TEST(PathProbeTest, blocked__is_an_error_of_all_ranks_before_their_deadline) {
  const Outcome outcome =
      Rig({.limit = [](Rank from, Rank to) { return from == 0 && to == 1 ? 0u : 1500u; }}).run();
  for (const auto& size : outcome.sizes) {
    ASSERT_FALSE(size);
    EXPECT_THAT(size.error().message, HasSubstr("rank 0 (here, 127.0.0.1) -> rank 1"));
    EXPECT_THAT(size.error().message, HasSubstr("nothing arrives"));
  }
  EXPECT_THAT(outcome.blocked, ::testing::Each(1));
  EXPECT_LT(outcome.longest, 10s) << "of 30 s";
}

TEST(PathProbeTest, a_rank_leaves__is_an_error_of_the_others_and_no_blocked_path) {
  const Outcome outcome = Rig({.leaves = 2}).run();
  for (const Rank rank : {Rank{0}, Rank{1}}) {
    ASSERT_FALSE(outcome.sizes[rank]);
    EXPECT_EQ(outcome.sizes[rank].error().code, Error::Code::unavailable);
    EXPECT_THAT(outcome.sizes[rank].error().message, HasSubstr("control channel of rank 2"));
    EXPECT_FALSE(outcome.blocked[rank]);
  }
}

TEST(PathProbeTest, losses__shrink_nothing) {
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    SCOPED_TRACE(seed);
    const Outcome outcome =
        Rig({.ranks = 6,
             .faults = {.loss = 0.3, .duplicate = 0.1, .reorder = 0.2, .seed = seed * 100}})
            .run();
    EXPECT_EQ(slot_of(outcome), kFull);
  }
}

TEST(PathProbeTest, losses_and_a_small_path__shrink_to_what_it_carries) {
  const Outcome outcome = Rig({.ranks = 4,
                               .limit = [](Rank from, Rank) { return from == 3 ? 1400u : 1500u; },
                               .faults = {.loss = 0.1, .seed = 7}})
                              .run();
  EXPECT_EQ(slot_of(outcome), 1280u);
}

TEST(PathProbeTest, late_rank__shrinks_nothing) {
  const Outcome outcome = Rig({.before_begin = [](Rank rank, const auto&, std::uint32_t) {
                            if (rank == 1) std::this_thread::sleep_for(200ms);
                          }}).run();
  EXPECT_EQ(slot_of(outcome), kFull);
  for (const std::uint64_t sent : outcome.sent) EXPECT_EQ(sent, 2u);
}

/// Sends rank 0 probes of the full size as rank 1 would, from another address.
void forge(const std::vector<sockaddr_in>& ranks, std::uint32_t job) {
  std::vector<std::byte> packet(TARPON_HEADER_BYTES + kFull);
  TxPacket frame;
  frame.header = packet.data();
  frame.room = packet.data() + TARPON_HEADER_BYTES;
  fill_probe(frame, {TARPON_PROBE, TARPON_PROBE_PATH, 0, kFull}, job, 1, 0);
  auto stranger = UdpSocket::open({});
  ASSERT_TRUE(stranger);
  for (int i = 0; i < 20; ++i) {
    ASSERT_EQ(::sendto(stranger->fd(), packet.data(), packet.size(), 0,
                       reinterpret_cast<const sockaddr*>(ranks.data()), sizeof ranks[0]),
              static_cast<ssize_t>(packet.size()));
  }
}

TEST(PathProbeTest, strangers__prove_nothing) {
  for (const std::uint32_t wrong : {0u, 1u}) {  // with the cookie, and without
    const Outcome outcome = Rig({.ranks = 2,
                                 .limit = [](Rank from, Rank) { return from == 1 ? 1400u : 1500u; },
                                 .before_begin =
                                     [wrong](Rank rank, const auto& ranks, std::uint32_t job) {
                                       if (rank == 0) forge(ranks, job ^ wrong);
                                     }})
                                .run();
    EXPECT_EQ(slot_of(outcome), 1280u);
  }
}

}  // namespace
}  // namespace tarpon::rendezvous::path_probe_test
