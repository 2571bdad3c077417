// DATA out: order, credit, marks, repairs.
#include "transport/operation/sender.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <memory>
#include <vector>

#include "tests/support/steady_inflow.h"
#include "transport/integrity.h"

namespace tarpon::sender_test {
namespace {

using testing::ElementsAre;

constexpr std::uint32_t kSlotBytes = 100;

/// Every byte of a slot is the slot's number.
class CountingSource final : public Source {
 public:
  CountingSource() {
    for (std::size_t slot = 0; slot < lent.size(); ++slot) {
      lent[slot].fill(static_cast<std::byte>(slot));
    }
  }
  OutgoingRun lend(std::uint32_t first, std::uint32_t most) override {
    ++lends;
    return {lent[first].data(), kSlotBytes, std::min(most, longest), contributors};
  }
  std::uint32_t longest = 64;  // slots of a run
  std::uint64_t contributors = 0b11;
  std::uint32_t lends = 0;
  std::array<std::array<std::byte, kSlotBytes>, 64> lent{};
};

/// Rank 0 of three sends to ranks 1 and 2.
class SenderTest : public testing::Test {
 protected:
  Operation& open(std::uint32_t slots, std::uint32_t stages = 1) { return open(slots, stages, 0); }
  /// The caller has `ready` slots of each message.
  Operation& open(std::uint32_t slots, std::uint32_t stages, std::uint32_t ready) {
    OperationSpec spec;
    spec.tag = static_cast<std::uint32_t>(operations_.size());
    spec.slot_bytes = kSlotBytes;
    spec.stages.resize(stages);
    for (StageSpec& stage : spec.stages) {
      stage.ready = ready;
      for (const Rank peer : {Rank{1}, Rank{2}}) {
        stage.sends.push_back({peer, &source_, std::uint64_t{slots} * kSlotBytes});
      }
    }
    operations_.push_back(std::make_unique<Operation>());
    Operation& operation = *operations_.back();
    prepare(operation, spec, options_, now_);
    sender_.choose_flows(operation, spec);
    open_.push_back(&operation);
    return operation;
  }

  void allow(Operation& operation, std::uint32_t stage, std::uint32_t slots) {
    for (SendMessage& message : operation.stages[stage].sends) {
      message.advance(slots);
      message.grant(slots);
    }
  }

  /// The receiver of `message` sends a REPAIR.
  static void request(SendMessage& message, const tarpon_range& range) {
    tarpon_header header{};
    header.type = TARPON_REPAIR;
    header.sender = message.peer();
    message.take_request({header, std::as_bytes(std::span(&range, 1))});
  }

  struct Sent {
    Rank peer;
    std::uint32_t slot;
    bool operator==(const Sent&) const = default;
  };
  std::vector<Sent> send(std::size_t frames) {
    for (std::size_t i = 0; i < frames; ++i) {
      frames_[i].header = headers_[i].data();
      frames_[i].room = rooms_[i].data();
    }
    const std::size_t used = sender_.send(now_, open_, {frames_.data(), frames});
    std::vector<Sent> sent;
    for (std::size_t i = 0; i < used; ++i) sent.push_back({frames_[i].peer, header(i).slot});
    return sent;
  }
  tarpon_header header(std::size_t frame) const {
    tarpon_header header;
    std::memcpy(&header, headers_[frame].data(), sizeof header);
    return header;
  }

  const EndpointOptions options_{
      .rank = 0, .world_size = 3, .job = 9, .integrity = TARPON_INTEGRITY_CRC32C};
  const Time now_ = Time(1s);
  PeerClocks clocks_{3};
  Participants participants_{3};
  TagHistory tags_{{.world_size = 3, .retain_bytes = 0, .remembered_tags = 16}};
  testing_support::SteadyInflow inflow_{1 << 20};
  EndpointCounters counters_;
  PacketWriter writer_{options_, clocks_, tags_, inflow_, counters_};
  Alarm alarm_;
  Sender sender_{
      options_,      {.name = "test", .max_payload = kSlotBytes, .gathers = true, .burst = 4},
      writer_,       counters_,
      participants_, alarm_};
  CountingSource source_;
  std::vector<std::unique_ptr<Operation>> operations_;
  std::vector<Operation*> open_;
  std::array<std::array<std::byte, TARPON_HEADER_BYTES>, 32> headers_;
  std::array<std::array<std::byte, kSlotBytes>, 32> rooms_;
  std::array<TxPacket, 32> frames_;
};

TEST_F(SenderTest, send__what_is_ready_and_granted_peer_by_peer) {
  Operation& operation = open(4, 1, 2);
  operation.stages[0].sends[0].grant(3);
  operation.stages[0].sends[1].grant(1);
  EXPECT_THAT(send(32), ElementsAre(Sent{1, 0}, Sent{1, 1}, Sent{2, 0}));
  EXPECT_THAT(send(32), ElementsAre());
  allow(operation, 0, 4);
  EXPECT_THAT(send(32), ElementsAre(Sent{1, 2}, Sent{1, 3}, Sent{2, 1}, Sent{2, 2}, Sent{2, 3}));
  EXPECT_EQ(counters_.data_out, 8u);
  EXPECT_EQ(alarm_.at(), kNever);
}

TEST_F(SenderTest, send__older_operations_and_earlier_stages_first) {
  Operation& first = open(1, 2);
  allow(first, 0, 1);
  allow(first, 1, 1);
  allow(open(1), 0, 1);
  std::vector<std::uint32_t> places;
  const std::size_t used = send(32).size();
  for (std::size_t i = 0; i < used; ++i) places.push_back(header(i).tag * 10 + header(i).stage);
  EXPECT_THAT(places, ElementsAre(0, 0, 1, 1, 10, 10));
}

TEST_F(SenderTest, send__whole_trains_where_the_frames_end) {
  Operation& operation = open(32);
  allow(operation, 0, 32);
  operation.stages[0].sends[1].finish();
  EXPECT_EQ(send(10).size(), 8u);  // trains of four
  EXPECT_EQ(send(3).size(), 3u);   // no room for a train: as many as fit
}

TEST_F(SenderTest, send__the_end_of_a_message_is_marked) {
  allow(open(5), 0, 5);
  ASSERT_EQ(send(5).size(), 5u);
  for (std::size_t i = 0; i < 5; ++i) {
    EXPECT_EQ((header(i).flags & TARPON_FLAG_TAIL) != 0, i == 4) << i;
  }
}

TEST_F(SenderTest, send__repairs_before_new_slots) {
  Operation& operation = open(8);
  allow(operation, 0, 4);
  send(32);
  request(operation.stages[0].sends[0], {.first = 1, .count = 2});
  allow(operation, 0, 5);
  EXPECT_THAT(send(3), ElementsAre(Sent{1, 1}, Sent{1, 2}, Sent{1, 4}));
  EXPECT_NE(header(0).flags & TARPON_FLAG_REPAIR, 0);
  EXPECT_EQ(header(2).flags & TARPON_FLAG_REPAIR, 0);
  EXPECT_EQ(counters_.repaired_slots, 2u);
}

TEST_F(SenderTest, send__nothing_to_a_peer_that_is_done) {
  Operation& operation = open(2);
  allow(operation, 0, 2);
  operation.stages[0].sends[0].finish();
  EXPECT_THAT(send(32), ElementsAre(Sent{2, 0}, Sent{2, 1}));
}

TEST_F(SenderTest, send__nothing_of_the_last_stage_while_peers_are_asked) {
  Operation& operation = open(1, 2);
  allow(operation, 0, 1);
  allow(operation, 1, 1);
  operation.inquiry.unanswered = 1;
  EXPECT_EQ(send(32).size(), 2u);
  operation.inquiry.unanswered = 0;
  EXPECT_EQ(send(32).size(), 2u);
  EXPECT_EQ(header(0).stage, 1);
}

TEST_F(SenderTest, send__a_run_of_slots_for_one_question_to_the_source) {
  allow(open(20), 0, 8);
  ASSERT_EQ(send(16).size(), 16u);
  EXPECT_EQ(source_.lends, 2u) << "one a message";
  for (std::uint32_t i = 0; i < 16; ++i) {
    EXPECT_EQ(frames_[i].payload, source_.lent[i % 8].data());
    EXPECT_EQ(frames_[i].lender, lender_of(open_[0]->handle));
    EXPECT_EQ(header(i).slot, i % 8);
  }
}

TEST_F(SenderTest, send__runs_that_end_early) {
  source_.longest = 3;
  allow(open(20), 0, 8);
  ASSERT_EQ(send(8).size(), 8u);
  EXPECT_EQ(source_.lends, 3u);
  for (std::uint32_t i = 0; i < 8; ++i) {
    EXPECT_EQ(frames_[i].payload, source_.lent[i].data());
    EXPECT_EQ(header(i).slot, i);
  }
}

TEST_F(SenderTest, send__repairs_leave_before_slots_for_all_ranks) {
  Operation& operation = open(20);
  allow(operation, 0, 8);
  operation.stages[0].multicast.on = true;
  operation.stages[0].multicast.next = 4;
  for (SendMessage& message : operation.stages[0].sends) message.set_next(4);
  SendMessage& message = operation.stages[0].sends[1];
  request(message, {1, 1});
  EXPECT_THAT(send(3), ElementsAre(Sent{2, 1}, Sent{kAllRanks, 4}, Sent{kAllRanks, 5}));
  EXPECT_EQ(operation.stages[0].multicast.next, 6u);
  EXPECT_EQ(message.next(), 6u);
}

TEST_F(SenderTest, send__slots_for_all_ranks_wait_for_the_peer_that_is_paced) {
  EndpointOptions options = options_;
  options.sending = SendRule::timely;
  Sender paced(options, {.name = "test", .max_payload = kSlotBytes, .gathers = true}, writer_,
               counters_, participants_, alarm_);
  Operation& operation = open(20);
  allow(operation, 0, 8);
  operation.stages[0].multicast.on = true;
  paced.outflow().sent(1, now_, 1 << 30);
  EXPECT_EQ(paced.send(now_, open_, {frames_.data(), 8}), 0u);
  EXPECT_EQ(alarm_.at(), paced.outflow().next(1));
  EXPECT_GT(alarm_.at(), now_);
}

TEST_F(SenderTest, send__copies_the_payload_for_a_port_that_does_not_gather) {
  Sender copies(options_, {.name = "test", .max_payload = kSlotBytes}, writer_, counters_,
                participants_, alarm_);
  allow(open(20), 0, 8);
  std::array<std::array<std::byte, kSlotBytes>, 8> rooms{};
  for (std::size_t i = 0; i < rooms.size(); ++i) {
    frames_[i].header = headers_[i].data();
    frames_[i].room = rooms[i].data();
  }
  ASSERT_EQ(copies.send(now_, open_, {frames_.data(), rooms.size()}), 8u);
  for (std::size_t i = 0; i < rooms.size(); ++i) {
    EXPECT_EQ(frames_[i].payload, rooms[i].data());
    EXPECT_EQ(frames_[i].lender, kNoLender);
    EXPECT_EQ(rooms[i], source_.lent[i]);
  }
}

TEST_F(SenderTest, send__headers_are_complete) {
  allow(open(2), 0, 2);
  ASSERT_EQ(send(4).size(), 4u);
  for (std::size_t i = 0; i < 4; ++i) {
    const tarpon_header one = header(i);
    EXPECT_EQ(tarpon_check_header(&one, 9, frames_[i].length), TARPON_HEADER_OK);
    EXPECT_EQ(one.packet_number, i);
    EXPECT_EQ(one.contributors, 0b11u);
    EXPECT_EQ(one.sent_us, 1'000'000u);
    EXPECT_EQ(one.check, packet_check(one, {frames_[i].payload, frames_[i].length}));
  }
  EXPECT_EQ(counters_.packets_out, 4u);
}

TEST_F(SenderTest, send__news_of_nan_rides_on_first_stages_that_hold_it) {
  for (const std::uint64_t contributors : {0b01u, 0b11u}) {
    source_.contributors = contributors;
    Operation& operation = open(1, 2);
    operation.marks.heard = true;
    operation.marks.ranks = 0b10;  // of rank 1
    allow(operation, 0, 1);
    allow(operation, 1, 1);
    ASSERT_EQ(send(32).size(), 4u);
    EXPECT_EQ((header(0).flags & TARPON_FLAG_NONFINITE) != 0, contributors == 0b11);
    EXPECT_NE(header(2).flags & TARPON_FLAG_NONFINITE, 0);
  }
}

}  // namespace
}  // namespace tarpon::sender_test
