// The forger of the simulation: what its twins are, by group.
#include "tools/simulation/hostile.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <map>
#include <set>

#include "tools/simulation/simulation.h"
#include "transport/integrity.h"

namespace tarpon::hostile_test {
namespace {

constexpr Rank kRanks = 4;
constexpr std::uint32_t kOperation = 100;
constexpr std::uint64_t kDraws = 20'000;

ForgedPacket data_packet() {
  ForgedPacket packet;
  packet.payload.assign(64, std::byte{5});
  packet.header.magic = TARPON_MAGIC;
  packet.header.version = TARPON_WIRE_VERSION;
  packet.header.type = TARPON_DATA;
  packet.header.job = 7;
  packet.header.sender = 2;
  packet.header.operation = kOperation;
  packet.header.slot = 3;
  packet.header.stage = 1 | 2 << TARPON_FLOWS_SHIFT;
  packet.header.flags = TARPON_FLAG_TAIL | TARPON_INTEGRITY_CRC32C << TARPON_INTEGRITY_SHIFT;
  packet.header.length = 64;
  packet.header.signature = 0x1234;
  packet.header.closed_below = kOperation - 1;
  return packet;
}

ForgedPacket ready_packet() {
  ForgedPacket packet = data_packet();
  tarpon_ready ready{};
  ready.signature[0] = 9;
  packet.payload.resize(sizeof ready);
  std::memcpy(packet.payload.data(), &ready, sizeof ready);
  packet.header.type = TARPON_READY;
  packet.header.stage = 0;
  packet.header.length = sizeof ready;
  return packet;
}

std::vector<std::byte> wire_of(const ForgedPacket& packet) {
  std::vector<std::byte> bytes(sizeof packet.header + packet.payload.size());
  std::memcpy(bytes.data(), &packet.header, sizeof packet.header);
  std::memcpy(bytes.data() + sizeof packet.header, packet.payload.data(), packet.payload.size());
  return bytes;
}

ForgedPacket parse(std::span<const std::byte> bytes) {
  ForgedPacket packet;
  std::memcpy(&packet.header, bytes.data(), sizeof packet.header);
  packet.payload.assign(bytes.begin() + sizeof packet.header, bytes.end());
  return packet;
}

/// Twins of `original` in `group`, each of them one that passes the checks without state.
std::vector<ForgedPacket> twins(const ForgedPacket& original, LieGroup group) {
  Hostile forger(1, 1.0, kRanks, group);
  const std::vector<std::byte> wire = wire_of(original);
  std::vector<ForgedPacket> result;
  for (std::uint64_t i = 0; i < kDraws; ++i) {
    const auto bytes = forger.twin(1, wire);
    if (!bytes.empty()) result.push_back(parse(bytes));
  }
  return result;
}

void expect_convincing(const ForgedPacket& twin) {
  EXPECT_EQ(tarpon_check_header(&twin.header, 7, static_cast<std::uint32_t>(twin.payload.size())),
            TARPON_HEADER_OK);
  EXPECT_EQ(twin.header.check, packet_check(twin.header, twin.payload));
  EXPECT_EQ(twin.header.sender, 2);
  EXPECT_EQ(twin.header.flags & TARPON_INTEGRITY_MASK,
            TARPON_INTEGRITY_CRC32C << TARPON_INTEGRITY_SHIFT);
}

TEST(HostileTest, twin__comes_as_often_as_its_share) {
  Hostile never(1, 0, kRanks), sometimes(1, 0.25, kRanks);
  const std::vector<std::byte> wire = wire_of(data_packet());
  std::uint64_t count = 0;
  for (std::uint64_t i = 0; i < kDraws; ++i) {
    EXPECT_TRUE(never.twin(1, wire).empty());
    count += sometimes.twin(1, wire).empty() ? 0 : 1;
  }
  EXPECT_NEAR(static_cast<double>(count), 0.25 * kDraws, 0.02 * kDraws);
}

TEST(HostileTest, twin__the_same_seed_forges_the_same_packets) {
  const std::vector<std::byte> wire = wire_of(data_packet());
  for (const LieGroup group :
       {LieGroup::refused, LieGroup::numbering, LieGroup::control, LieGroup::data}) {
    Hostile one(5, 0.5, kRanks, group), again(5, 0.5, kRanks, group);
    for (int i = 0; i < 1000; ++i) {
      const auto a = one.twin(1, wire), b = again.twin(1, wire);
      ASSERT_TRUE(std::equal(a.begin(), a.end(), b.begin(), b.end()));
    }
  }
}

TEST(HostileTest, numbering__one_number_jumps_and_the_rest_is_true) {
  std::set<std::uint16_t> below;
  std::set<std::uint32_t> ahead;
  std::uint64_t heartbeats = 0;
  for (const ForgedPacket& twin : twins(data_packet(), LieGroup::numbering)) {
    expect_convincing(twin);
    heartbeats += twin.header.type == TARPON_HEARTBEAT;
    const bool same_operation = twin.header.operation == kOperation;
    const bool same_below = twin.header.closed_below == kOperation - 1;
    EXPECT_NE(same_operation, same_below);
    if (!same_operation) ahead.insert(twin.header.operation - kOperation);
    if (!same_below) {
      below.insert(static_cast<std::uint16_t>(twin.header.closed_below - (kOperation - 1)));
    }
    if (twin.header.type == TARPON_DATA) {
      EXPECT_EQ(twin.payload, data_packet().payload);
    }
  }
  EXPECT_GT(heartbeats, kDraws / 5);
  EXPECT_TRUE(below.contains(64) && below.contains(0x7fff) && below.contains(0xffff));
  EXPECT_TRUE(ahead.contains(1u << 30) && ahead.contains(0x80000000));
}

TEST(HostileTest, control__every_kind_and_only_for_the_operation_of_the_packet) {
  std::map<int, std::uint64_t> types;
  std::set<std::uint32_t> reasons, grants;
  for (const ForgedPacket& twin : twins(data_packet(), LieGroup::control)) {
    expect_convincing(twin);
    EXPECT_EQ(twin.header.operation, kOperation);
    ++types[twin.header.type];
    if (twin.header.type == TARPON_ABORT) reasons.insert(twin.header.slot);
    if (twin.header.type == TARPON_CREDIT) grants.insert(twin.header.slot);
    if (twin.header.type == TARPON_READY) {
      EXPECT_EQ(twin.payload.size(), sizeof(tarpon_ready));
    }
    if (twin.header.type == TARPON_REPAIR) {
      EXPECT_EQ(twin.payload.size(), 3 * sizeof(tarpon_range));
    }
  }
  EXPECT_EQ(types.size(), 6u);  // ABORT, READY, CREDIT, REPAIR, CLOSED, HEARTBEAT
  EXPECT_FALSE(types.contains(TARPON_DATA));
  EXPECT_EQ(reasons.size(), 4u);  // each reason, and one that does not exist
  EXPECT_TRUE(grants.contains(TARPON_CREDIT_COMPLETE));
  EXPECT_GT(grants.size(), 100u);
}

TEST(HostileTest, control__a_twin_of_ready_may_keep_the_true_signature) {
  std::uint64_t kept = 0, other = 0;
  for (const ForgedPacket& twin : twins(ready_packet(), LieGroup::control)) {
    if (twin.header.type != TARPON_READY) continue;
    tarpon_ready ready;
    std::memcpy(&ready, twin.payload.data(), sizeof ready);
    int bits = std::popcount(static_cast<unsigned>(ready.signature[0] ^ 9));
    for (std::size_t i = 1; i < TARPON_SIGNATURE_BYTES; ++i) {
      bits += std::popcount(static_cast<unsigned>(ready.signature[i]));
    }
    ++(bits == 0 ? kept : other);
    EXPECT_GE(ready.grant[0], 1u << 30);
  }
  EXPECT_GT(kept, 100u);
  EXPECT_GT(other, 100u);
}

TEST(HostileTest, data__the_next_operations_or_slots_get_another_payload) {
  std::set<std::uint32_t> ahead, slots;
  for (const ForgedPacket& twin : twins(data_packet(), LieGroup::data)) {
    expect_convincing(twin);
    EXPECT_EQ(twin.header.type, TARPON_DATA);
    EXPECT_EQ(twin.header.signature, 0x1234);
    EXPECT_EQ(twin.payload, std::vector<std::byte>(64, std::byte{0x45}));
    const bool same_operation = twin.header.operation == kOperation;
    EXPECT_NE(same_operation, twin.header.slot == 3);
    if (same_operation) {
      slots.insert(twin.header.slot - 3);
    } else {
      ahead.insert(twin.header.operation - kOperation);
    }
  }
  EXPECT_EQ(ahead, (std::set<std::uint32_t>{1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(slots, (std::set<std::uint32_t>{1, 2, 3, 4, 5, 6, 7, 8}));
  EXPECT_TRUE(twins(ready_packet(), LieGroup::data).empty());
}

// -- in a job

/// A job of which every packet has a twin of `group`, and nothing else happens.
SimulationPlan plan_with(std::uint64_t seed, LieGroup group) {
  SimulationPlan plan = plan_simulation(seed, FaultSet{});
  plan.lies = 1;
  plan.lie_group = group;
  return plan;
}

TEST(HostileTest, lies__of_no_share_leave_the_trace_as_it_is) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    SimulationPlan plan = plan_simulation(seed);
    plan.lies = 0;
    const std::uint64_t hash = run_simulation(plan).trace_hash;
    for (const LieGroup group : {LieGroup::control, LieGroup::data}) {
      plan.lie_group = group;
      EXPECT_EQ(run_simulation(plan).trace_hash, hash) << plan.seed;
    }
  }
}

TEST(HostileTest, lies__reach_the_ranks) {
  for (const LieGroup group : {LieGroup::numbering, LieGroup::control, LieGroup::data}) {
    SimulationPlan plan = plan_with(3, group);
    const std::uint64_t with = run_simulation(plan).trace_hash;
    plan.lies = 0;
    EXPECT_NE(run_simulation(plan).trace_hash, with) << static_cast<int>(group);
  }
}

/// Whether a promise was broken about an element of a result.
bool names_an_element(const std::string& violation) {
  return violation.find(": element ") != std::string::npos;
}

// What PROTOCOL.md promises of forged control packets, "Forged packets of a stranger who knows the
// cookie".
TEST(HostileTest, lies__of_control_cost_calls_and_falsify_nothing) {
  int costly = 0;
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    SimulationPlan plan = plan_with(seed, LieGroup::control);
    if (seed % 2 == 0) plan.lies = 0.02;  // more calls have a result
    const SimulationResult result = run_simulation(plan);
    costly += !result.violations.empty();
    for (const std::string& violation : result.violations) {
      EXPECT_FALSE(names_an_element(violation)) << describe(plan) << "\n" << violation;
    }
  }
  EXPECT_GT(costly, 0);
}

// Without keys nothing refuses these packets: that the oracles see the harm shows that they would
// also see it where a mend is supposed to prevent it.
TEST(HostileTest, lies__of_data_falsify_results_and_the_oracles_see_it) {
  int falsified = 0;
  for (std::uint64_t seed = 1; seed <= 30; ++seed) {
    for (const std::string& violation :
         run_simulation(plan_with(seed, LieGroup::data)).violations) {
      falsified += names_an_element(violation);
    }
  }
  EXPECT_GT(falsified, 0);
}

}  // namespace
}  // namespace tarpon::hostile_test
