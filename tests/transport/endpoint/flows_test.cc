// Several flows of one peer: stripes, gaps by flow, the choice by trial, and endpoints that send
// over four flows of which each overtakes the others.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "tests/support/endpoint_harness.h"
#include "transport/operation/message/arrivals.h"
#include "transport/random.h"
#include "transport/rate/flow_choice.h"

namespace tarpon::testing_support::flows_test {
namespace {

using testing::ElementsAre;
using testing::UnorderedElementsAre;

TEST(StripesTest, below__counts_the_slots_of_a_flow) {
  for (const std::uint32_t flows : {1u, 2u, 4u, 8u}) {
    const Stripes stripes{5, flows};
    std::vector<std::uint32_t> counts(flows, 0);
    for (std::uint32_t slot = 0; slot < 200; ++slot) {
      for (std::uint32_t flow = 0; flow < flows; ++flow) {
        ASSERT_EQ(stripes.below(flow, slot), counts[flow]) << slot << " of flow " << flow;
      }
      ASSERT_EQ(stripes.flow_of(slot), slot / 5 % flows);
      ++counts[stripes.flow_of(slot)];
    }
  }
}

TEST(StripesTest, rest__the_slots_up_to_the_next_flow) {
  const Stripes stripes{5, 4};
  EXPECT_EQ(stripes.rest(0), 5u);
  EXPECT_EQ(stripes.rest(4), 1u);
  EXPECT_EQ(stripes.rest(12), 3u);
  EXPECT_GE((Stripes{5, 1}.rest(12)), 1000u) << "one flow: all";
}

TEST(StripesTest, length__fits_a_train_and_is_short) {
  EXPECT_EQ(stripe_slots(64), 16u);
  EXPECT_EQ(stripe_slots(1408), 16u);
  EXPECT_EQ(stripe_slots(8896), 7u);
  EXPECT_EQ(stripe_slots(65408), 1u);
}

Arrivals arrivals_of(std::uint32_t slots, Stripes stripes) {
  Arrivals arrivals;
  arrivals.reset(slots);
  arrivals.set_stripes(stripes);
  return arrivals;
}

void arrive(Arrivals& arrivals, std::uint32_t slot) {
  arrivals.insert(slot, 1);
  arrivals.note_order(slot, Time(1s));
}

std::vector<std::uint32_t> slots_in(std::span<const tarpon_range> ranges) {
  std::vector<std::uint32_t> slots;
  for (const tarpon_range& range : ranges) {
    for (std::uint32_t i = 0; i < range.count; ++i) slots.push_back(range.first + i);
  }
  return slots;
}

TEST(ArrivalsTest, lost__is_what_its_own_flow_has_overtaken) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    const Stripes stripes{static_cast<std::uint32_t>(1 + random.below(9)), 1u << random.below(4)};
    const auto slots = static_cast<std::uint32_t>(1 + random.below(300));
    Arrivals arrivals = arrivals_of(slots, stripes);
    std::uint32_t overtaken = 0;
    for (std::uint32_t slot = 0; slot < slots; ++slot) {
      if (!random.chance(0.8)) continue;
      overtaken += arrivals.overtaken_by(slot, slot);
      arrive(arrivals, slot);
    }
    std::vector<std::uint32_t> expected;
    for (std::uint32_t slot = 0; slot < slots; ++slot) {
      bool later = false;
      for (std::uint32_t other = slot + 1; other < slots; ++other) {
        later |=
            stripes.flow_of(other) == stripes.flow_of(slot) && arrivals.presence().contains(other);
      }
      if (later && !arrivals.presence().contains(slot)) expected.push_back(slot);
    }
    std::array<tarpon_range, 300> ranges;
    const std::size_t count = arrivals.lost(slots, kAllSlots, ranges);
    EXPECT_EQ(slots_in({ranges.data(), count}), expected);
    EXPECT_EQ(overtaken, expected.size());
    EXPECT_EQ(arrivals.gap_since() != kNever, !expected.empty());
    for (std::size_t i = 1; i < count; ++i) {
      EXPECT_GT(ranges[i].first, ranges[i - 1].first + ranges[i - 1].count);
    }
    const auto most = static_cast<std::uint32_t>(random.below(10));
    std::array<tarpon_range, 3> few;
    const std::size_t fit = arrivals.lost(slots, most, few);
    const auto asked = slots_in({few.data(), fit});
    EXPECT_LE(asked.size(), most);
    EXPECT_TRUE(std::equal(asked.begin(), asked.end(), expected.begin()));
  }
}

TEST(ArrivalsTest, first_missing__is_one_of_each_flow) {
  Arrivals arrivals = arrivals_of(64, {4, 4});
  for (const std::uint32_t slot : {0u, 1u, 2u, 3u, 4u, 16u}) arrive(arrivals, slot);
  std::array<tarpon_range, 8> ranges;
  std::size_t count = arrivals.first_missing(64, ranges);
  EXPECT_THAT(slots_in({ranges.data(), count}), ElementsAre(5, 8, 12, 17));
  count = arrivals.first_missing(12, ranges);
  EXPECT_THAT(slots_in({ranges.data(), count}), ElementsAre(5, 8));
}

TEST(ArrivalsTest, lost_or_first__is_one_of_each_flow_at_least) {
  Arrivals arrivals = arrivals_of(64, {4, 4});
  for (const std::uint32_t slot : {4u, 7u, 8u}) arrive(arrivals, slot);
  std::array<tarpon_range, 8> ranges;
  std::size_t count = arrivals.lost_or_first(64, kAllSlots, ranges);
  EXPECT_THAT(slots_in({ranges.data(), count}), ElementsAre(0, 5, 6, 9, 12));
  count = arrivals.lost_or_first(64, 2, ranges);
  EXPECT_THAT(slots_in({ranges.data(), count}), ElementsAre(0, 5));
}

/// What `choice` takes for the next operation, which then runs at `rate_of` that.
template <typename Rate>
std::uint32_t operate(FlowChoice& choice, const Rate& rate_of) {
  const FlowChoice::Next next = choice.next();
  if (next.measured) choice.ended(next.flows, rate_of(next.flows));
  return next.flows;
}

TEST(FlowChoiceTest, trial__takes_several_where_they_carry_more_and_looks_again) {
  FlowChoice choice(0, 4);
  double gain = 3;
  const auto rate = [&gain](std::uint32_t flows) { return flows == 1 ? 1e8 : gain * 1e8; };
  std::vector<std::uint32_t> taken;
  for (int i = 0; i < 10; ++i) taken.push_back(operate(choice, rate));
  EXPECT_THAT(taken, ElementsAre(1, 1, 1, 4, 4, 4, 1, 1, 1, 4));
  for (std::uint32_t i = 10; i < FlowChoice::kTrialOf; ++i) EXPECT_EQ(operate(choice, rate), 4u);
  gain = 1.2;  // no limit any more
  taken.clear();
  for (int i = 0; i < 10; ++i) taken.push_back(operate(choice, rate));
  EXPECT_THAT(taken, ElementsAre(4, 4, 4, 1, 1, 1, 4, 4, 4, 1));
  EXPECT_EQ(choice.flows(), 1u);
}

TEST(FlowChoiceTest, trial__waits_for_operations_that_overlap_and_passes_over_failed_ones) {
  FlowChoice choice(0, 8);
  std::vector<FlowChoice::Next> begun;
  for (std::uint32_t i = 0; i < FlowChoice::kTrial + 5; ++i) begun.push_back(choice.next());
  EXPECT_EQ(begun.back().flows, 1u);
  std::uint32_t ended = 0;
  for (const FlowChoice::Next& next : begun) {
    if (!next.measured) continue;
    EXPECT_EQ(choice.flows(), 1u);
    ++ended;
    const bool failed = ended % 3 == 0;
    choice.ended(next.flows, failed ? 0 : next.flows * 1e6);
  }
  EXPECT_EQ(ended, FlowChoice::kTrial);
  EXPECT_EQ(choice.flows(), 4u);
}

TEST(FlowChoiceTest, asked_for__is_what_the_port_has_at_most) {
  EXPECT_EQ(FlowChoice(4, 8).next().flows, 4u);
  EXPECT_EQ(FlowChoice(8, 4).next().flows, 4u);
  EXPECT_EQ(FlowChoice(8, 3).next().flows, 2u);
  EXPECT_EQ(FlowChoice(1, 8).next().flows, 1u);
  EXPECT_FALSE(FlowChoice(0, 3).tries());
  EXPECT_EQ(FlowChoice(0, 3).next().flows, 1u);
}

// -- endpoints: slots of 64 bytes in stripes of 16, a message of 64 slots in four flows
// ------------

constexpr std::uint64_t kFourStripes = 64 * kSlot;

class FlowsTest : public testing::Test {
 protected:
  explicit FlowsTest(std::uint32_t flows = 4) : net_(2, options(flows), port()) {}

  static EndpointOptions options(std::uint32_t flows) {
    EndpointOptions result = small_options();
    result.flows = flows;
    return result;
  }
  static PortCapabilities port() {
    PortCapabilities result = plain_port();
    result.flows = 4;
    return result;
  }

  void submit(const std::function<void(Call&)>& change = [](Call&) {}) {
    for (Rank rank = 0; rank < 2; ++rank) {
      auto call = from_zero(rank, 2, kFourStripes);
      change(*call);
      calls_.push_back(&net_.submit(std::move(call), rank));
    }
  }

  /// Takes DATA of the slots in `slots` off the way, each once; what is left of them was not sent.
  Fate hold(std::set<std::uint32_t> slots) {
    held_slots_ = std::move(slots);
    return [this](const Packet& packet) {
      const tarpon_header header = packet.header();
      if (header.type != TARPON_DATA || held_slots_.erase(header.slot) == 0) return 1;
      held_.push_back(packet);
      return 0;
    };
  }

  MessageProgress progress() { return net_[1].view(calls_[1]->handle).progress(0, 0); }

  Harness net_;
  std::vector<Call*> calls_;
  std::set<std::uint32_t> held_slots_;
  Packets held_;
};

std::set<std::uint32_t> slots_between(std::uint32_t first, std::uint32_t end) {
  std::set<std::uint32_t> slots;
  for (std::uint32_t slot = first; slot < end; ++slot) slots.insert(slot);
  return slots;
}

TEST_F(FlowsTest, data__goes_by_stripes_and_says_so) {
  submit();
  std::map<std::uint32_t, std::uint8_t> flow_of;
  net_.settle([&](const Packet& packet) {
    const tarpon_header header = packet.header();
    if (header.type == TARPON_DATA) {
      flow_of[header.slot] = packet.flow;
      EXPECT_EQ(header.stage, 0x20);
    } else {
      EXPECT_EQ(packet.flow, 0);
      EXPECT_EQ(header.stage, 0);
    }
    return 1;
  });
  ASSERT_EQ(flow_of.size(), 64u);
  for (const auto& [slot, flow] : flow_of) EXPECT_EQ(flow, slot / 16 % 4);
  EXPECT_EQ(progress().received, 64u);
}

class OneFlowTest : public FlowsTest {
 protected:
  OneFlowTest() : FlowsTest(1) {}
};

TEST_F(OneFlowTest, data__is_as_if_there_were_no_others) {
  submit();
  net_.settle([](const Packet& packet) {
    EXPECT_EQ(packet.flow, 0);
    EXPECT_EQ(packet.header().stage, 0);
    return 1;
  });
  EXPECT_EQ(progress().received, 64u);
}

class TriedFlowsTest : public FlowsTest {
 protected:
  TriedFlowsTest() : FlowsTest(0) {}
};

TEST_F(TriedFlowsTest, small_messages__take_one) {
  for (std::uint32_t i = 0; i < 2 * FlowChoice::kRun; ++i) {
    submit();
    net_.settle([](const Packet& packet) {
      EXPECT_EQ(packet.header().stage, 0);
      return 1;
    });
    for (Rank rank = 0; rank < 2; ++rank) net_[rank].close(calls_[2 * i + rank]->handle, nullptr);
  }
}

TEST_F(FlowsTest, overtaken__by_another_flow_is_not_lost) {
  submit();
  const Fate fate = hold(slots_between(0, 16));
  net_.run_until(net_.now, fate);
  ASSERT_EQ(held_.size(), 16u);
  EXPECT_EQ(progress().received, 48u);
  net_.run_until(net_.now + 4ms, fate);  // beyond the delay after a loss that is certain
  EXPECT_EQ(net_[1].counters().repairs_requested, 0u);
  net_.give(held_);
  EXPECT_EQ(progress().received, 64u);
  EXPECT_EQ(total_dropped(net_[1].counters()), 0u);
}

TEST_F(FlowsTest, overtaken__by_its_own_flow_is_asked_for) {
  submit();
  const Fate fate = hold(slots_between(0, 16));
  net_.run_until(net_.now, fate);
  std::erase_if(held_, [](const Packet& packet) { return packet.header().slot == 5; });
  net_.give(held_);
  Packets repairs;
  net_.run_until(net_.now + 4ms, [&](const Packet& packet) {
    if (packet.header().type == TARPON_REPAIR) repairs.push_back(packet);
    return 1;
  });
  ASSERT_EQ(repairs.size(), 1u);
  ASSERT_EQ(repairs[0].ranges().size(), 1u);
  EXPECT_EQ(repairs[0].ranges()[0].first, 5u);
  EXPECT_EQ(repairs[0].ranges()[0].count, 1u);
  EXPECT_EQ(progress().received, 64u);
}

TEST_F(FlowsTest, silence__is_probed_in_each_flow_and_the_answer_speaks_for_its_own) {
  submit();
  const Fate fate = hold(slots_between(32, 64));  // two flows wholly
  net_.run_until(net_.now, fate);
  std::vector<std::vector<std::uint32_t>> asked;
  net_.run_until(net_.now + 30ms, [&](const Packet& packet) {
    if (packet.header().type == TARPON_REPAIR) asked.push_back(slots_in(packet.ranges()));
    // The answer in the last flow is lost.
    return packet.header().type == TARPON_DATA && packet.header().slot >= 48 ? 0 : 1;
  });
  ASSERT_GE(asked.size(), 2u);
  EXPECT_THAT(asked[0], ElementsAre(32, 48));
  EXPECT_EQ(asked[1].front(), 33u);
  EXPECT_EQ(asked[1].back(), 47u);
  EXPECT_EQ(progress().received, 48u);
}

TEST_F(FlowsTest, answer__for_what_was_never_sent_in_its_flow_hides_no_other_flow) {
  submit([](Call& call) {
    for (SendSpec& send : call.spec.stages[0].sends) send.ready = 20;
  });
  // Of the flow that begins with slot 16, that slot comes at first.
  net_.run_until(net_.now, [](const Packet& packet) {
    const tarpon_header header = packet.header();
    return header.type == TARPON_DATA && header.slot != 16 ? 0 : 1;
  });
  // It is repaired, and its slots from 20 on count as lost. The first flow is dead meanwhile.
  net_.run_until(net_.now + 30ms, [](const Packet& packet) {
    const tarpon_header header = packet.header();
    return header.type == TARPON_DATA && header.slot < 16 ? 0 : 1;
  });
  ASSERT_EQ(progress().received, 4u);
  net_.run_until(net_.now + 200ms);
  EXPECT_EQ(progress().received, 20u);
}

TEST_F(FlowsTest, repair__comes_by_other_flows_when_one_is_dead) {
  submit();
  std::vector<std::uint8_t> flows;
  net_.run_until(net_.now + 200ms, [&](const Packet& packet) {
    if (packet.header().type == TARPON_DATA && (packet.header().flags & TARPON_FLAG_REPAIR) != 0) {
      flows.push_back(packet.flow);
    }
    return packet.flow == 1 ? 0 : 1;
  });
  EXPECT_EQ(progress().received, 64u);
  ASSERT_GE(flows.size(), 2u);
  EXPECT_EQ(flows[0], 1);
  EXPECT_EQ(flows[1], 2);
}

TEST_F(FlowsTest, bounded__what_is_not_asked_for_is_given_up_by_flow) {
  submit([](Call& call) {
    call.spec.bounded = true;
    call.bounds[0] = 1s;
    call.spec.stages[0].repair = false;
  });
  Fate fate = hold(slots_between(0, 16));
  held_slots_.insert(20);
  net_.run_until(net_.now, fate);
  ASSERT_EQ(held_.size(), 17u);
  net_.run_until(net_.now + 5ms, fate);
  EXPECT_EQ(progress().received, 47u);
  EXPECT_EQ(net_.count(1, Event::Kind::stage_closed), 0u);
  // The slot that its flow has left behind is too late; the flow that lags is not.
  net_.give(held_);
  EXPECT_EQ(progress().received, 63u);
  EXPECT_EQ(net_.dropped(1, DropReason::closed), 1u);
  const auto closed = net_.events_of(1, Event::Kind::stage_closed);
  ASSERT_EQ(closed.size(), 1u);
  EXPECT_EQ(closed[0].closing, Closing::early);
}

TEST_F(FlowsTest, hostile__numbers_of_flows_are_refused) {
  submit();
  net_.run_until(net_.now, hold({63}));
  ASSERT_EQ(held_.size(), 1u);
  Packet many = held_[0];
  tarpon_header header = many.header();
  header.stage = 0x40;  // 16 flows
  many.set(header);
  net_.give(many);
  EXPECT_EQ(net_.dropped(1, DropReason::fields), 1u);
  header.type = TARPON_CREDIT;
  header.stage = 0x10;  // CREDIT has none
  header.length = 0;
  Packet credit = many;
  credit.set(header);
  credit.bytes.resize(TARPON_HEADER_BYTES);
  net_.give(credit);
  EXPECT_EQ(net_.dropped(1, DropReason::fields), 2u);
  // Later packets may claim what they like: the first one has said it.
  header = held_[0].header();
  header.stage = 0x30;
  held_[0].set(header);
  net_.give(held_[0]);
  EXPECT_EQ(progress().received, 64u);
}

}  // namespace
}  // namespace tarpon::testing_support::flows_test
