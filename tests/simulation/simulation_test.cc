// Many seeds of the simulator; and jobs with a planted defect, which its oracles must catch.
#include "tools/simulation.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>
#include <deque>
#include <functional>

#include "transport/endpoint/integrity.h"

namespace tarpon {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define TARPON_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define TARPON_SANITIZED 1
#endif
#endif
#ifdef TARPON_SANITIZED
constexpr std::uint64_t kSeeds = 200;
#else
constexpr std::uint64_t kSeeds = 1000;
#endif
constexpr std::uint64_t kCases = 10;
constexpr std::uint64_t kFirstSeed = 1;

void expect_good(const SimulationPlan& plan) {
  const SimulationResult result = run_simulation(plan);
  if (result.violations.empty()) return;
  std::string text = describe(plan) + "\n";
  for (const std::string& violation : result.violations) text += "  broken: " + violation + "\n";
  ADD_FAILURE() << text << "  repeat: tarpon sim --seed " << plan.seed;
}

class SimulationSeedsTest : public testing::TestWithParam<std::uint64_t> {};

TEST_P(SimulationSeedsTest, run__keeps_every_promise) {
  const std::uint64_t first = kFirstSeed + GetParam() * (kSeeds / kCases);
  std::printf("seeds %llu to %llu; repeat: tarpon sim --seed %llu --count %llu\n",
              static_cast<unsigned long long>(first),
              static_cast<unsigned long long>(first + kSeeds / kCases - 1),
              static_cast<unsigned long long>(first),
              static_cast<unsigned long long>(kSeeds / kCases));
  for (std::uint64_t seed = first; seed < first + kSeeds / kCases; ++seed) {
    expect_good(plan_simulation(seed));
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, SimulationSeedsTest, testing::Range(std::uint64_t{0}, kCases));

TEST(SimulationTest, run__the_same_seed_leaves_the_same_trace) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    const SimulationPlan plan = plan_simulation(seed);
    const SimulationResult a = run_simulation(plan);
    const SimulationResult b = run_simulation(plan);
    EXPECT_EQ(a.trace_hash, b.trace_hash) << "seed " << seed;
    EXPECT_EQ(a.virtual_time, b.virtual_time);
    EXPECT_EQ(a.packets, b.packets);
    EXPECT_NE(a.trace_hash, run_simulation(plan_simulation(seed + 1)).trace_hash);
  }
}

TEST(SimulationTest, plan__the_seeds_reach_every_fault_and_shape) {
  int exact = 0, bounded = 0, loss = 0, duplicate = 0, reorder = 0, corrupt = 0, truncate = 0,
      calm = 0, two = 0, eight = 0, copying = 0;
  for (std::uint64_t seed = kFirstSeed; seed < kFirstSeed + kSeeds; ++seed) {
    const SimulationPlan plan = plan_simulation(seed);
    ++(plan.bounded ? bounded : exact);
    loss += plan.faults.loss > 0;
    duplicate += plan.faults.duplicate > 0;
    reorder += plan.faults.reorder > 0;
    corrupt += plan.faults.corrupt > 0;
    truncate += plan.faults.truncate > 0;
    calm += !plan.faults.any();
    two += plan.ranks == 2;
    eight += plan.ranks == 8;
    copying += !plan.gathers;
  }
  for (const int reached :
       {exact, bounded, loss, duplicate, reorder, corrupt, truncate, calm, two, eight, copying}) {
    EXPECT_GT(reached, static_cast<int>(kSeeds / 100));
  }
}

// -- canaries: defects that no checksum sees

/// Changes received packets, and recomputes their check sums.
class DefectivePort : public Port {
 public:
  /// Returns how many packets take the place of the one given: 0, 1 or 2.
  using Defect = std::function<int(tarpon_header&, std::vector<std::byte>& payload)>;

  DefectivePort(std::unique_ptr<Port> inner, Defect defect)
      : inner_(std::move(inner)), defect_(std::move(defect)) {}
  const PortCapabilities& capabilities() const override { return inner_->capabilities(); }
  std::span<TxPacket> transmit_frames(std::size_t most) override {
    return inner_->transmit_frames(most);
  }
  void transmit(std::span<TxPacket> packets) override { inner_->transmit(packets); }
  std::size_t unsent() const override { return inner_->unsent(); }
  void drop_unsent() override { inner_->drop_unsent(); }
  std::span<const RxPacket> receive(Time now) override {
    batch_.clear();
    memory_.clear();
    for (const RxPacket& packet : inner_->receive(now)) change(packet);
    return batch_;
  }
  void wait(Time now, Time until) override { inner_->wait(now, until); }
  void wake() override { inner_->wake(); }
  PortStatistics statistics() const override { return inner_->statistics(); }

 private:
  void change(const RxPacket& packet) {
    tarpon_header header;
    std::memcpy(&header, packet.data, sizeof header);
    std::vector<std::byte> payload(packet.data + sizeof header, packet.data + packet.length);
    for (int left = defect_(header, payload); left > 0; --left) {
      header.check = packet_check(header, payload);
      std::vector<std::byte>& bytes = memory_.emplace_back(sizeof header + payload.size());
      std::memcpy(bytes.data(), &header, sizeof header);
      if (!payload.empty()) {
        std::memcpy(bytes.data() + sizeof header, payload.data(), payload.size());
      }
      batch_.push_back({bytes.data(), static_cast<std::uint32_t>(bytes.size()), header.sender});
    }
  }

  std::unique_ptr<Port> inner_;
  Defect defect_;
  std::vector<RxPacket> batch_;
  std::deque<std::vector<std::byte>> memory_;
};

/// Seeds, of 20, in which rank 0's port has the defect and an oracle says so.
int caught(bool bounded, const DefectivePort::Defect& defect) {
  constexpr std::uint64_t kTried = 20;
  int count = 0;
  for (std::uint64_t seed = 1; seed <= kTried; ++seed) {
    SimulationPlan plan = plan_simulation(seed);
    plan.bounded = bounded;
    plan.ranks = 4;
    plan.most_elements = 2000;
    plan.faults = {};
    const auto wrap = [&](Rank rank, std::unique_ptr<Port> inner) -> std::unique_ptr<Port> {
      if (rank != 0) return inner;
      return std::make_unique<DefectivePort>(std::move(inner), defect);
    };
    if (!run_simulation(plan, wrap).violations.empty()) ++count;
  }
  return count;
}

TEST(SimulationCanaryTest, no_defect__is_not_reported) {
  for (const bool bounded : {false, true}) {
    EXPECT_EQ(caught(bounded, [](auto&, auto&) { return 1; }), 0);
  }
}

TEST(SimulationCanaryTest, one_altered_payload__is_caught) {
  for (const bool bounded : {false, true}) {
    int number = 0;
    EXPECT_GT(caught(bounded,
                     [&](tarpon_header& header, std::vector<std::byte>& payload) {
                       // One bit of one element in every 50th packet of DATA.
                       if (header.type == TARPON_DATA && !payload.empty() && ++number % 50 == 0) {
                         payload[payload.size() / 8 * 4 + 2] ^= std::byte{0x40};
                       }
                       return 1;
                     }),
              10);
  }
}

TEST(SimulationCanaryTest, a_foreign_sender__is_caught) {
  EXPECT_GT(caught(false,
                   [](tarpon_header& header, auto&) {
                     if (header.type == TARPON_DATA && header.stage == 0 && header.sender != 0) {
                       header.sender = static_cast<std::uint16_t>(header.sender % 3 + 1);
                     }
                     return 1;
                   }),
            10);
}

TEST(SimulationCanaryTest, false_contributors__are_caught) {
  EXPECT_GT(caught(true,
                   [](tarpon_header& header, auto&) {
                     if (header.type == TARPON_DATA && header.stage == 1)
                       header.contributors &= ~2ull;
                     return 1;
                   }),
            10);
}

TEST(SimulationCanaryTest, a_stale_slot__is_caught) {
  std::vector<std::byte> first;
  EXPECT_GT(caught(false,
                   [&first](tarpon_header& header, std::vector<std::byte>& payload) {
                     // The contents of slot 0 for all slots of the same length.
                     if (header.type != TARPON_DATA) return 1;
                     if (header.slot == 0) first = payload;
                     if (first.size() == payload.size()) payload = first;
                     return 1;
                   }),
            5);
}

TEST(SimulationCanaryTest, silence_of_one_direction__is_caught_in_exact_mode) {
  EXPECT_GT(caught(false, [](tarpon_header& header, auto&) { return header.sender == 2 ? 0 : 1; }),
            10);
}

}  // namespace
}  // namespace tarpon
