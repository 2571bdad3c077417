// What a stranger can do to a job with a secret: nothing, but move the counters of forged and of
// replayed packets. Judged by twins that are alike but for the stranger. After its packets
//   a pair of ports hands on the same packets, and sends the same bytes, as the pair without;
//   a whole job leaves the same trace (each packet at its time, each byte of the results), the same
//   statuses and drop counters, and the two counters have moved by the number of its packets.
#include "tools/simulation/stranger.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <map>
#include <tuple>
#include <utility>

#include "tests/support/sanitized.h"
#include "tools/simulation/seal_ledger.h"
#include "tools/simulation/simulation.h"
#include "transport/ports/forwarding_port.h"
#include "transport/ports/sealed_port.h"
#include "transport/rank_mask.h"
#include "transport/simulated/simulated_port.h"

namespace tarpon::stranger_test {
namespace {

using testing::IsEmpty;

constexpr const char* kActs[] = {"again",  "old",   "reflect", "redirect", "rename", "truncate",
                                 "extend", "alter", "header",  "number",   "splice"};
static_assert(std::size(kActs) == kStrangerActs);

std::uint32_t check_of(std::span<const std::byte> bytes) {
  tarpon_header header;
  std::memcpy(&header, bytes.data(), sizeof header);
  return header.check;
}

bool goes_to_all(std::span<const std::byte> bytes) {
  return check_of(bytes) >> 31 != 0;
}

// ---- ports

constexpr Rank kRanks = 3;

/// Sealed ports, and all that they send.
class Ports final : public SimulatedTraffic {
 public:
  Ports(bool encrypts, unsigned packets_of_key_shift) {
    network.watch(this);
    for (Rank rank = 0; rank < kRanks; ++rank) {
      SealOptions options{.rank = rank,
                          .ranks = kRanks,
                          .encrypts = encrypts,
                          .packets_of_key_shift = packets_of_key_shift};
      options.key.fill(std::byte{9});
      ports.push_back(std::make_unique<SealedPort>(network.make_port(rank), options,
                                                   ledger.next_port(seal::fastest_library())));
    }
  }
  Route route(Time now, Rank from, Rank to, std::span<const std::byte> packet) override {
    wire.push_back({from, to, {packet.begin(), packet.end()}});
    return {.not_before = now + 500us};  // those of the stranger come first
  }
  void ended(Time, Rank, Rank, std::span<const std::byte>, std::string_view) override {}

  void send(Rank from, Rank to, std::uint8_t type) {
    TxPacket& frame = ports[from]->transmit_frames(1)[0];
    tarpon_header header{};
    header.magic = TARPON_MAGIC;
    header.version = TARPON_WIRE_VERSION;
    header.type = type;
    header.sender = from;
    header.length = 64;
    std::memcpy(frame.header, &header, sizeof header);
    frame.peer = to;
    frame.length = header.length;
    frame.payload = frame.room;
    frame.lender = kNoLender;
    std::memset(frame.room, ++sent, header.length);
    ports[from]->transmit({&frame, 1});
  }
  /// What `rank` hands on: source and bytes.
  std::vector<std::pair<Rank, std::vector<std::byte>>> receive(Rank rank) {
    network.advance_to(network.now() + 1ms);
    std::vector<std::pair<Rank, std::vector<std::byte>>> result;
    for (const RxPacket& packet : ports[rank]->receive(network.now())) {
      result.emplace_back(packet.source,
                          std::vector<std::byte>(packet.data, packet.data + packet.length));
    }
    return result;
  }

  SimulatedNetwork network{{.ranks = kRanks, .jitter = 0us, .multicasts = true}};
  SealLedger ledger;
  std::vector<std::unique_ptr<SealedPort>> ports;
  std::vector<StrangerPacket> wire;
  int sent = 0;
};

/// The same packets in both; the stranger's in one.
class Twins {
 public:
  Twins(bool encrypts, unsigned packets_of_key_shift = 22)
      : quiet(encrypts, packets_of_key_shift), attacked(encrypts, packets_of_key_shift) {}

  void send(Rank from, Rank to, std::uint8_t type) {
    quiet.send(from, to, type);
    attacked.send(from, to, type);
  }
  /// What comes, and has to be alike.
  void expect_alike() {
    for (Rank rank = 0; rank < kRanks; ++rank) {
      EXPECT_EQ(quiet.receive(rank), attacked.receive(rank)) << "at rank " << rank;
    }
  }
  /// Gives a packet of the stranger to its receiver: one counter moves, and nothing comes of it.
  void offer(const StrangerPacket& packet, bool counts_as_replay, const std::string& what) {
    const PortStatistics before = attacked.ports[packet.to]->statistics();
    attacked.network.inject(packet.from, packet.to, packet.bytes);
    EXPECT_THAT(attacked.receive(packet.to), IsEmpty()) << what;
    const PortStatistics after = attacked.ports[packet.to]->statistics();
    EXPECT_EQ(after.rx_forged - before.rx_forged, counts_as_replay ? 0u : 1u) << what;
    EXPECT_EQ(after.rx_replayed - before.rx_replayed, counts_as_replay ? 1u : 0u) << what;
    ++offered;
  }
  /// Packets of all directions: all of them still come, and all sent bytes were alike.
  void expect_nothing_changed() {
    for (int round = 0; round < 3; ++round) {
      for (Rank from = 0; from < kRanks; ++from) {
        for (const Rank to : {Rank{0}, Rank{1}, Rank{2}, kAllRanks}) {
          if (to != from) send(from, to, TARPON_DATA);
        }
      }
      expect_alike();
    }
    ASSERT_EQ(quiet.wire.size(), attacked.wire.size());
    for (std::size_t i = 0; i < quiet.wire.size(); ++i) {
      ASSERT_EQ(quiet.wire[i].bytes, attacked.wire[i].bytes) << "packet " << i;
    }
    EXPECT_THAT(attacked.ledger.wrong(), IsEmpty());
    std::uint64_t counted = 0;
    for (const auto& port : attacked.ports) {
      counted += port->statistics().rx_forged + port->statistics().rx_replayed;
    }
    EXPECT_EQ(counted, offered);
  }

  Ports quiet, attacked;
  std::uint64_t offered = 0;
};

class StrangerPortTest : public ::testing::TestWithParam<std::tuple<bool, bool>> {
 protected:
  bool encrypts() const { return std::get<0>(GetParam()); }
  Rank receiver() const { return std::get<1>(GetParam()) ? kAllRanks : Rank{1}; }
};

TEST_P(StrangerPortTest, each_act__on_each_type_of_packet__moves_one_counter) {
  for (std::uint8_t type = 1; type < TARPON_TYPE_END; ++type) {
    for (std::size_t i = 0; i < kStrangerActs; ++i) {
      const auto act = static_cast<StrangerAct>(i);
      const std::string what = std::string(kActs[i]) + " of type " + std::to_string(type);
      SCOPED_TRACE(what);
      Twins twins(encrypts());
      Stranger stranger(type * 100 + i, 0, kRanks);
      for (int before = 0; before < 5; ++before) twins.send(0, receiver(), type);
      twins.expect_alike();
      for (const StrangerPacket& one : twins.attacked.wire) {
        if (one.to == 1) static_cast<void>(stranger.read(one.from, one.to, one.bytes));
      }
      for (int again = 0; again < 20; ++again) {
        StrangerPacket packet = twins.attacked.wire.front();
        packet.to = 1;
        if (!stranger.act(act, packet)) continue;  // splice: it was the packet itself
        const bool same = std::any_of(
            twins.attacked.wire.begin(), twins.attacked.wire.end(), [&](const StrangerPacket& one) {
              // What went to all ranks is a replay at each of them.
              const bool for_it = one.to == packet.to || goes_to_all(one.bytes);
              return one.bytes == packet.bytes && one.from == packet.from && for_it &&
                     packet.to != packet.from;
            });
        // A packet with the number of one that came is not looked at further.
        bool came = same;
        if (!same && packet.from == 0 && packet.to != 0 && packet.bytes.size() >= 80) {
          const std::uint32_t check = check_of(packet.bytes);
          came =
              (packet.bytes[offsetof(tarpon_header, flags)] & std::byte{0x30}) == std::byte{0x30} &&
              std::any_of(twins.attacked.wire.begin(), twins.attacked.wire.end(),
                          [&](const StrangerPacket& one) {
                            return check_of(one.bytes) == check &&
                                   (one.to == packet.to || goes_to_all(one.bytes));
                          });
        }
        twins.offer(packet, came, what);
      }
      EXPECT_GT(twins.offered, 5u);
      twins.expect_nothing_changed();
    }
  }
}

/// The stranger's packets come before the genuine one, so they are new.
TEST_P(StrangerPortTest, each_act__before_the_packet_itself__moves_one_counter) {
  for (std::uint8_t type = 1; type < TARPON_TYPE_END; ++type) {
    for (const StrangerAct act : {StrangerAct::rename, StrangerAct::truncate, StrangerAct::extend,
                                  StrangerAct::alter, StrangerAct::header, StrangerAct::splice}) {
      const std::string what =
          std::string(kActs[static_cast<std::size_t>(act)]) + " of type " + std::to_string(type);
      SCOPED_TRACE(what);
      Twins twins(encrypts());
      Stranger stranger(type, 0, kRanks);
      for (int i = 0; i < 20; ++i) {
        if (i > 0) {
          // A packet that both get, for splice.
          twins.send(0, receiver(), type);
          twins.expect_alike();
        }
        const std::size_t first = twins.attacked.wire.size();
        twins.send(0, receiver(), type);
        StrangerPacket packet = twins.attacked.wire[first];
        packet.to = 1;
        const StrangerPacket genuine = packet;
        if (i > 0) {
          const StrangerPacket& earlier = twins.attacked.wire[first - 1];
          static_cast<void>(stranger.read(0, 1, earlier.bytes));
        }
        if (!stranger.act(act, packet)) packet.bytes.back() ^= std::byte{1};
        ASSERT_NE(std::tie(packet.from, packet.bytes), std::tie(genuine.from, genuine.bytes));
        // Ahead of the genuine one, which is still under way.
        const auto& port = twins.attacked.ports[1];
        const PortStatistics before = port->statistics();
        twins.attacked.network.inject(packet.from, 1, packet.bytes);
        ++twins.offered;
        twins.expect_alike();
        const PortStatistics after = port->statistics();
        EXPECT_EQ(after.rx_forged + after.rx_replayed, before.rx_forged + before.rx_replayed + 1);
      }
      twins.expect_nothing_changed();
    }
  }
}

/// 64 packets a key in place of 4 million: replays of packets that the window still holds, that it
/// has left behind, and of all keys that have been.
TEST_P(StrangerPortTest, replays__of_old_packets_and_keys__move_one_counter) {
  constexpr unsigned kShift = 6;
  constexpr int kPackets = 2 * seal::ReplayWindow::kNumbers;
  Twins twins(encrypts(), kShift);
  for (int i = 0; i < kPackets; ++i) {
    twins.send(0, receiver(), static_cast<std::uint8_t>(1 + i % (TARPON_TYPE_END - 1)));
    if (i % 16 == 15) twins.expect_alike();
  }
  const std::vector<StrangerPacket> wire = twins.attacked.wire;
  for (std::size_t i = 0; i < wire.size(); i += 37) {
    if (wire[i].to == 1) twins.offer(wire[i], true, "packet " + std::to_string(i));
  }
  // The sender's next packets but those of the next key, which may have been lost.
  for (std::uint32_t generation = 2; generation < 200; ++generation) {
    StrangerPacket packet = wire.back();
    packet.to = 1;
    const std::uint32_t number = check_of(packet.bytes) + (generation << kShift);
    std::memcpy(packet.bytes.data() + offsetof(tarpon_header, check), &number, sizeof number);
    twins.offer(packet, false, "number " + std::to_string(number));
  }
  twins.expect_nothing_changed();
}

INSTANTIATE_TEST_SUITE_P(Modes, StrangerPortTest,
                         ::testing::Combine(::testing::Bool(), ::testing::Bool()),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param) ? "sealed" : "keyed") +
                                  (std::get<1>(info.param) ? "_to_all" : "_to_one");
                         });

// ---- whole jobs

/// Counts of the stranger's packets, by act and type.
using Reached = std::map<std::pair<StrangerAct, int>, std::uint64_t>;

/// What the stranger shares among the ranks of a job.
struct Attack {
  Attack(const SimulationPlan& plan, Reached& counts)
      : stranger(plan.seed, 0, plan.ranks), reached(counts) {}

  Stranger stranger;
  std::vector<StrangerPacket> seen;  // that have arrived
  std::uint64_t turn = 0, sent = 0;
  Reached& reached;
};

/// Adds the stranger's packets before and behind the packets that a rank receives. The times of
/// the rank's own packets stay.
class AttackedPort : public ForwardingPort {
 public:
  AttackedPort(std::unique_ptr<Port> inner, Rank rank, Attack& attack)
      : ForwardingPort(std::move(inner)), rank_(rank), attack_(attack) {}

  std::span<const RxPacket> receive(Time now) override {
    const std::span<const RxPacket> packets = ForwardingPort::receive(now);
    made_.clear();
    batch_.clear();
    if (packets.empty()) return packets;
    for (const RxPacket& packet : packets) {
      StrangerPacket& one = attack_.seen.emplace_back();
      one = {packet.source, rank_, {packet.data, packet.data + packet.length}};
      static_cast<void>(attack_.stranger.read(one.from, one.to, one.bytes));
      const auto act = static_cast<StrangerAct>(attack_.turn++ % kStrangerActs);
      make(act, one);
    }
    const std::size_t ahead = std::exchange(ahead_, 0);
    const auto add = [&](std::size_t from, std::size_t to) {
      for (; from < to; ++from) {
        const StrangerPacket& one = made_[from];
        batch_.push_back(
            {one.bytes.data(), static_cast<std::uint32_t>(one.bytes.size()), one.from});
      }
    };
    add(0, ahead);
    batch_.insert(batch_.end(), packets.begin(), packets.end());
    add(ahead, made_.size());
    return batch_;
  }

 private:
  /// Makes a packet for this rank of `one`, which has just come, or of one that came before.
  void make(StrangerAct act, const StrangerPacket& one) {
    StrangerPacket packet = one;
    switch (act) {
      case StrangerAct::old:
      case StrangerAct::reflect:
      case StrangerAct::redirect: {
        const auto suits = [&](const StrangerPacket& seen) {
          if (act == StrangerAct::old) return seen.to == rank_;
          if (act == StrangerAct::reflect) return seen.from == rank_;
          // What went to all ranks may still be on its way to this one.
          return seen.to != rank_ && seen.from != rank_ && !goes_to_all(seen.bytes);
        };
        const auto found = std::find_if(attack_.seen.rbegin(), attack_.seen.rend(), suits);
        if (found == attack_.seen.rend()) return;
        packet = *found;
        if (act == StrangerAct::reflect) packet.from = packet.to;
        break;
      }
      default:
        if (!attack_.stranger.act(act, packet)) return;
        break;
    }
    packet.to = rank_;
    ++attack_.reached[{act, std::to_integer<int>(one.bytes[offsetof(tarpon_header, type)])}];
    ++attack_.sent;
    // A packet that came is a replay behind itself alone.
    const bool is_copy = act == StrangerAct::again || act == StrangerAct::old;
    if (!is_copy && attack_.turn % 2 == 0) {
      made_.insert(made_.begin(), std::move(packet));
      ++ahead_;
    } else {
      made_.push_back(std::move(packet));
    }
  }

  const Rank rank_;
  Attack& attack_;
  std::vector<StrangerPacket> made_;
  std::size_t ahead_ = 0;  // of made_, that come before the packets
  std::vector<RxPacket> batch_;
};

TEST(StrangerJobTest, a_stranger_at_all_ranks__changes_counters_alone) {
  constexpr std::uint64_t kSeeds = testing_support::kSanitizer ? 20 : 100;
  Reached reached;
  for (std::uint64_t i = 0; i < kSeeds; ++i) {
    SimulationPlan plan = plan_simulation(kFirstSeedOfStrangers + i);
    plan.faults = {};  // FaultPort draws for each packet, also for the stranger's
    plan.hostile = 0;  // another stranger
    plan.lies = 0;
    const SimulationResult quiet = run_simulation(plan);
    Attack attack(plan, reached);
    const SimulationResult attacked =
        run_simulation(plan, {.wrap = [&](Rank rank, std::unique_ptr<Port> inner) {
                         return std::make_unique<AttackedPort>(std::move(inner), rank, attack);
                       }});
    SCOPED_TRACE(describe(plan));
    EXPECT_THAT(attacked.violations, IsEmpty());
    ASSERT_EQ(attacked.trace_hash, quiet.trace_hash);
    EXPECT_EQ(attacked.virtual_time, quiet.virtual_time);
    EXPECT_EQ(attacked.statuses, quiet.statuses);
    EXPECT_EQ(attacked.part_calls, quiet.part_calls);
    EXPECT_EQ(attacked.counters.dropped, quiet.counters.dropped);
    EXPECT_EQ(attacked.forged + attacked.replayed, quiet.forged + quiet.replayed + attack.sent);
  }
  if (testing_support::kSanitizer) return;
  for (std::size_t act = 0; act < kStrangerActs; ++act) {
    for (int type = TARPON_READY; type <= TARPON_ABORT; ++type) {
      EXPECT_GT((reached[{static_cast<StrangerAct>(act), type}]), 0u)
          << kActs[act] << " of type " << type;
    }
  }
}

TEST(StrangerJobTest, seeds__reach_all_that_happens_to_keys) {
  constexpr std::uint64_t kSeeds = testing_support::kSanitizer ? 40 : 100;
  std::uint64_t shrunk = 0, rejoined = 0, same_cookie = 0, short_keys = 0;
  std::uint64_t forged = 0, replayed = 0, part = 0;
  for (std::uint64_t i = 0; i < kSeeds; ++i) {
    const SimulationPlan plan = plan_simulation(kFirstSeedOfStrangers + i);
    EXPECT_TRUE(plan.has_secret());
    const SimulationResult result = run_simulation(plan);
    EXPECT_THAT(result.violations, IsEmpty()) << describe(plan);
    const bool fewer = static_cast<Rank>(std::popcount(plan.successor)) < plan.ranks;
    if (plan.successor != 0) ++(fewer ? shrunk : rejoined);
    same_cookie += plan.successor != 0 && plan.same_cookie;
    short_keys += plan.packets_of_key_shift < 22;
    forged += result.forged;
    replayed += result.replayed;
    part += result.part_calls[1];
  }
  for (const std::uint64_t seeds : {shrunk, rejoined, same_cookie, short_keys}) {
    EXPECT_GT(seeds, kSeeds / 20);
  }
  for (const std::uint64_t count : {forged, replayed, part}) EXPECT_GT(count, kSeeds);
}

}  // namespace
}  // namespace tarpon::stranger_test
