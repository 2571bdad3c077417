// DATA in: presence, order, credit, repairs.
#include "transport/operation/receiver.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "transport/rate/adaptive_inflow.h"

namespace tarpon::receiver_test {
namespace {

using testing::ElementsAre;

constexpr std::uint32_t kSlotBytes = 100;
constexpr std::uint32_t kCredit = 4;

class ListSink final : public Sink {
 public:
  using Slot = std::pair<Rank, std::uint32_t>;
  void deliver(const IncomingRun& run) override {
    for (std::uint32_t i = 0; i < run.packets.size(); ++i) {
      EXPECT_EQ(run.payload(i).size(), kSlotBytes);
      slots.emplace_back(run.from, run.first + i);
    }
    runs.push_back(run.packets.size());
  }
  void lost(Rank, std::uint32_t slot) override { losses.push_back(slot); }
  std::vector<Slot> slots;
  std::vector<std::uint32_t> losses;
  std::vector<std::size_t> runs;  // slots of each delivery
};

/// Rank 0 receives from ranks 1 and 2.
class ReceiverTest : public testing::Test {
 protected:
  struct Kind {
    bool acknowledge = false;
    bool repair = true;
    bool bounded = false;
  };
  void open(std::uint32_t slots, Kind kind) {
    StageSpec stage;
    stage.acknowledge = kind.acknowledge;
    stage.repair = kind.repair;
    OperationSpec spec;
    spec.bounded = kind.bounded;
    spec.slot_bytes = kSlotBytes;
    for (const Rank peer : {Rank{1}, Rank{2}}) {
      stage.receives.push_back({peer, &sink_, std::uint64_t{slots} * kSlotBytes});
    }
    spec.stages.push_back(std::move(stage));
    prepare(operation_, spec, options_, now_);
    for (const Rank peer : {Rank{1}, Rank{2}}) operation_.peers[peer].note_heard(false);
    granter_.opened(operation_, now_);
  }
  void open(std::uint32_t slots) { open(slots, {}); }

  void receive(Rank from, std::uint32_t slot, std::uint8_t flags = 0, std::size_t count = 1) {
    tarpon_header header{};
    header.type = TARPON_DATA;
    header.sender = from;
    header.slot = slot;
    header.flags = flags;
    header.length = kSlotBytes;
    std::vector<std::byte> packet(TARPON_HEADER_BYTES + kSlotBytes);
    std::memcpy(packet.data(), &header, sizeof header);
    const RxPacket one{packet.data(), TARPON_HEADER_BYTES + kSlotBytes, from};
    receiver_.receive(operation_, header, std::vector<RxPacket>(count, one), now_);
  }

  std::vector<ControlDue> due() {
    std::vector<ControlDue> result;
    while (const auto one = control_.pop()) result.push_back(*one);
    return result;
  }

  Time time_message(Rank from) {
    return receiver_.time_message(operation_, 0, *operation_.stages[0].receive_from(from), now_);
  }

  const EndpointOptions options_{.rank = 0, .world_size = 3, .initial_credit = kCredit};
  Time now_ = Time(1s);
  Participants participants_{3};
  Granter granter_{std::make_unique<AdaptiveInflow>(1 << 14, 1 << 20), kCredit, 3};
  ControlQueue control_{3, participants_};
  Journal journal_{nullptr, 3};
  EndpointCounters counters_;
  Alarm alarm_;
  Receiver receiver_{{.options = options_,
                      .granter = granter_,
                      .control = control_,
                      .journal = journal_,
                      .counters = counters_,
                      .alarm = alarm_}};
  ListSink sink_;
  Operation operation_;
};

TEST_F(ReceiverTest, receive__each_slot_is_delivered_once) {
  open(2);
  receive(1, 0);
  receive(1, 0);
  receive(2, 1);
  EXPECT_THAT(sink_.slots, ElementsAre(ListSink::Slot{1, 0}, ListSink::Slot{2, 1}));
  EXPECT_EQ(counters_.data_in, 2u);
  EXPECT_EQ(counters_[DropReason::duplicate], 1u);
}

TEST_F(ReceiverTest, receive__a_train_in_order_is_delivered_at_once_but_for_the_last_slot) {
  open(20);
  receive(1, 0, 0, 12);
  receive(1, 12, 0, 8);
  EXPECT_THAT(sink_.runs, ElementsAre(12, 7, 1));
  ASSERT_EQ(sink_.slots.size(), 20u);
  for (std::uint32_t slot = 0; slot < 20; ++slot) EXPECT_EQ(sink_.slots[slot].second, slot);
  EXPECT_EQ(counters_.data_in, 20u);
}

TEST_F(ReceiverTest, receive__a_train_around_slots_that_are_here) {
  open(20);
  receive(1, 3, 0, 2);
  receive(1, 0, 0, 8);
  EXPECT_EQ(sink_.slots.size(), 8u);
  EXPECT_EQ(counters_[DropReason::duplicate], 2u);
  receive(1, 18, 0, 4);
  EXPECT_EQ(counters_[DropReason::message], 2u) << "beyond the message";
  EXPECT_EQ(sink_.slots.size(), 10u);
}

TEST_F(ReceiverTest, receive__slots_that_the_message_does_not_have_are_dropped) {
  open(2);
  receive(1, 2);
  receive(0, 0);  // no message of this rank
  EXPECT_TRUE(sink_.slots.empty());
  EXPECT_EQ(counters_[DropReason::message], 2u);
}

TEST_F(ReceiverTest, receive__the_stage_closes_when_all_is_there) {
  open(1);
  receive(1, 0);
  Event event;
  EXPECT_FALSE(journal_.poll(event));
  receive(2, 0);
  ASSERT_TRUE(journal_.poll(event));
  EXPECT_EQ(event.kind, Event::Kind::stage_closed);
  EXPECT_EQ(event.closing, Closing::complete);
  EXPECT_EQ(alarm_.at(), now_);
}

TEST_F(ReceiverTest, receive__a_message_that_asks_for_it_is_confirmed) {
  open(1, {.acknowledge = true});
  receive(1, 0);
  const std::vector<ControlDue> sent = due();
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].type, TARPON_CREDIT);
  EXPECT_EQ(sent[0].peer, 1);
  EXPECT_EQ(sent[0].grant, TARPON_CREDIT_COMPLETE);
}

TEST_F(ReceiverTest, receive__the_dead_are_told_nothing) {
  participants_.set_dead(1);
  open(1, {.acknowledge = true});
  receive(1, 0);
  EXPECT_TRUE(due().empty());
}

TEST_F(ReceiverTest, time_message__asks_for_a_slot_that_was_overtaken) {
  open(3);
  receive(1, 0);
  receive(1, 2);
  const Time asks = now_ + operation_.gap_delay;
  EXPECT_EQ(alarm_.at(), asks);
  EXPECT_EQ(time_message(1), asks);
  EXPECT_TRUE(due().empty());
  now_ = asks;
  EXPECT_GT(time_message(1), asks);
  const std::vector<ControlDue> sent = due();
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].type, TARPON_REPAIR);
  EXPECT_EQ(sent[0].peer, 1);
}

TEST_F(ReceiverTest, time_message__asks_less_and_less_often_where_nothing_comes) {
  open(3);
  receive(1, 0);
  std::vector<Duration> waits;
  for (int i = 0; i < 4; ++i) {
    const Time due = time_message(1);
    waits.push_back(due - now_);
    now_ = due;
  }
  const Duration first = operation_.silence_delay;
  EXPECT_THAT(waits, ElementsAre(first, 2 * first, 4 * first, 8 * first));
}

TEST_F(ReceiverTest, time_message__without_repair_a_gap_is_given_up) {
  open(3, {.repair = false, .bounded = true});
  receive(1, 0);
  receive(1, 2);
  now_ += operation_.gap_delay;
  EXPECT_EQ(time_message(1), kNever);
  EXPECT_THAT(sink_.losses, ElementsAre(1u));
  receive(1, 1);  // too late
  EXPECT_EQ(counters_[DropReason::closed], 1u);
  EXPECT_EQ(sink_.slots.size(), 2u);
}

TEST_F(ReceiverTest, give_up__the_stage_closes_without_the_message) {
  open(1);
  receive(1, 0);
  Stage& stage = operation_.stages[0];
  receiver_.give_up(operation_, stage, *stage.receive_from(2), now_);
  Event event;
  ASSERT_TRUE(journal_.poll(event));
  EXPECT_EQ(event.closing, Closing::given_up);
  receive(2, 0);
  EXPECT_EQ(counters_[DropReason::closed], 1u);
  EXPECT_EQ(operation_.late_packets, 1u);
}

TEST_F(ReceiverTest, give_credit__what_has_come_is_granted_anew) {
  open(20'000);
  const ReceiveMessage& message = *operation_.stages[0].receive_from(1);
  const std::uint32_t first = message.credit().granted();
  ASSERT_LT(first, message.slots());
  for (std::uint32_t slot = 0; slot < first; ++slot) receive(1, slot);
  Operation* const operations[] = {&operation_};
  receiver_.give_credit(operations, now_);
  EXPECT_GT(message.credit().granted(), first);
  const std::vector<ControlDue> sent = due();
  ASSERT_FALSE(sent.empty());
  EXPECT_EQ(sent[0].type, TARPON_CREDIT);
  EXPECT_EQ(sent[0].peer, 1);
  EXPECT_EQ(sent[0].grant, message.credit().granted());
}

}  // namespace
}  // namespace tarpon::receiver_test
