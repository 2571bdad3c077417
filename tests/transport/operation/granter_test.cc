// Which messages share the window, and how much each is granted.
#include "transport/operation/granter.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <vector>

#include "tests/support/steady_inflow.h"
#include "transport/rate/adaptive_inflow.h"

namespace tarpon::granter_test {
namespace {

constexpr std::uint32_t kSlotBytes = 1000;
constexpr std::uint64_t kWire = kSlotBytes + TARPON_HEADER_BYTES;
constexpr std::uint32_t kUnasked = 4;
constexpr std::uint16_t kRanks = 5;
constexpr Rank kPeers = kRanks - 1;  // ranks 1 to 4 send to rank 0

class GranterTest : public testing::Test {
 protected:
  static constexpr std::uint32_t kWindow = 256;  // slots

  GranterTest() {
    // The window stays as it is.
    granter_.emplace(std::make_unique<testing_support::SteadyInflow>(kWindow * kWire), kUnasked,
                     kRanks);
    granter_->inflow().arrived(kWindow * kWire, false);  // after a rest it would be smaller
  }

  /// Opens an operation of two stages that waits for `slots` slots of each peer in both.
  Operation& open(std::uint32_t slots) {
    OperationSpec spec;
    spec.tag = static_cast<std::uint32_t>(operations_.size());
    spec.slot_bytes = kSlotBytes;
    spec.stages.resize(2);
    for (StageSpec& stage : spec.stages) {
      for (Rank peer = 1; peer < kRanks; ++peer) {
        stage.receives.push_back({peer, nullptr, std::uint64_t{slots} * kSlotBytes});
      }
    }
    auto operation = std::make_unique<Operation>();
    prepare(*operation, spec, {.rank = 0, .world_size = kRanks}, now_);
    operations_.push_back(std::move(operation));
    open_.push_back(operations_.back().get());
    granter_->opened(*open_.back(), now_);
    return *open_.back();
  }

  /// `peer` has begun the operation; its `stage` as well, by one slot.
  void begin(Operation& operation, Rank peer, std::uint32_t stage = 0) {
    operation.peers[peer].note_heard(false);
    granter_->heard(operation, peer);
    if (stage > 0) arrive(operation, stage, peer, 1);
  }
  void begin_all(Operation& operation, std::uint32_t stage = 0) {
    for (Rank peer = 1; peer < kRanks; ++peer) begin(operation, peer, stage);
  }

  void arrive(Operation& operation, std::uint32_t stage, Rank peer, std::uint32_t slots) {
    ReceiveMessage& message = *operation.stages[stage].receive_from(peer);
    for (std::uint32_t i = 0; i < slots; ++i) {
      const std::uint32_t slot = message.arrivals().presence().end();
      message.arrivals().insert(slot, 1);
      message.note_arrival(slot, false, now_);
      granter_->progressed(operation, message);
    }
    if (message.delivered()) granter_->ended(1);
  }
  /// All that was granted comes.
  void use_up(Operation& operation, std::uint32_t stage, Rank peer) {
    const ReceiveMessage& message = *operation.stages[stage].receive_from(peer);
    arrive(operation, stage, peer,
           message.credit().granted() - message.arrivals().presence().end());
  }

  std::size_t give() { return granter_->give(now_, open_).size(); }

  // Slots of the first grants of two operations.
  static constexpr std::uint32_t kFirst = kWindow / (2 * kPeers), kSecond = kFirst / 2;

  static std::uint32_t granted(Operation& operation, std::uint32_t stage, Rank peer) {
    return operation.stages[stage].receive_from(peer)->credit().granted();
  }
  /// Slots on their way, of all peers.
  static std::uint32_t on_its_way(Operation& operation, std::uint32_t stage) {
    std::uint32_t sum = 0;
    for (const ReceiveMessage& message : operation.stages[stage].receives) {
      sum += message.credit().granted() - message.arrivals().presence().end();
    }
    return sum;
  }

  Time now_{1s};
  std::optional<Granter> granter_;
  std::vector<std::unique_ptr<Operation>> operations_;
  std::vector<Operation*> open_;
};

TEST_F(GranterTest, opened__grants_even_parts_and_at_least_what_may_be_sent_unasked) {
  Operation& first = open(1000);
  EXPECT_EQ(granted(first, 0, 1), kFirst);
  EXPECT_EQ(granted(first, 1, kPeers), kFirst);
  EXPECT_EQ(granted(open(1000), 0, 1), kSecond);
  EXPECT_EQ(granted(open(2), 0, 1), 2u);  // never beyond the message
  for (int i = 0; i < 16; ++i) open(2);
  EXPECT_EQ(granted(open(1000), 0, 1), kUnasked);
}

TEST_F(GranterTest, one_operation__its_messages_have_even_parts_begun_or_not) {
  Operation& only = open(1000);
  begin_all(only);
  for (int round = 0; round < 20; ++round) {
    for (Rank peer = 1; peer < kRanks; ++peer) use_up(only, 0, peer);
    give();
    EXPECT_LE(on_its_way(only, 0), kWindow / 2);
    EXPECT_EQ(granted(only, 1, 1), kFirst) << "of a stage that has not begun";
  }
  EXPECT_EQ(on_its_way(only, 0), kWindow / 2);
}

TEST_F(GranterTest, several__the_oldest_comes_first_and_the_others_wait) {
  Operation& oldest = open(1000);
  Operation& later = open(1000);
  begin_all(oldest);
  begin_all(later);
  for (int round = 0; round < 20; ++round) {
    for (Rank peer = 1; peer < kRanks; ++peer) {
      use_up(oldest, 0, peer);
      use_up(later, 0, peer);
    }
    give();
  }
  // Those of the oldest that share have large grants; the later operation has what it began with.
  EXPECT_GE(granted(oldest, 0, 1), 20 * Granter::kLeastShare / 2);
  for (Rank peer = 1; peer < kRanks; ++peer) EXPECT_EQ(granted(later, 0, peer), kSecond);
  EXPECT_LE(on_its_way(oldest, 0) + on_its_way(later, 0), kWindow);
}

TEST_F(GranterTest, several__what_a_later_one_waits_for_comes_when_the_oldest_needs_no_more) {
  Operation& oldest = open(40);
  Operation& later = open(1000);
  begin_all(oldest);
  begin_all(later);
  for (Rank peer = 1; peer < kRanks; ++peer) use_up(later, 0, peer);
  for (int round = 0; round < 20; ++round) {
    for (Rank peer = 1; peer < kRanks; ++peer) use_up(oldest, 0, peer);
    give();
  }
  EXPECT_EQ(granted(oldest, 0, kPeers), 40u);
  EXPECT_GT(granted(later, 0, 1), kSecond);
}

TEST_F(GranterTest, several__a_stage_that_has_not_begun_holds_nothing_up) {
  Operation& oldest = open(1000);
  Operation& later = open(1000);
  begin(oldest, 1);
  begin(later, 2);
  use_up(oldest, 0, 1);
  use_up(later, 0, 2);
  give();
  EXPECT_GE(granted(oldest, 0, 1), kFirst + Granter::kLeastShare);
  EXPECT_GE(granted(later, 0, 2), kSecond + Granter::kLeastShare);
  EXPECT_EQ(granted(oldest, 0, 2), kFirst);  // its sender has not begun
}

TEST_F(GranterTest, several__grants_of_those_that_wait_are_few_and_large) {
  Operation& oldest = open(1000);
  Operation& later = open(1000);
  begin_all(oldest);
  begin_all(later);
  std::size_t grants = 0;
  std::uint32_t slots = 0;
  for (int i = 0; i < 2000; ++i) {
    for (Rank peer = 1; peer < kRanks; ++peer) {
      const ReceiveMessage& message = *oldest.stages[0].receive_from(peer);
      if (message.arrivals().presence().end() == message.credit().granted()) continue;
      arrive(oldest, 0, peer, 1);
      ++slots;
    }
    grants += give();
  }
  EXPECT_EQ(slots, kPeers * 1000u);
  EXPECT_LT(grants, slots / 10);
}

TEST_F(GranterTest, stalled__its_credit_goes_to_those_that_wait) {
  Operation& oldest = open(1000);
  Operation& later = open(1000);
  begin_all(oldest);
  begin(later, 1);
  use_up(later, 0, 1);
  for (Rank peer = 1; peer < kRanks; ++peer) use_up(oldest, 0, peer);
  give();
  ASSERT_EQ(granted(later, 0, 1), kSecond);
  ASSERT_NE(granter_->next(now_), kNever);
  const Time look = granter_->next(now_);
  now_ = look;
  give();
  now_ = granter_->next(now_);  // nothing of the oldest has come meanwhile
  give();
  EXPECT_GE(granted(later, 0, 1), kSecond + Granter::kLeastShare / 2);
}

TEST_F(GranterTest, waiting__a_message_whose_slots_are_all_here_has_nothing_to_ask_for) {
  Operation& oldest = open(1000);
  ReceiveMessage& message = *oldest.stages[0].receive_from(1);
  const RequestDelays delays{.gap = 1ms, .quiet = 10ms, .longest = 40ms};
  EXPECT_NE(message.due(delays), kNever);
  begin(oldest, 1);
  use_up(oldest, 0, 1);
  EXPECT_EQ(message.due(delays), kNever);
  now_ += 5ms;
  give();
  EXPECT_NE(message.due(delays), kNever);
  EXPECT_EQ(message.silent_since(), now_);  // its silence begins with the grant
}

// Where nothing is on its way no packet brings the rest of the grant.
TEST_F(GranterTest, paced__what_the_pace_held_back_is_granted_when_it_ends) {
  granter_.emplace(std::make_unique<AdaptiveInflow>(32 * kWire, kWindow * kWire), kUnasked, kRanks);
  Inflow& inflow = granter_->inflow();
  for (int interval = 0; interval < 1000 && !inflow.paced(); ++interval) {
    for (int packet = 0; packet < 100; ++packet) {
      if (packet % 5 == 0) {
        inflow.overtaken(1, 0);
      } else {
        inflow.arrived(kWire, false);
      }
    }
    inflow.round_trip(100us);
    now_ += 1ms;
    inflow.judge(now_);
  }
  ASSERT_TRUE(inflow.paced());
  Operation& only = open(20);
  begin_all(only);
  const auto use_all_up = [&] {
    for (Rank peer = 1; peer < kRanks; ++peer) use_up(only, 0, peer);
  };
  use_all_up();
  now_ += 10ms;
  const std::size_t given = give();  // the whole rest of each of these messages
  EXPECT_GT(given, 0u);
  EXPECT_LT(given, std::size_t{kPeers});
  use_all_up();
  inflow.flows_changed();
  ASSERT_FALSE(inflow.paced());
  EXPECT_EQ(granter_->next(now_), now_);
  EXPECT_GE(give(), kPeers - given);
}

}  // namespace
}  // namespace tarpon::granter_test
