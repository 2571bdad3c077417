// The proof that a rank is gone, event by event: one rank's connections over a scripted network.
#include "collectives/membership/streams.h"

#include <gtest/gtest.h>

#include "bpf/wire.h"
#include "collectives/rendezvous/connection.h"
#include "transport/rank_mask.h"

namespace tarpon::mesh::streams_test {
namespace {

constexpr std::uint32_t kJob = 7;

/// Names each stream, and takes all bytes.
class ScriptedNetwork final : public Network {
 public:
  StreamId connect(Rank) override { return latest = ++streams_; }
  std::size_t write(StreamId, std::string_view bytes) override { return bytes.size(); }
  void close(StreamId stream) override { closed = stream; }

  StreamId latest = 0;
  StreamId closed = 0;

 private:
  StreamId streams_ = 0;
};

/// Rank 1 of two, which connects to rank 0. The connection works at first.
class StreamsTest : public testing::Test {
 protected:
  StreamsTest() {
    streams_.tick(now_);
    streams_.connected(network_.latest, now_);
    streams_.received(network_.latest, hello(), now_);
  }

  /// Of rank 0.
  static std::string hello() {
    std::string bytes;
    for (const std::uint32_t word : {0x4d505454u, std::uint32_t{TARPON_WIRE_VERSION}, kJob, 0u}) {
      rendezvous::append_u32(bytes, word);
    }
    return bytes;
  }

  /// The latest connection, or attempt, ends.
  void end() { streams_.ended(network_.latest, "control connection reset", false, now_); }
  void refuse() { streams_.ended(network_.latest, "Connection refused", true, now_); }
  /// The data path is asked.
  void ask() { streams_.set_last_heard(0, heard_, now_); }

  /// Lets time pass until the next attempt begins.
  void attempt() {
    for (const StreamId before = network_.latest; network_.latest == before;) {
      ASSERT_NE(streams_.next_deadline(), kNever);
      now_ = std::max(now_, streams_.next_deadline());
      streams_.tick(now_);
    }
  }

  bool gone() {
    ask();
    return told_gone();
  }
  bool told_gone() {
    streams_.tick(now_);
    bool result = false;
    while (const auto event = streams_.next_event()) {
      result |= event->kind == Streams::Event::Kind::gone;
    }
    return result;
  }

  Time now_{1s};
  Time heard_{};  // the last packet
  ScriptedNetwork network_;
  Streams streams_{1, 2, kJob, network_};
};

TEST_F(StreamsTest, proof__refused_attempts_count_from_100_ms_after_the_end) {
  ASSERT_EQ(streams_.up(), 1u);
  end();
  const Time ended = now_;
  while (now_ < ended + Streams::kQuiet) {
    attempt();
    refuse();
    ASSERT_EQ(gone(), now_ >= ended + Streams::kQuiet) << (now_ - ended) / 1us << " us";
  }
  EXPECT_LT(now_, ended + 300ms);
}

TEST_F(StreamsTest, proof__a_packet_puts_it_off) {
  end();
  attempt();
  refuse();
  now_ += 200ms;
  heard_ = now_;
  attempt();
  refuse();
  EXPECT_FALSE(gone());
}

// Another thread may look at the time between the refusal and the question to the data path.
TEST_F(StreamsTest, proof__waits_for_what_the_data_path_knows_after_the_refusal) {
  end();
  attempt();
  refuse();
  ask();
  now_ += 200ms;
  heard_ = now_;  // not asked yet
  attempt();
  refuse();
  EXPECT_FALSE(told_gone());
  ask();
  EXPECT_FALSE(told_gone());
  const Time heard = now_;
  while (now_ < heard + Streams::kQuiet && !HasFailure()) {
    attempt();
    refuse();
  }
  EXPECT_FALSE(told_gone());
  ask();
  EXPECT_TRUE(told_gone());
}

// The peer's process was stopped: its kernel accepted the attempt, and nobody answered. When it
// goes on, a firewall breaks that connection and refuses others.
TEST_F(StreamsTest, proof__counts_from_the_end_of_an_attempt_that_was_accepted) {
  end();
  attempt();
  streams_.connected(network_.latest, now_);
  now_ += 500ms;
  end();
  const Time ended = now_;
  attempt();
  refuse();
  ASSERT_FALSE(gone());
  while (now_ < ended + Streams::kQuiet) {
    attempt();
    refuse();
  }
  EXPECT_TRUE(gone());
}

// A firewall looked like death: rank 0, which has no proof against this rank, calls it.
TEST_F(StreamsTest, proof__answers_a_call_by_one_attempt) {
  end();
  const Time ended = now_;
  while (now_ < ended + Streams::kQuiet) {
    attempt();
    refuse();
  }
  ASSERT_TRUE(gone());
  EXPECT_EQ(streams_.next_deadline(), kNever);
  for (const StreamId caller : {StreamId{1001}, StreamId{1002}}) {
    const StreamId before = network_.latest;
    streams_.accepted(caller, now_);
    streams_.received(caller, hello(), now_);
    streams_.tick(now_);
    ASSERT_EQ(network_.latest, before + 1);
    if (caller == 1002) break;
    refuse();
    EXPECT_EQ(streams_.next_deadline(), kNever);
  }
  streams_.connected(network_.latest, now_);
  streams_.received(network_.latest, hello(), now_);
  EXPECT_EQ(streams_.up(), 1u);
}

/// Rank 0 of three, which accepts streams.
class StreamsDoorTest : public testing::Test {
 protected:
  /// A stream from an address of `may_be` (bit r: rank r). Returns its id.
  StreamId call(std::uint64_t may_be) {
    streams_.accepted(++latest_, now_, may_be);
    return latest_;
  }
  void say_hello(StreamId stream, Rank rank) {
    std::string bytes;
    for (const std::uint32_t word :
         {0x4d505454u, std::uint32_t{TARPON_WIRE_VERSION}, kJob, std::uint32_t{rank}}) {
      rendezvous::append_u32(bytes, word);
    }
    streams_.received(stream, bytes, now_);
  }

  Time now_{1s};
  StreamId latest_ = 100;
  ScriptedNetwork network_;
  Streams streams_{0, 3, kJob, network_};
};

TEST_F(StreamsDoorTest, accepted__the_oldest_silent_stranger_makes_room_for_a_rank) {
  const StreamId rank_2 = call(bit(2));
  say_hello(rank_2, 2);
  ASSERT_EQ(streams_.up(), bit(2));
  const StreamId again = call(bit(2));  // waits for the end of the first one
  say_hello(again, 2);
  for (std::size_t i = 0; i < 3 * Streams::kMaxStrangers; ++i) call(bit(1) | bit(2));
  const StreamId rank_1 = call(bit(1));
  for (std::size_t i = 0; i + 2 < Streams::kMaxStrangers; ++i) call(bit(1) | bit(2));
  say_hello(rank_1, 1);
  EXPECT_EQ(streams_.up(), bit(1) | bit(2));
  streams_.ended(rank_2, "control connection reset", false, now_);
  EXPECT_EQ(streams_.up(), bit(1) | bit(2)) << "one that has said HELLO is not displaced";
}

TEST_F(StreamsDoorTest, accepted__from_the_address_of_no_rank__is_closed) {
  const StreamId stranger = call(0);
  EXPECT_EQ(network_.closed, stranger);
  say_hello(stranger, 1);
  EXPECT_EQ(streams_.up(), 0u);
}

TEST_F(StreamsDoorTest, hello__of_a_rank_with_another_address__is_refused) {
  const StreamId stranger = call(bit(2));
  say_hello(stranger, 1);
  EXPECT_EQ(network_.closed, stranger);
  EXPECT_EQ(streams_.up(), 0u);
  say_hello(call(bit(1)), 1);
  EXPECT_EQ(streams_.up(), bit(1));
}

}  // namespace
}  // namespace tarpon::mesh::streams_test
