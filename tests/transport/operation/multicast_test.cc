// Slots that leave for all peers at once: when they leave, peers out of step, repairs.
#include "transport/operation/multicast.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "tests/support/endpoint_harness.h"

namespace tarpon::multicast_test {
namespace {

using namespace testing_support;

/// A stage of messages of 100 slots to ranks 1, 2 and 3, with these grants.
struct Sending {
  explicit Sending(std::vector<std::uint32_t> grants) {
    operation.peers.resize(1 + grants.size());
    operation.stage_count = 1;
    stage.multicast.on = true;
    stage.sends.resize(grants.size());
    for (std::size_t i = 0; i < grants.size(); ++i) {
      stage.sends[i].reset({.peer = static_cast<Rank>(1 + i), .bytes = 100 * kSlot}, kSlot, 100);
      stage.sends[i].grant(grants[i]);
    }
  }
  std::uint32_t limit(Time now) {
    alarm.reset();
    return multicast_limit(operation, stage, participants, now, alarm);
  }
  std::uint32_t alone(std::size_t i) const {
    return unicast_limit(stage, stage.sends[i], participants);
  }

  Participants participants{4};
  Operation operation;  // no peer has begun it
  Stage& stage = operation.stages[0];
  Alarm alarm;
};

TEST(MulticastTest, limit__is_what_all_have_credit_for) {
  Sending sending({10, 12, 20});
  EXPECT_EQ(sending.limit(Time(1s)), 10u);
  note_multicast(sending.stage, sending.participants, 10);
  EXPECT_EQ(sending.stage.multicast.next, 10u);
  for (const SendMessage& message : sending.stage.sends) EXPECT_EQ(message.next(), 10u);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(sending.alone(i), 10u) << "nothing one by one";
}

TEST(MulticastTest, limit__is_nothing_without_credit) {
  Sending sending({0, 0, 0});
  EXPECT_EQ(sending.limit(Time(1s)), 0u);
  EXPECT_EQ(sending.alarm.at(), kNever);
}

TEST(MulticastTest, limit__peers_wait_for_one_without_credit_for_2_ms) {
  Sending sending({0, 12, 20});
  EXPECT_EQ(sending.limit(Time(1s)), 0u);
  EXPECT_EQ(sending.alarm.at(), Time(1s + 2ms));
  EXPECT_EQ(sending.limit(Time(1s + 1ms)), 0u);
  EXPECT_EQ(sending.alarm.at(), Time(1s + 2ms));
  EXPECT_EQ(sending.limit(Time(1s + 2ms)), 12u);
  note_multicast(sending.stage, sending.participants, 12);
  for (const SendMessage& message : sending.stage.sends) {
    EXPECT_EQ(message.next(), 12u) << "it hears them all the same";
  }
}

TEST(MulticastTest, limit__peers_wait_for_one_that_has_begun_for_50_ms) {
  Sending sending({0, 12, 0});
  sending.operation.peers[1].note_heard(false);
  EXPECT_EQ(sending.limit(Time(1s)), 0u);
  EXPECT_EQ(sending.alarm.at(), Time(1s + 50ms));
  EXPECT_EQ(sending.limit(Time(1s + 49ms)), 0u);
  EXPECT_EQ(sending.limit(Time(1s + 50ms)), 12u);
  Sending served({8, 12, 0});
  served.operation.peers[1].note_heard(false);
  EXPECT_EQ(served.limit(Time(1s)), 0u);
  EXPECT_EQ(served.limit(Time(1s + 3ms)), 8u) << "the other one has not begun";
}

TEST(MulticastTest, limit__peers_wait_for_a_quarter_of_what_is_left_of_the_stage) {
  Sending sending({0, 12, 20});
  sending.operation.peers[1].note_heard(false);
  sending.stage.end = Time(1s + 100ms);
  EXPECT_EQ(sending.limit(Time(1s)), 0u);
  EXPECT_EQ(sending.alarm.at(), Time(1s + 25ms));
  EXPECT_EQ(sending.limit(Time(1s + 25ms)), 12u);
  note_multicast(sending.stage, sending.participants, 4);
  sending.stage.sends[0].grant(4);
  EXPECT_EQ(sending.limit(Time(2s)), 12u) << "the end has passed";
}

TEST(MulticastTest, in_step__nobody_waits_for_a_peer_until_its_credit_has_caught_up) {
  Sending sending({0, 12, 20});
  sending.limit(Time(1s));
  sending.limit(Time(1s + 2ms));
  note_multicast(sending.stage, sending.participants, 12);
  SendMessage& slow = sending.stage.sends[0];
  EXPECT_FALSE(in_step(sending.stage, slow, sending.participants));
  for (std::size_t i = 0; i < 3; ++i) sending.stage.sends[i].grant(i == 0 ? 11 : 30);
  EXPECT_EQ(sending.limit(Time(2s)), 30u);
  slow.grant(12);
  EXPECT_TRUE(in_step(sending.stage, slow, sending.participants));
  EXPECT_EQ(sending.limit(Time(3s)), 12u) << "the others wait for it";
}

TEST(MulticastTest, in_step__neither_silent_peers_nor_those_that_need_nothing) {
  Sending sending({0, 12, 0});
  sending.participants.set_silent(1, true);
  sending.stage.sends[2].finish();
  EXPECT_EQ(sending.limit(Time(1s)), 12u);
  note_multicast(sending.stage, sending.participants, 12);
  sending.stage.sends[0].grant(20);
  EXPECT_EQ(sending.stage.sends[0].next(), 0u);
  EXPECT_EQ(sending.alone(0), 20u) << "a silent peer is not held back by the others";
  sending.participants.set_silent(1, false);
  EXPECT_EQ(sending.alone(0), 12u) << "what left while it was silent";
  sending.stage.sends[1].grant(30);
  ASSERT_EQ(sending.limit(Time(1s)), 20u);
  note_multicast(sending.stage, sending.participants, 8);
  EXPECT_EQ(sending.stage.sends[0].next(), 0u) << "it still gets those";
  EXPECT_EQ(sending.stage.sends[1].next(), 20u);
}

TEST(MulticastTest, note__part_of_what_may_leave) {
  Sending sending({10, 12, 20});
  ASSERT_EQ(sending.limit(Time(1s)), 10u);
  note_multicast(sending.stage, sending.participants, 4);
  EXPECT_EQ(sending.stage.multicast.next, 4u);
  EXPECT_EQ(sending.limit(Time(1s)), 10u);
}

TEST(MulticastTest, answer__the_second_request_for_a_slot_is_answered_for_all) {
  Sending sending({10, 12, 20});
  Stage& stage = sending.stage;
  const Time start(1s);
  EXPECT_EQ(answer_to(stage, 2, 5, start), Rank{2});
  EXPECT_EQ(answer_to(stage, 1, 5, start + 1ms), kAllRanks);
  EXPECT_EQ(answer_to(stage, 3, 5, start + 2ms), std::nullopt) << "it is on its way";
  EXPECT_EQ(answer_to(stage, 3, 6, start + 2ms), Rank{3}) << "another slot";
  EXPECT_EQ(answer_to(stage, 3, 5, start + 3ms), kAllRanks) << "it was lost again";
  EXPECT_EQ(answer_to(stage, 3, 5, start + 20ms), Rank{3}) << "another loss";
}

TEST(MulticastTest, receives__have_the_same_order_at_all_ranks) {
  OperationSpec spec;
  spec.slot_bytes = kSlot;
  spec.stages.resize(1);
  spec.stages[0].alike = true;
  for (const Rank peer : {Rank{2}, Rank{3}, Rank{0}}) {
    spec.stages[0].receives.push_back({.peer = peer, .bytes = kFew});
  }
  for (const bool multicast : {true, false}) {
    EndpointOptions options = small_options();
    options.rank = 1;
    options.world_size = 4;
    options.multicast = multicast;
    Operation operation;
    prepare(operation, spec, options, Time(1s));
    Stage& stage = operation.stages[0];
    EXPECT_EQ(stage.receives[0].peer(), multicast ? 0 : 2);
    for (const Rank peer : {Rank{0}, Rank{2}, Rank{3}}) {
      ASSERT_NE(stage.receive_from(peer), nullptr);
      EXPECT_EQ(stage.receive_from(peer)->peer(), peer);
    }
    EXPECT_EQ(stage.receive_from(1), nullptr);
  }
}

/// Lends and takes the same bytes for all peers.
class Bytes : public Source, public Sink {
 public:
  explicit Bytes(std::uint64_t bytes) : data(bytes) {}
  OutgoingRun lend(std::uint32_t first, std::uint32_t most) override {
    return {data.data() + std::size_t{first} * kSlot, kSlot, most, 1};
  }
  void deliver(const IncomingRun& run) override {
    for (std::uint32_t i = 0; i < run.packets.size(); ++i) {
      const std::span<const std::byte> payload = run.payload(i);
      std::copy(payload.begin(), payload.end(),
                data.begin() + static_cast<std::ptrdiff_t>((run.first + i) * kSlot));
    }
  }
  std::vector<std::byte> data;
};

/// Rank 0 sends the same `bytes` to ranks 1, 2 and 3.
struct AlikeJob {
  explicit AlikeJob(std::uint64_t bytes, bool multicast = true)
      : net(4, options(multicast), group_port()) {
    for (Rank rank = 0; rank < 4; ++rank) memory.push_back(std::make_unique<Bytes>(bytes));
    for (std::size_t i = 0; i < bytes; ++i) memory[0]->data[i] = static_cast<std::byte>(i * 7);
    for (Rank rank = 0; rank < 4; ++rank) {
      auto call = std::make_unique<Call>();
      call->spec.slot_bytes = kSlot;
      call->spec.signature[0] = 1;
      StageSpec stage;
      stage.alike = true;
      for (Rank peer = 1; peer < 4 && rank == 0; ++peer) {
        stage.sends.push_back({peer, memory[0].get(), bytes});
      }
      if (rank > 0) stage.receives.push_back({0, memory[rank].get(), bytes});
      call->spec.stages.push_back(std::move(stage));
      net.submit(std::move(call), rank);
    }
  }
  static PortCapabilities group_port() {
    PortCapabilities port = plain_port();
    port.multicasts = true;
    return port;
  }
  static EndpointOptions options(bool multicast) {
    EndpointOptions options = small_options();
    options.multicast = multicast;
    return options;
  }
  void expect_delivered() const {
    for (Rank rank = 1; rank < 4; ++rank) EXPECT_EQ(memory[rank]->data, memory[0]->data) << rank;
  }

  Harness net;
  std::vector<std::unique_ptr<Bytes>> memory;
};

TEST(MulticastTest, endpoint__one_packet_a_slot_serves_all_peers) {
  for (const std::uint64_t bytes : {kFew, kMany, kMany - 3}) {
    AlikeJob job(bytes);
    job.net.run_until(job.net.now + 50ms);
    job.expect_delivered();
    EXPECT_EQ(job.net[0].counters().data_out, (bytes + kSlot - 1) / kSlot);
    AlikeJob plain(bytes, false);
    plain.net.run_until(plain.net.now + 50ms);
    plain.expect_delivered();
    EXPECT_EQ(plain.net[0].counters().data_out, 3 * ((bytes + kSlot - 1) / kSlot));
  }
}

TEST(MulticastTest, endpoint__packets_for_all_have_no_echo) {
  AlikeJob job(kMany);
  std::size_t seen = 0;
  job.net.run_until(job.net.now + 50ms, [&](const Packet& packet) {
    if (packet.header().type == TARPON_DATA) {
      ++seen;
      EXPECT_EQ(packet.header().echo_us, 0u);
    }
    return 1;
  });
  EXPECT_EQ(seen, 3 * kMany / kSlot);
}

TEST(MulticastTest, endpoint__a_copy_that_is_lost_is_repaired_for_its_peer_alone) {
  AlikeJob job(kMany);
  bool lost = false;
  job.net.run_until(job.net.now + 200ms, [&](const Packet& packet) {
    const tarpon_header header = packet.header();
    if (lost || packet.to != 2 || header.type != TARPON_DATA || header.slot != 2) return 1;
    lost = true;
    return 0;
  });
  job.expect_delivered();
  EXPECT_EQ(job.net[0].counters().repaired_slots, 1u);
  EXPECT_EQ(job.net[0].counters().data_out, 21u);
}

TEST(MulticastTest, endpoint__a_peer_that_begins_later_gets_all) {
  AlikeJob job(kMany);
  const Time begins = job.net.now + 5ms;
  job.net.run_until(job.net.now + 300ms, [&](const Packet& packet) {
    return (packet.to == 3 || packet.from == 3) && job.net.now < begins ? 0 : 1;
  });
  job.expect_delivered();
}

}  // namespace
}  // namespace tarpon::multicast_test
