// What a rank and a peer have told each other: READYs, the begin, questions.
#include "transport/operation/peer_exchange.h"

#include <gtest/gtest.h>

namespace tarpon::peer_exchange_test {
namespace {

constexpr Time kNow = Time(1s);

TEST(ReadyTimerTest, sent__the_next_one_follows_later_and_later) {
  ReadyTimer ready;
  EXPECT_FALSE(ready.is_due(kNow));
  ready.announce(kNow);
  EXPECT_TRUE(ready.is_due(kNow));
  EXPECT_EQ(ready.repeats(), 0u) << "an announcement";
  ready.sent(kNow, 1ms, 3ms);
  EXPECT_EQ(ready.at(), kNow + 1ms);
  ready.sent(kNow + 1ms, 1ms, 3ms);
  EXPECT_EQ(ready.at(), kNow + 3ms);
  ready.sent(kNow + 3ms, 1ms, 3ms);
  EXPECT_EQ(ready.at(), kNow + 6ms) << "at most the longest delay";
  EXPECT_EQ(ready.repeats(), 3u);
}

TEST(ReadyTimerTest, ask__counts_as_repeated) {
  ReadyTimer ready;
  ready.ask(kNow);
  EXPECT_EQ(ready.repeats(), 1u);
  EXPECT_FALSE(ready.ask_if_none_is_due(kNow + 1ms));
  EXPECT_EQ(ready.at(), kNow);
  ready.stop();
  EXPECT_TRUE(ready.ask_if_none_is_due(kNow + 1ms));
  EXPECT_EQ(ready.at(), kNow + 1ms);
}

TEST(ReadyTimerTest, is_answered_by__a_packet_whose_echo_is_not_older) {
  ReadyTimer ready;
  tarpon_header header{};
  header.echo_us = microseconds(kNow);
  EXPECT_FALSE(ready.is_answered_by(header, kNow)) << "none has left";
  ready.sent(kNow, 1ms, 1ms);
  EXPECT_TRUE(ready.is_answered_by(header, kNow + 1ms));
  header.echo_us = microseconds(kNow - 1us);
  EXPECT_FALSE(ready.is_answered_by(header, kNow + 1ms));
}

TEST(PeerExchangeTest, note_begin__the_first_packet_counts_unless_a_later_one_corrects_it) {
  PeerExchange exchange;
  EXPECT_EQ(exchange.begin().at, kNever);
  exchange.note_begin({kNow, 1ms}, false);
  exchange.note_begin({kNow - 5ms, 2ms}, false);
  EXPECT_EQ(exchange.begin().at, kNow);
  exchange.note_begin({kNow + 5ms, 2ms}, true);
  EXPECT_EQ(exchange.begin().at, kNow) << "it tells no earlier begin";
  exchange.note_begin({kNow - 5ms, 2ms}, true);
  EXPECT_EQ(exchange.begin().at, kNow - 5ms);
  EXPECT_EQ(exchange.begin().read_after, 2ms);
}

TEST(PeerExchangeTest, note_heard__ends_announcements_but_no_question) {
  for (const bool asks : {false, true}) {
    PeerExchange exchange;
    exchange.ready().announce(kNow);
    if (asks) {
      EXPECT_TRUE(exchange.ask_if_late(kNow));
    }
    EXPECT_TRUE(exchange.note_heard(false));
    EXPECT_FALSE(exchange.note_heard(false));
    EXPECT_EQ(exchange.ready().is_due(kNow), asks);
  }
  PeerExchange late;
  late.ready().announce(kNow);
  late.note_heard(true);
  EXPECT_TRUE(late.ready().is_due(kNow));
}

TEST(PeerExchangeTest, end_question__goes_on_announcing_to_a_peer_that_was_not_heard) {
  for (const bool heard : {false, true}) {
    PeerExchange exchange;
    if (heard) exchange.note_heard(false);
    EXPECT_FALSE(exchange.end_question());
    EXPECT_TRUE(exchange.ask_if_late(kNow));
    EXPECT_FALSE(exchange.ask_if_late(kNow + 1ms)) << "it has not answered";
    EXPECT_TRUE(exchange.end_question());
    EXPECT_EQ(exchange.ready().is_due(kNow + 1ms), !heard);
  }
}

TEST(PeerExchangeTest, note_mismatch__the_peer_gets_the_fields_once_and_when_it_asks) {
  PeerExchange exchange;
  EXPECT_TRUE(exchange.note_mismatch(false));
  EXPECT_TRUE(exchange.disagrees());
  EXPECT_FALSE(exchange.note_mismatch(false));
  EXPECT_TRUE(exchange.note_mismatch(true));
}

TEST(PeerExchangeTest, check_jump__asks_once_in_an_interval) {
  PeerExchange exchange;
  EXPECT_TRUE(exchange.check_jump(kNow, 10ms));
  EXPECT_FALSE(exchange.check_jump(kNow + 9ms, 10ms));
  EXPECT_TRUE(exchange.check_jump(kNow + 10ms, 10ms));
}

}  // namespace
}  // namespace tarpon::peer_exchange_test
