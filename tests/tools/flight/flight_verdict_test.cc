// Made-up recordings: what they are merged to, and whom the verdict names.
#include "tools/flight/verdict.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cerrno>

#include "bpf/wire.h"
#include "collectives/engine/flight_events.h"
#include "tools/flight/flight_report.h"
#include "transport/random.h"

namespace tarpon::flight_verdict_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::uint32_t kJob = 0xabc;

/// A job in the making: events are told rank by rank, with times in milliseconds.
class Story {
 public:
  explicit Story(std::uint16_t ranks) {
    for (std::uint16_t rank = 0; rank < ranks; ++rank) {
      FlightDump dump;
      dump.header.job = kJob;
      dump.header.rank = rank;
      dump.header.world_size = ranks;
      dump.header.dumped_monotonic = Duration(100s).count();
      dump.header.boot_id[0] = 'a';
      dumps.push_back(dump);
    }
  }

  Record& tell(Rank rank, double at_ms, RecordKind kind, std::uint32_t operation,
               std::uint8_t peer = kNoPeer) {
    Record record;
    record.time = Time(1s) + Duration(static_cast<Duration::rep>(at_ms * 1e6));
    record.kind = kind;
    record.operation = operation;
    record.peer = peer;
    record.number = dumps[rank].header.written++;
    dumps[rank].records.push_back(record);
    return dumps[rank].records.back();
  }

  void begin(Rank rank, double at_ms, std::uint32_t operation, std::uint64_t count = 1000) {
    tell(rank, at_ms, RecordKind::submitted, operation).set_mask(count);
    tell(rank, at_ms, RecordKind::opened, operation);
  }

  void hear(Rank rank, double at_ms, std::uint32_t operation, std::initializer_list<Rank> from) {
    for (const Rank peer : from) {
      tell(rank, at_ms, RecordKind::first_packet, operation, static_cast<std::uint8_t>(peer));
    }
  }

  void end(Rank rank, double at_ms, std::uint32_t operation, Status status,
           std::uint64_t named = 0) {
    Record& record = tell(rank, at_ms, RecordKind::ended, operation);
    record.detail = static_cast<std::uint8_t>(status);
    record.set_mask(named);
  }

  /// Everybody takes part and all is well.
  void good(std::uint32_t operation, double at_ms) {
    for (Rank rank = 0; rank < dumps.size(); ++rank) {
      begin(rank, at_ms, operation);
      for (Rank peer = 0; peer < dumps.size(); ++peer) {
        if (peer != rank) hear(rank, at_ms + 1, operation, {peer});
      }
      for (std::uint8_t stage = 0; stage < 2; ++stage) {
        tell(rank, at_ms + 2 + stage, RecordKind::stage_closed, operation).stage = stage;
      }
      end(rank, at_ms + 5, operation, Status::complete);
    }
  }

  FlightJob merge(std::initializer_list<Rank> lost = {}) const {
    std::vector<FlightDump> kept;
    for (const FlightDump& dump : dumps) {
      if (std::find(lost.begin(), lost.end(), dump.header.rank) == lost.end()) kept.push_back(dump);
    }
    auto job = merge_flights(std::move(kept), std::nullopt);
    EXPECT_TRUE(job);
    return *job;
  }

  std::vector<FlightDump> dumps;
};

std::vector<Rank> guilty(const FlightVerdict& verdict) {
  std::vector<Rank> ranks;
  for (const FlightBlame& one : verdict.guilty) ranks.push_back(one.rank);
  return ranks;
}

using Guilty = std::vector<Rank>;

TEST(FlightVerdict, all_alike__nobody) {
  Story story(3);
  story.good(0, 0);
  story.good(1, 10);
  const FlightVerdict verdict = judge_flight(story.merge());
  EXPECT_FALSE(verdict.operation);
  EXPECT_THAT(verdict.line, HasSubstr("nothing differs"));
}

TEST(FlightVerdict, rank_that_never_began) {
  Story story(3);
  story.good(0, 0);
  for (const Rank rank : std::initializer_list<Rank>{0, 1}) {
    story.begin(rank, 10, 1);
    story.hear(rank, 11, 1, {static_cast<Rank>(1 - rank)});
    story.end(rank, 500, 1, Status::peer_late, 0b100);
  }
  const FlightVerdict verdict = judge_flight(story.merge());
  EXPECT_EQ(verdict.operation, OperationKey(0, 1));
  EXPECT_EQ(guilty(verdict), Guilty{2});
  EXPECT_THAT(verdict.line, HasSubstr("rank 2: never made the call"));
  // It may also have left nothing at all.
  const FlightVerdict without = judge_flight(story.merge({2}));
  EXPECT_EQ(guilty(without), Guilty{2});
  EXPECT_THAT(without.line, HasSubstr("left no recording"));
}

/// All three ranks begin call 1, and hear one another.
void begin_on_all(Story& story) {
  for (Rank rank = 0; rank < 3; ++rank) {
    story.begin(rank, 10, 1);
    for (Rank peer = 0; peer < 3; ++peer) {
      if (peer != rank) story.hear(rank, 11, 1, {peer});
    }
  }
}

// A call through the memory of a host asks for nothing by packets: only the silence tells.
TEST(FlightVerdict, rank_that_began_and_fell_silent__in_a_call_that_asks_for_nothing) {
  for (const bool is_back : {false, true}) {
    Story story(3);
    story.good(0, 0);
    begin_on_all(story);
    for (const Rank rank : std::initializer_list<Rank>{0, 1}) {
      Record& silence = story.tell(rank, 310, RecordKind::silence, 0);
      silence.peer = 2;
      silence.value = 1;
      if (is_back) {
        Record& heard = story.tell(rank, 400, RecordKind::silence, 0);
        heard.peer = 2;
      }
    }
    const FlightVerdict verdict = judge_flight(story.merge({2}));
    EXPECT_EQ(guilty(verdict), is_back ? Guilty{} : Guilty{2});
    EXPECT_THAT(verdict.line, HasSubstr(is_back ? "undecided" : "rank 2: fell silent in it"));
  }
}

/// The host of rank 2 refuses its packets from the middle of a call on.
FlightJob job_with_refusals(int error, double at_ms = 60) {
  Story story(3);
  story.good(0, 0);
  begin_on_all(story);
  Record& refused = story.tell(2, at_ms, RecordKind::send_refused, 0);
  refused.detail = static_cast<std::uint8_t>(error);
  refused.value = 17;
  for (const Rank rank : std::initializer_list<Rank>{0, 1}) {
    story.end(rank, 500, 1, Status::peer_late, 0b100);
  }
  story.end(2, 501, 1, Status::peer_late, 0b011);
  return story.merge();
}

TEST(FlightVerdict, rank_whose_host_refuses_its_packets) {
  const FlightJob forbidden = job_with_refusals(EPERM);
  const FlightVerdict verdict = judge_flight(forbidden);
  EXPECT_EQ(verdict.cause, FlightCause::send_refused);
  EXPECT_EQ(guilty(verdict), Guilty{2});
  EXPECT_THAT(verdict.line, HasSubstr("rank 2: its host refused to send (Operation not permitted): "
                                      "its own firewall, or a route, forbids outgoing UDP"));
  EXPECT_THAT(verdict.next, HasSubstr("open outgoing UDP in this rank's own firewall"));
  ASSERT_EQ(verdict.evidence.size(), 1u);
  EXPECT_THAT(verdict.evidence[0].text, HasSubstr("from here on 17"));
  const FlightVerdict large = judge_flight(job_with_refusals(EMSGSIZE));
  EXPECT_EQ(guilty(large), Guilty{2});
  EXPECT_THAT(large.line, HasSubstr("Message too long): the MTU of its interface"));
  EXPECT_THAT(large.next, HasSubstr("raise the MTU"));
}

TEST(FlightVerdict, packets_refused_before_the_call_or_in_passing__blame_nobody) {
  EXPECT_NE(judge_flight(job_with_refusals(EPERM, 8)).cause, FlightCause::send_refused);
  EXPECT_NE(judge_flight(job_with_refusals(ENOBUFS)).cause, FlightCause::send_refused);
}

TEST(FlightVerdict, rank_that_began_late) {
  Story story(3);
  for (const Rank rank : std::initializer_list<Rank>{0, 1}) {
    story.begin(rank, 10, 0);
    story.hear(rank, 11, 0, {static_cast<Rank>(1 - rank)});
    story.end(rank, 30, 0, Status::partial, 0b100);
  }
  story.begin(2, 50, 0);
  story.end(2, 60, 0, Status::late_self, 0b100);
  const FlightVerdict verdict = judge_flight(story.merge());
  EXPECT_EQ(guilty(verdict), Guilty{2});
  EXPECT_THAT(verdict.line, HasSubstr("made the call 40.000 ms after the first"));
}

/// Ranks 0 and 1 run out of time at 100 ms and learn at `learned_ms` that rank 2 has left.
Story late_call(double learned_ms) {
  Story story(3);
  for (Rank rank = 0; rank < 3; ++rank) {
    story.begin(rank, 0, 0);
    for (Rank peer = 0; peer < 3; ++peer) {
      if (peer != rank) story.hear(rank, 1, 0, {peer});
    }
    story.end(rank, 100, 0, Status::peer_late, 0b111u & ~(1u << rank));
    if (rank == 2) continue;
    story.tell(rank, learned_ms, RecordKind::standing, 0, 2).detail =
        static_cast<std::uint8_t>(Standing::left);
  }
  return story;
}

TEST(FlightVerdict, rank_that_left_after_the_failed_call__is_not_named) {
  const Story story = late_call(110);
  EXPECT_NE(judge_flight(story.merge()).cause, FlightCause::left);
  EXPECT_EQ(guilty(judge_flight(story.merge())), Guilty{});
  // Without its recording, the others' recordings show that it took part.
  EXPECT_NE(judge_flight(story.merge({2})).cause, FlightCause::left);
}

TEST(FlightVerdict, rank_that_left_before_the_others_had_ended_the_call) {
  Story story = late_call(90);
  for (FlightDump& dump : story.dumps) {
    Record& ended = *std::find_if(dump.records.begin(), dump.records.end(),
                                  [](const Record& one) { return one.kind == RecordKind::ended; });
    const bool leaves = dump.header.rank == 2;
    ended.detail = static_cast<std::uint8_t>(leaves ? Status::complete : Status::peer_left);
    ended.set_mask(leaves ? 0 : 0b100);
  }
  const FlightVerdict verdict = judge_flight(story.merge());
  EXPECT_EQ(verdict.cause, FlightCause::left);
  EXPECT_EQ(guilty(verdict), Guilty{2});
  EXPECT_THAT(verdict.line, HasSubstr("left the job before the others had ended the call"));
}

TEST(FlightVerdict, rank_that_left_while_it_served_and_died__died) {
  Story story(3);
  for (Rank rank = 0; rank < 3; ++rank) {
    story.begin(rank, 0, 0);
    for (Rank peer = 0; peer < 3; ++peer) {
      if (peer != rank) story.hear(rank, 1, 0, {peer});
    }
    if (rank == 2) continue;
    story.tell(rank, 40, RecordKind::standing, 0, 2).detail =
        static_cast<std::uint8_t>(Standing::left);
    story.tell(rank, 60, RecordKind::standing, 0, 2).detail =
        static_cast<std::uint8_t>(Standing::dead);
    story.end(rank, 60, 0, Status::peer_dead, 0b100);
  }
  const FlightVerdict verdict = judge_flight(story.merge({2}));
  EXPECT_EQ(verdict.cause, FlightCause::died);
  EXPECT_EQ(guilty(verdict), Guilty{2});
}

TEST(FlightVerdict, other_signature__the_minority_and_the_field) {
  Story story(3);
  for (Rank rank = 0; rank < 3; ++rank) {
    story.begin(rank, 10, 4, rank == 1 ? 2000 : 1000);
    story.end(rank, 60, 4, Status::mismatch, rank == 1 ? 0b101 : 0b010);
  }
  const FlightVerdict verdict = judge_flight(story.merge());
  EXPECT_EQ(guilty(verdict), Guilty{1});
  EXPECT_THAT(verdict.line, HasSubstr("rank 1: count 2000 instead of 1000"));
}

TEST(FlightVerdict, two_ranks_that_differ__undecided_between_both) {
  Story story(2);
  story.begin(0, 0, 0, 1);
  story.begin(1, 0, 0, 2);
  const FlightVerdict verdict = judge_flight(story.merge());
  EXPECT_EQ(verdict.cause, FlightCause::undecided);
  EXPECT_TRUE(verdict.guilty.empty());
  ASSERT_EQ(verdict.candidates.size(), 2u);
  EXPECT_THAT(verdict.line, HasSubstr("rank 1: count 2 instead of 1"));
}

TEST(FlightVerdict, rank_that_died_of_a_signal) {
  Story story(2);
  story.begin(0, 0, 0);
  story.begin(1, 0, 0);
  story.end(0, 900, 0, Status::peer_late, 0b10);
  story.dumps[1].header.reason = DumpReason::fatal;
  story.dumps[1].header.signal = 11;
  const FlightVerdict verdict = judge_flight(story.merge());
  EXPECT_EQ(guilty(verdict), Guilty{1});
  EXPECT_THAT(verdict.line, HasSubstr("died of signal 11"));
}

TEST(FlightVerdict, rank_that_died_of_a_signal__while_most_ranks_were_late) {
  Story story(3);
  story.begin(2, 0, 0);
  for (const Rank rank : std::initializer_list<Rank>{0, 1}) {
    story.begin(rank, 90, 0);
    story.hear(rank, 91, 0, {static_cast<Rank>(1 - rank), 2});
    story.end(rank, 100, 0, Status::peer_dead, 0b100);
  }
  story.dumps[2].header.reason = DumpReason::fatal;
  story.dumps[2].header.signal = 11;
  story.dumps[2].header.dumped_monotonic = Duration(1s + 95ms).count();
  const FlightVerdict verdict = judge_flight(story.merge());
  EXPECT_EQ(guilty(verdict), Guilty{2});
  EXPECT_THAT(verdict.line, HasSubstr("died of signal 11"));
}

TEST(FlightVerdict, abort__whoever_began_it) {
  Story story(3);
  for (Rank rank = 0; rank < 3; ++rank) story.begin(rank, 0, 0);
  // Rank 1 passes on what rank 2 began.
  Record& abort = story.tell(0, 5, RecordKind::abort_in, 0, 1);
  abort.detail = TARPON_ABORT_GIVEN_UP;
  abort.set_mask(0b100);
  story.end(0, 5, 0, Status::aborted, 0b100);
  story.end(1, 5, 0, Status::aborted, 0b100);
  story.end(2, 4, 0, Status::aborted, 0b100);
  const FlightVerdict verdict = judge_flight(story.merge());
  EXPECT_EQ(guilty(verdict), Guilty{2});
  EXPECT_THAT(verdict.line, HasSubstr("rank 2: its caller gave it up"));
}

TEST(FlightVerdict, abort__with_each_reason) {
  struct Case {
    std::uint32_t reason;
    FlightCause cause;
  };
  for (const Case& one :
       {Case{TARPON_ABORT_GIVEN_UP, FlightCause::aborted},
        Case{TARPON_ABORT_EXPIRED, FlightCause::expired}, Case{4, FlightCause::refused},
        Case{5, FlightCause::refused}, Case{6, FlightCause::refused}, Case{7, FlightCause::refused},
        Case{8, FlightCause::forgotten}, Case{200, FlightCause::aborted}}) {
    SCOPED_TRACE(one.reason);
    Story story(3);
    for (Rank rank = 0; rank < 3; ++rank) story.begin(rank, 0, 0);
    for (const Rank rank : std::initializer_list<Rank>{0, 2}) {
      Record& abort = story.tell(rank, 5, RecordKind::abort_in, 0, 1);
      abort.detail = static_cast<std::uint8_t>(one.reason);
      abort.set_mask(0b010);
      story.end(rank, 5, 0, Status::aborted, 0b010);
    }
    story.end(1, 4, 0, Status::aborted, 0b010);
    const FlightVerdict verdict = judge_flight(story.merge());
    EXPECT_EQ(verdict.cause, one.cause) << verdict.line;
    EXPECT_EQ(guilty(verdict), Guilty{1}) << verdict.line;
  }
}

TEST(FlightVerdict, abort_of_a_rank_whose_deadline_has_passed__blames_the_rank_that_it_lacked) {
  Story story(3);
  for (const Rank rank : std::initializer_list<Rank>{0, 1}) {
    story.begin(rank, 10, 0);
    story.hear(rank, 11, 0, {static_cast<Rank>(1 - rank)});
  }
  story.end(0, 500, 0, Status::peer_late, 0b100);
  Record& abort = story.tell(1, 501, RecordKind::abort_in, 0, 0);
  abort.detail = 3;  // it reached its deadline
  abort.set_mask(0b100);
  story.end(1, 501, 0, Status::peer_late, 0b100);
  story.begin(2, 600, 0);
  story.end(2, 600, 0, Status::aborted, 0b100);
  const FlightVerdict verdict = judge_flight(story.merge());
  EXPECT_EQ(verdict.cause, FlightCause::late);
  EXPECT_EQ(guilty(verdict), Guilty{2});
}

TEST(FlightVerdict, cut_off_rank__is_named_although_it_names_all_others) {
  Story story(4);
  for (Rank rank = 0; rank < 4; ++rank) {
    story.begin(rank, 0, 0);
    for (Rank peer = 0; peer < 3; ++peer) {
      if (rank < 3 && peer != rank) story.hear(rank, 1, 0, {peer});
    }
    story.end(rank, 100, 0, Status::peer_late, rank == 3 ? 0b0111 : 0b1000);
  }
  const FlightVerdict verdict = judge_flight(story.merge());
  EXPECT_EQ(guilty(verdict), Guilty{3});
  EXPECT_EQ(verdict.cause, FlightCause::cut_off);
  EXPECT_THAT(verdict.line, HasSubstr("no packet came or went"));
}

TEST(FlightVerdict, rank_that_waits_itself__is_excused) {
  // The others lack the result of rank 1, which lacks the contribution of rank 2.
  Story story(4);
  for (const Rank rank : std::initializer_list<Rank>{0, 1, 3}) {
    story.begin(rank, 0, 0);
    for (const Rank peer : std::initializer_list<Rank>{0, 1, 3}) {
      if (peer != rank) story.hear(rank, 1, 0, {peer});
    }
    if (rank != 1) story.tell(rank, 10, RecordKind::repair_out, 0, 1).stage = 1;
  }
  const FlightVerdict verdict = judge_flight(story.merge({2}));
  EXPECT_EQ(guilty(verdict), Guilty{2});
  EXPECT_THAT(verdict.line, HasSubstr("is still open after 99000.000 ms"));
}

TEST(FlightVerdict, lost_packets__blame_nobody) {
  Story story(2);
  story.good(0, 0);
  story.dumps[0].records.back().detail = static_cast<std::uint8_t>(Status::partial);
  const FlightVerdict verdict = judge_flight(story.merge());
  EXPECT_EQ(verdict.operation, OperationKey(0, 0));
  EXPECT_TRUE(verdict.guilty.empty());
  EXPECT_THAT(verdict.line, HasSubstr("packets are lost on the way, no rank is to blame"));
}

TEST(FlightVerdict, first_failure_counts_not_its_consequences) {
  Story story(2);
  story.good(0, 0);
  for (std::uint32_t operation = 1; operation < 4; ++operation) {
    story.begin(0, 10 * operation, operation);
    story.end(0, 10 * operation + 5, operation, Status::peer_late, 0b10);
  }
  EXPECT_EQ(judge_flight(story.merge()).operation, OperationKey(0, 1));
}

TEST(FlightMerge, overwritten_operations__are_unknown_not_absent) {
  Story story(2);
  for (std::uint32_t operation = 0; operation < 3; ++operation) story.good(operation, operation);
  story.dumps[1].records.erase(story.dumps[1].records.begin(), story.dumps[1].records.begin() + 6);
  const auto operations = operations_of(story.merge());
  EXPECT_EQ(operations.at({0, 0})[1].presence, OperationAtRank::Presence::unknown);
  EXPECT_EQ(operations.at({0, 1})[1].presence, OperationAtRank::Presence::begun);
  EXPECT_FALSE(judge_flight(story.merge()).operation);
}

TEST(FlightMerge, recording_made_before__is_unknown_not_absent) {
  Story story(2);
  story.good(0, 0);
  story.begin(0, 100, 1);
  story.dumps[1].header.dumped_monotonic = Duration(1s + 50ms).count();
  EXPECT_EQ(operations_of(story.merge()).at({0, 1})[1].presence,
            OperationAtRank::Presence::unknown);
}

TEST(FlightMerge, other_host__clock_follows_from_packets_both_ways) {
  Story story(2);
  story.good(0, 0);  // each hears the other after 1 ms
  story.dumps[1].header.boot_id[0] = 'b';
  for (Record& record : story.dumps[1].records) record.time += 777s;
  const FlightJob job = story.merge();
  EXPECT_EQ(job.ranks[1].clock.clock, FlightClock::estimated);
  EXPECT_EQ(job.ranks[1].clock.shift, -Duration(777s));
  EXPECT_EQ(job.ranks[1].clock.uncertainty, Duration(1ms));
  // Without packets of one direction nothing can be said.
  std::erase_if(story.dumps[0].records,
                [](const Record& record) { return record.kind == RecordKind::first_packet; });
  EXPECT_EQ(story.merge().ranks[1].clock.clock, FlightClock::unrelated);
}

TEST(FlightMerge, other_host_whose_clock_drifts__is_placed_all_along) {
  Story story(2);
  for (std::uint32_t operation = 0; operation < 100; ++operation) {
    story.good(operation, 1000.0 * operation);
  }
  story.dumps[1].header.boot_id[0] = 'b';
  for (Record& record : story.dumps[1].records) {
    record.time += 777s + (record.time - Time(1s)) / 10'000;  // 100 ppm: 10 ms in the end
  }
  const FlightJob job = story.merge();
  EXPECT_NEAR(job.ranks[1].clock.drift, -1e-4, 1e-5);
  for (std::size_t i = 0; i < story.dumps[1].records.size(); ++i) {
    const Duration off =
        job.ranks[1].at(job.ranks[1].dump->records[i]) - job.ranks[0].dump->records[i].time;
    EXPECT_LT(std::chrono::abs(off), Duration(2ms)) << i;
  }
}

TEST(FlightMerge, clocks_that_no_shift_explains__are_unrelated) {
  Story story(2);
  story.good(0, 0);
  story.good(1, 1000);
  story.dumps[1].header.boot_id[0] = 'b';
  // The second clock jumps back by an hour after the first operation.
  for (Record& record : story.dumps[1].records) {
    if (record.operation == 0) record.time += 3600s;
  }
  EXPECT_EQ(story.merge().ranks[1].clock.clock, FlightClock::unrelated);
}

TEST(FlightMerge, newest_job_and_newest_recording_of_a_rank) {
  Story story(1);
  story.good(0, 0);
  FlightDump newer = story.dumps[0], other = story.dumps[0];
  newer.header.dumped_realtime = 5;
  newer.header.pid = 55;
  other.header.job = kJob + 1;
  other.header.dumped_realtime = 3;
  const auto job = merge_flights({newer, other, story.dumps[0]}, std::nullopt);
  ASSERT_TRUE(job);
  EXPECT_EQ(job->job, kJob);
  EXPECT_EQ(job->ranks[0].dump->header.pid, 55u);
  EXPECT_EQ(job->others, 1u);
  EXPECT_EQ(merge_flights({newer, other}, kJob + 1)->job, kJob + 1);
  EXPECT_THAT(merge_flights({newer}, kJob + 1).error().message, HasSubstr("00000abd"));
  EXPECT_FALSE(merge_flights({}, std::nullopt));
}

std::string bytes_of(const FlightDump& dump) {
  FlightHeader header = dump.header;
  header.header_bytes = sizeof header;
  std::string bytes(reinterpret_cast<const char*>(&header), sizeof header);
  for (const Record& record : dump.records) {
    RecordWords words = pack(record);
    words[3] |= static_cast<std::uint32_t>(record.number + 1);
    bytes.append(reinterpret_cast<const char*>(words.data()), sizeof words);
  }
  return bytes;
}

TEST(FlightMerge, damaged_recordings__are_refused_or_read_but_harm_nobody) {
  Story story(4);
  story.good(0, 0);
  story.begin(0, 10, 1);
  story.tell(1, 11, RecordKind::abort_in, 1, 0);
  story.end(0, 90, 1, Status::aborted, 0b100);
  story.dumps[2].header.boot_id[0] = 'b';
  int read = 0;
  for (std::uint64_t seed = 1; seed <= 3000; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    std::vector<FlightDump> dumps;
    for (const FlightDump& dump : story.dumps) {
      std::string bytes = bytes_of(dump);
      for (int i = 0; i < 3; ++i)
        bytes[random.below(bytes.size())] ^= static_cast<char>(random.below(256));
      auto parsed = parse_flight(std::as_bytes(std::span(bytes)), "it");
      if (parsed) dumps.push_back(std::move(*parsed));
    }
    const auto job = merge_flights(std::move(dumps), std::nullopt);
    if (!job) continue;
    ++read;
    const FlightVerdict verdict = judge_flight(*job);
    EXPECT_NE(flight_text(*job, verdict, true), "");
    EXPECT_NE(flight_svg(*job, verdict), "");
  }
  EXPECT_GT(read, 1000);
}

/// Twelve good calls of 5 ms, one of which rank 1 stops in, for `stop_ms`.
Story story_with_a_stop(double stop_ms) {
  Story story(3);
  for (std::uint32_t call = 0; call < 12; ++call) {
    if (call == 6) {
      for (Rank rank = 0; rank < 3; ++rank) {
        story.begin(rank, 60, call);
        if (rank == 1) {
          Record& pause = story.tell(1, 61 + stop_ms, RecordKind::pause, 0);
          pause.value = pause.extra = static_cast<std::uint32_t>(stop_ms * 1000);
        }
        story.end(rank, 62 + stop_ms, call, Status::complete);
      }
    } else {
      story.good(call, 10 * call + (call > 6 ? stop_ms : 0));
    }
  }
  return story;
}

TEST(FlightVerdict, complete_call_that_took_far_longer__names_the_rank_that_stopped) {
  const FlightVerdict verdict = judge_flight(story_with_a_stop(3000).merge());
  EXPECT_EQ(verdict.operation, OperationKey(0, 6));
  EXPECT_EQ(guilty(verdict), Guilty{1});
  EXPECT_EQ(verdict.cause, FlightCause::paused);
  EXPECT_THAT(verdict.line, HasSubstr("took 3002.000 ms, the median is 5.000 ms: rank 1: did not"));
  EXPECT_FALSE(judge_flight(story_with_a_stop(90).merge()).operation) << "below 100 ms";
}

TEST(FlightReport, running_ranks__an_open_operation_is_no_trouble) {
  Story story(2);
  story.good(0, 0);
  for (FlightDump& dump : story.dumps) dump.header.dumped_monotonic = Duration(1020ms).count();
  for (Rank rank = 0; rank < 2; ++rank) story.begin(rank, 10, 1);
  const FlightJob job = story.merge();
  const FlightVerdict verdict = judge_flight(job);
  EXPECT_THAT(verdict.line, HasSubstr("nothing differs"));
  const std::string svg = flight_svg(job, verdict);
  EXPECT_THAT(svg, HasSubstr(">0:1<"));
  EXPECT_THAT(svg, Not(HasSubstr("not complete")));
  EXPECT_THAT(svg, Not(HasSubstr("still open")));
}

TEST(FlightReport, verdict_alone__names_the_job_and_what_was_left_out) {
  Story story(2);
  story.good(0, 0);
  story.dumps.push_back(story.dumps[0]);
  story.dumps.back().header.job = 0xdef;
  story.dumps.back().header.dumped_realtime = -1;
  const FlightJob job = story.merge();
  const std::string text = verdict_text(job, judge_flight(job));
  EXPECT_THAT(text, ::testing::StartsWith("# job 00000abc, 2 ranks\n"));
  EXPECT_THAT(text, HasSubstr("# 1 recordings of other jobs left out\n# verdict: nothing"));
}

TEST(FlightReport, text_json_and_picture) {
  Story story(3);
  story.good(0, 0);
  story.begin(0, 10, 1);
  story.hear(0, 11, 1, {1});
  story.end(0, 90, 1, Status::peer_late, 0b100);
  const FlightJob job = story.merge({2});
  const FlightVerdict verdict = judge_flight(job);
  const std::string text = flight_text(job, verdict, false);
  EXPECT_THAT(text, HasSubstr("# rank 2   no recording"));
  EXPECT_THAT(text, HasSubstr("ended         peer_late, naming rank 2"));
  EXPECT_THAT(text, Not(HasSubstr("0:0 ")));
  EXPECT_THAT(flight_text(job, verdict, true), HasSubstr("0:0 "));
  const nlohmann::json json = flight_json(job, verdict);
  EXPECT_EQ(json["verdict"]["operation"], 1);
  EXPECT_EQ(json["verdict"]["guilty"][0]["rank"], 2);
  EXPECT_EQ(json["ranks"][2]["recorded"], false);
  EXPECT_EQ(json["events"].size(), story.dumps[0].records.size() + story.dumps[1].records.size());
  const std::string svg = flight_svg(job, verdict);
  EXPECT_THAT(svg, HasSubstr("! rank 2"));
  EXPECT_THAT(svg, HasSubstr("operation 1 of tag 0, stage 1: not whole"));
  EXPECT_THAT(svg, ::testing::EndsWith("</svg>\n"));
}

}  // namespace
}  // namespace tarpon::flight_verdict_test
