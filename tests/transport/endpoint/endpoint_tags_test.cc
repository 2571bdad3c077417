// Tags that are forgotten, how far peers are, and peers that are silent.
#include <gtest/gtest.h>

#include "tests/support/endpoint_harness.h"
#include "transport/random.h"

namespace tarpon::testing_support::endpoint_tags_test {
namespace {

constexpr auto kClosed = Event::Kind::stage_closed;

/// One complete exchange of both ranks on `tag`.
void run_one(Harness& net, std::uint32_t tag) {
  std::vector<Call*> calls;
  for (Rank rank = 0; rank < net.world(); ++rank) {
    calls.push_back(&net.submit(exchange(rank, net.world(), kFew, 1, tag), rank));
  }
  net.settle();
  for (Rank rank = 0; rank < net.world(); ++rank) {
    ASSERT_EQ(net.count(rank, kClosed), 1u) << "tag " << tag;
    net.events[rank].clear();
    auto kept = std::make_unique<Retained>();
    kept->bytes.resize(kFew);
    kept->contributors.assign(3, 1);
    net[rank].close(calls[rank]->handle, std::move(kept));
  }
}

TEST(EndpointTagsTest, fresh_tags__nothing_is_held_once_all_have_passed) {
  Harness net(3);
  for (std::uint32_t tag = 0; tag < 1000; ++tag) {
    run_one(net, tag);
    net.run_until(net.now + 1ms);
  }
  for (Rank rank = 0; rank < 3; ++rank) {
    EXPECT_LE(net[rank].memory().active_tags, 2 * TARPON_MAX_PASSED);
  }
  net.run_until(net.now + 1s);
  for (Rank rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(net[rank].memory().active_tags, 0u);
    EXPECT_EQ(net[rank].memory().retained_entries, 0u);
    EXPECT_EQ(net[rank].next_deadline(), kNever) << "and nothing is left to do";
  }
}

TEST(EndpointTagsTest, fresh_tags__lost_heartbeats_are_made_up_for) {
  Harness net(2);
  Random random(1);
  const Fate lossy = [&](const Packet& packet) {
    return packet.header().type == TARPON_HEARTBEAT && random.chance(0.5) ? 0 : 1;
  };
  for (std::uint32_t tag = 0; tag < 200; ++tag) {
    run_one(net, tag);
    net.run_until(net.now + 1ms, lossy);
  }
  net.run_until(net.now + 10s, lossy);
  for (Rank rank = 0; rank < 2; ++rank) EXPECT_EQ(net[rank].memory().active_tags, 0u);
}

PortCapabilities narrow_port() {
  PortCapabilities port = plain_port();
  port.max_payload = TARPON_MIN_PAYLOAD;
  port.receive_bytes = 1 << 20;
  return port;
}

TEST(EndpointTagsTest, fresh_tags__heartbeats_fit_the_smallest_slot) {
  Harness net(2, small_options(), narrow_port());  // which looks at the length of each packet
  for (std::uint32_t tag = 0; tag < 3 * TARPON_MAX_PASSED; ++tag) run_one(net, tag);
  net.run_until(net.now + 1s);
  for (Rank rank = 0; rank < 2; ++rank) EXPECT_EQ(net[rank].memory().active_tags, 0u);
}

TEST(EndpointTagsTest, heartbeat__with_more_tags_than_an_answer_holds_is_dropped) {
  Harness net(2, small_options(), narrow_port());
  run_one(net, 0);
  Packet question;
  net.run_until(net.now + 1s, [&](const Packet& packet) {
    if (packet.header().type == TARPON_HEARTBEAT && packet.from == 1) question = packet;
    return 1;
  });
  ASSERT_FALSE(question.bytes.empty());
  tarpon_header header = question.header();
  header.slot = TARPON_HEARTBEAT_QUESTION;
  question.set(header);
  const std::vector<tarpon_passed> tags(TARPON_MIN_PAYLOAD / sizeof(tarpon_passed) + 1);
  question.set_payload(tags.data(), tags.size() * sizeof(tarpon_passed));
  net.give(question);
  EXPECT_EQ(net.dropped(0, DropReason::fields), 1u);
  question.set_payload(tags.data(), (tags.size() - 1) * sizeof(tarpon_passed));
  net.give(question);
  EXPECT_EQ(net.dropped(0, DropReason::fields), 1u);
  EXPECT_FALSE(net.poll(0).empty());
}

TEST(EndpointTagsTest, repair__fits_the_smallest_slot) {
  Harness net(2, small_options(), narrow_port());
  constexpr std::uint64_t kBytes = 400 * kSlot;
  const Call& a = net.submit(exchange(0, 2, kBytes), 0);
  const Call& b = net.submit(exchange(1, 2, kBytes), 1);
  std::size_t most_ranges = 0;
  net.run_until(net.now + 5s, [&](const Packet& packet) {
    const tarpon_header header = packet.header();
    if (header.type == TARPON_REPAIR) most_ranges = std::max(most_ranges, packet.ranges().size());
    const bool lost = header.type == TARPON_DATA && header.slot % 2 == 1 &&
                      (header.flags & TARPON_FLAG_REPAIR) == 0;
    return lost ? 0 : 1;
  });
  expect_exchanged(net, a, b, kBytes);
  EXPECT_EQ(most_ranges, TARPON_MIN_PAYLOAD / sizeof(tarpon_range));
}

TEST(EndpointTagsTest, fresh_tags__one_heartbeat_tells_many) {
  Harness net(2);
  for (std::uint32_t tag = 0; tag < TARPON_MAX_PASSED; ++tag) run_one(net, tag);
  int heartbeats = 0;
  net.run_until(net.now + 1s, [&](const Packet& packet) {
    heartbeats += packet.header().type == TARPON_HEARTBEAT ? 1 : 0;
    return 1;
  });
  EXPECT_LE(heartbeats, 4);
  EXPECT_EQ(net[0].memory().active_tags, 0u);
}

TEST(EndpointTagsTest, the_last_rank_to_close__forgets_at_once) {
  Harness net(2);
  const Call& a = net.submit(exchange(0, 2, kFew), 0);
  const Call& b = net.submit(exchange(1, 2, kFew), 1);
  net.settle();
  net[0].close(a.handle, nullptr);
  net.run_until(net.now + 200ms);  // rank 0 says that it has passed the tag
  EXPECT_EQ(net[1].memory().active_tags, 1u);
  net[1].close(b.handle, nullptr);
  EXPECT_EQ(net[1].memory().active_tags, 0u) << "no packet follows that could do it";
}

// A peer that took the tag for passed would answer what this rank still asks for with ABORT.
TEST(EndpointTagsTest, unpassed__lists_what_this_rank_alone_has_open) {
  Harness net(2);
  const Call& a = net.submit(exchange(0, 2, kFew), 0);
  const Call& b = net.submit(exchange(1, 2, kFew), 1);
  net.settle();
  net[1].close(b.handle, nullptr);
  net.run_until(net.now + 200ms);  // rank 1 says that it has passed the tag
  const std::vector<NextNumber> made{{.tag = 0, .number = 1}};
  EXPECT_EQ(net[0].tags().unpassed(), made);
  net[1].peer_left(0, net[0].tags().unpassed(), net.now);
  EXPECT_EQ(net[1].memory().active_tags, 1u);
  net[0].close(a.handle, nullptr);
  net.run_until(net.now + 200ms);
  EXPECT_TRUE(net[0].tags().unpassed().empty());
  EXPECT_EQ(net[1].memory().active_tags, 0u);
}

TEST(EndpointTagsTest, the_only_live_rank__holds_no_tag) {
  for (const bool aborts : {false, true}) {
    Harness net(2);
    net[0].peer_dead(1, net.now);
    const Call& call = net.submit(exchange(0, 2, kFew), 0);
    if (aborts) {
      net[0].abort(call.handle, TARPON_ABORT_GIVEN_UP, 1);
    } else {
      net[0].close(call.handle, nullptr);
    }
    EXPECT_EQ(net[0].memory().active_tags, 0u);
  }
}

// Nothing is retained for a rank that has left. Its bounded call must not ask until its deadline.
TEST(EndpointTagsTest, a_forgotten_tag__ends_the_bounded_call_of_a_rank_that_left) {
  Harness net(2);
  auto late = exchange(0, 2, kFew);
  late->spec.bounded = late->spec.asks_if_late = true;
  const Call& a = net.submit(std::move(late), 0);
  net.poll(0);
  const Call& b = net.submit(exchange(1, 2, kFew), 1);
  net[1].close(b.handle, nullptr);
  net[1].peer_left(0, {}, net.now);
  ASSERT_EQ(net[1].memory().active_tags, 0u);
  net.run_until(net.now + 1s);
  EXPECT_EQ(net.count(0, Event::Kind::late), 1u);
  EXPECT_EQ(net.count(0, kClosed), 1u);
  EXPECT_EQ(net[0].view(a.handle).progress(0, 1).received, 0u);
}

TEST(EndpointTagsTest, a_forgotten_tag__goes_on_with_its_next_number) {
  Harness net(2);
  run_one(net, 7);
  net.run_until(net.now + 1s);
  EXPECT_EQ(net[0].memory().active_tags, 0u);
  EXPECT_EQ(net[0].tags().next_number(7), 1u);
  // One rank begins, the other one has its packets wait.
  const Call& a = net.submit(exchange(0, 2, kFew, 1, 7), 0);
  net.settle();
  EXPECT_EQ(net[1].counters().parked, 3u);
  const Call& b = net.submit(exchange(1, 2, kFew, 1, 7), 1);
  net.settle();
  expect_exchanged(net, a, b, kFew);
}

TEST(EndpointTagsTest, numbers__remembered_by_one_rank_alone_end_each_call_of_the_tag) {
  EndpointOptions options = small_options();
  Harness net(2, options);
  options.remembered_tags = 1;
  Harness forgetful(2, options);  // its rank 1 takes the place of net's
  const auto exchange_packets = [&](Time end) {
    for (; net.now < end; net.now += 1ms) {
      forgetful.now = net.now;
      net.tick(0);
      forgetful.tick(1);
      for (const Packet& packet : net.poll(0)) forgetful.give(packet);
      for (const Packet& packet : forgetful.poll(1)) net.give(packet);
    }
  };
  const auto run = [&](std::uint32_t tag) {
    Call& a = net.submit(exchange(0, 2, kFew, 1, tag), 0);
    Call& b = forgetful.submit(exchange(1, 2, kFew, 1, tag), 1);
    exchange_packets(net.now + 400ms);
    const auto over = [tag](Harness& of, Rank rank, const Call& call) {
      if (of[rank].tags().is_lost(tag) && of.count(rank, Event::Kind::aborted) == 0) {
        of[rank].abort(call.handle, TARPON_ABORT_FORGOTTEN, 1ull << rank);
        return true;
      }
      const bool aborted = of.count(rank, Event::Kind::aborted) > 0;
      if (aborted) {
        const Event told = of.events_of(rank, Event::Kind::aborted)[0];
        EXPECT_EQ(told.reason, std::uint32_t{TARPON_ABORT_FORGOTTEN});
        EXPECT_EQ(told.ranks, 0b10u) << "rank 1 has forgotten";
        of[rank].abort(call.handle, told.reason, told.ranks);
      } else {
        EXPECT_EQ(of.count(rank, kClosed), 1u);
        of[rank].close(call.handle, nullptr);
      }
      of.events[rank].clear();
      return aborted;
    };
    const bool second = over(forgetful, 1, b);
    exchange_packets(net.now + 10ms);
    const bool first = over(net, 0, a);
    EXPECT_EQ(first, second);
    exchange_packets(net.now + 400ms);
    return first;
  };
  EXPECT_FALSE(run(7));
  EXPECT_FALSE(run(7));
  EXPECT_FALSE(run(8));
  EXPECT_FALSE(run(9));  // by now rank 1 does not remember tag 7
  EXPECT_EQ(net[0].tags().next_number(7), 2u);
  EXPECT_EQ(forgetful[1].tags().next_number(7), 0u);
  for (int again = 0; again < 3; ++again) {
    EXPECT_TRUE(run(7));
    EXPECT_TRUE(forgetful[1].tags().is_lost(7));
  }
  EXPECT_FALSE(net[0].tags().is_lost(7));
  exchange_packets(net.now + 1s);
  EXPECT_EQ(net[0].memory().active_tags, 0u) << "nobody will ask";
  EXPECT_FALSE(run(10));
}

TEST(EndpointTagsTest, numbers__a_rank_that_forgot_none_believes_nobody_that_it_did) {
  Harness net(2);
  run_one(net, 7);
  const Call& a = net.submit(exchange(0, 2, kFew, 1, 7), 0);
  const Call& b = net.submit(exchange(1, 2, kFew, 1, 7), 1);
  const Packets first = net.poll(1);
  Packet lie = first[0];
  lie.set_payload(nullptr, 0);
  tarpon_header header = lie.header();
  header.type = TARPON_ABORT;
  header.slot = TARPON_ABORT_FORGOTTEN;
  header.contributors = 0b01;
  lie.set(header);
  net.give(lie);
  EXPECT_EQ(net.dropped(0, DropReason::unexpected), 1u);
  net.give(first);
  net.settle();
  expect_exchanged(net, a, b, kFew);
}

TEST(EndpointTagsTest, passed_tags__those_that_a_peer_never_passes_hold_up_no_others) {
  Harness net(2);
  // Rank 1 never makes the calls of these tags.
  for (std::uint32_t tag = 100; tag < 100 + 5 * TARPON_MAX_PASSED; ++tag) {
    net[0].close(net.submit(exchange(0, 2, kFew, 1, tag), 0).handle, nullptr);
    net.poll(0);
  }
  const Fate no_news = [](const Packet& packet) {
    return packet.header().type == TARPON_HEARTBEAT ? 0 : 1;
  };
  const Call& a = net.submit(exchange(0, 2, kFew, 1, 7), 0);
  const Call& b = net.submit(exchange(1, 2, kFew, 1, 7), 1);
  net.settle();
  net[0].close(a.handle, nullptr);
  net[1].close(b.handle, nullptr);
  net.run_until(net.now + 200ms, no_news);
  EXPECT_EQ(net[0].memory().active_tags, 5 * TARPON_MAX_PASSED + 1);
  net.run_until(net.now + 1s);
  EXPECT_EQ(net[0].memory().active_tags, 5 * TARPON_MAX_PASSED);
}

// -- closed_below

/// A packet of rank 1 to rank 0, of the given type, that says it has closed all below `below`.
Packet claim(const Packet& like, std::uint8_t type, std::uint32_t operation, std::uint32_t below) {
  Packet packet = like;
  packet.set_payload(nullptr, 0);
  tarpon_header header = packet.header();
  header.type = type;
  header.operation = operation;
  header.closed_below = static_cast<std::uint16_t>(below);
  header.echo_us = 0;
  packet.set(header);
  return packet;
}

TEST(EndpointTagsTest, closed_below__one_forged_packet_changes_nothing) {
  Harness net(2);
  run_one(net, 0);
  Call& a = net.submit(exchange(0, 2, kMany), 0);
  Call& b = net.submit(exchange(1, 2, kMany), 1);
  const Packets first = net.poll(1);
  for (const std::uint32_t ahead : {9u, 1000u, 30'000u}) {
    net.give(claim(first[0], TARPON_CREDIT, 1, 1 + ahead));
    net.give(claim(first[0], TARPON_DATA, 1, 1 + ahead));
    net.give(claim(first[0], TARPON_CLOSED, 1 + ahead - 1, 1 + ahead));
    net.give(claim(first[0], TARPON_CREDIT, 1u << 30, 1u << 30));
    Packet heartbeat = claim(first[0], TARPON_HEARTBEAT, 0, 0);
    const tarpon_passed passed{0, 1 + ahead};
    tarpon_header header = heartbeat.header();
    header.slot = TARPON_HEARTBEAT_ANSWER;
    heartbeat.set(header);
    heartbeat.set_payload(&passed, sizeof passed);
    net.give(heartbeat);
  }
  net.give(first);
  net.run_until(net.now + 200ms);
  expect_exchanged(net, a, b, kMany);
}

TEST(EndpointTagsTest, closed_below__a_true_jump_is_believed_once_it_is_proven) {
  Harness net(2);
  run_one(net, 0);
  // Rank 0 makes many operations that rank 1 hears nothing of, then one that it does.
  const Call& b = net.submit(exchange(1, 2, kFew), 1);
  net.poll(1);
  for (int i = 0; i < 20; ++i) {
    net[0].close(net.submit(exchange(0, 2, kFew), 0).handle, nullptr);
    net.poll(0);
  }
  net.submit(exchange(0, 2, kFew), 0);
  net.run_until(net.now + 300ms);
  // It knows that its operation is over at rank 0: nothing is to be sent any more.
  (void)b;
  net.now += 1s;
  net.tick(1);
  EXPECT_TRUE(of_type(net.poll(1), TARPON_DATA).empty());
  EXPECT_EQ(net[1].tags().furthest(0), 21u);
}

TEST(EndpointTagsTest, closed_below__an_echo_from_the_future_proves_nothing) {
  for (const std::int64_t ahead : {-1'000'000'000, 200'000, 1'000'000'000, 2'000'000'000}) {
    Harness net(2);
    net.submit(exchange(0, 2, kMany), 0);
    net.submit(exchange(1, 2, kMany), 1);
    const Packets first = net.poll(1);
    Packet end = claim(first[0], TARPON_CLOSED, 0, 5000);
    net.give(end);  // rank 0 asks by READY
    net.now += 1ms;
    net.tick(0);
    net.poll(0);
    tarpon_header header = end.header();
    header.echo_us = static_cast<std::uint32_t>(net.now.time_since_epoch() / 1us + ahead);
    end.set(header);
    net.give(end);
    EXPECT_EQ(net[0].tags().furthest(0), 0u) << ahead;
    header.echo_us = static_cast<std::uint32_t>(net.now.time_since_epoch() / 1us);
    end.set(header);
    net.give(end);
    EXPECT_EQ(net[0].tags().furthest(0), 5000u);
  }
}

TEST(EndpointTagsTest, a_forgotten_tag__is_not_kept_for_what_is_refused) {
  Harness net(2);
  run_one(net, 0);
  net.run_until(net.now + 1s);
  ASSERT_EQ(net[0].memory().active_tags, 0u);
  net.submit(exchange(1, 2, kFew), 1);
  net.tick(1);
  const Packets next = net.poll(1);
  for (const std::uint8_t type : {TARPON_DATA, TARPON_CREDIT, TARPON_CLOSED, TARPON_ABORT}) {
    net.give(claim(next[0], type, 1000, 1));
    EXPECT_EQ(net[0].memory().active_tags, 0u) << int{type};
  }
  net.give(next);
  EXPECT_EQ(net[0].memory().active_tags, 1u) << "its next operation has begun at the peer";
  EXPECT_EQ(net[0].memory().early_operations, 1u);
}

// -- silence

Harness watching(std::uint16_t world) {
  EndpointOptions options = small_options();
  options.detects_silence = true;
  return Harness(world, options);
}

TEST(EndpointTagsTest, silence__a_peer_that_does_not_answer_is_silent_within_350_ms) {
  Harness net = watching(3);
  for (Rank rank = 0; rank < 2; ++rank) {
    auto call = exchange(rank, 3, kFew);
    call->spec.bounded = true;
    call->bounds[0] = 5s;
    net.submit(std::move(call), rank);
  }
  const Time began = net.now;
  const Fate cut = [](const Packet& packet) { return packet.from == 2 || packet.to == 2 ? 0 : 1; };
  net.run_until(began + 290ms, cut);
  EXPECT_EQ(net[0].peers().silent(), 0u);
  EXPECT_EQ(net.count(0, kClosed), 0u);
  net.run_until(began + 350ms, cut);
  for (Rank rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(net[rank].peers().silent(), 0b100u);
    EXPECT_EQ(net.count(rank, Event::Kind::silent), 1u);
    EXPECT_EQ(net.count(rank, kClosed), 1u) << "bounded operations go on without it";
  }
  // It is heard again.
  net.submit(exchange(2, 3, kFew), 2);
  net.run_until(net.now + 10ms);
  EXPECT_EQ(net[0].peers().silent(), 0u);
  EXPECT_EQ(net.count(0, Event::Kind::heard), 1u);
}

TEST(EndpointTagsTest, silence__a_peer_that_makes_no_call_answers_all_the_same) {
  Harness net = watching(2);
  net.submit(exchange(0, 2, kFew), 0);
  net.run_until(net.now + 5s);
  EXPECT_EQ(net[0].peers().silent(), 0u);
}

TEST(EndpointTagsTest, silence__idle_ranks_send_nothing) {
  Harness net = watching(2);
  run_one(net, 0);
  net.run_until(net.now + 1s);
  int packets = 0;
  net.run_until(net.now + 100s, [&](const Packet&) { return ++packets, 1; });
  EXPECT_EQ(packets, 0);
}

}  // namespace
}  // namespace tarpon::testing_support::endpoint_tags_test
