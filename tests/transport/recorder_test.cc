#include "transport/recorder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <iterator>
#include <thread>

#include "tests/support/endpoint_harness.h"

namespace tarpon::recorder_test {
namespace {

/// Every field follows from the number, so that a torn record shows.
Record patterned(std::uint64_t number) {
  const auto low = static_cast<std::uint32_t>(number * 2654435761u);
  return {.time = Time(Duration(static_cast<Duration::rep>(number * 7))),
          .kind = RecordKind::credit,
          .stage = static_cast<std::uint8_t>(low),
          .peer = static_cast<std::uint8_t>(low >> 8),
          .detail = static_cast<std::uint8_t>(low >> 16),
          .tag = low + 1,
          .operation = low + 2,
          .value = low + 3,
          .extra = low + 4,
          .number = number};
}

void expect_equal(const Record& a, const Record& b) {
  EXPECT_EQ(a.time, b.time);
  EXPECT_EQ(a.kind, b.kind);
  EXPECT_EQ(a.stage, b.stage);
  EXPECT_EQ(a.peer, b.peer);
  EXPECT_EQ(a.detail, b.detail);
  EXPECT_EQ(a.tag, b.tag);
  EXPECT_EQ(a.operation, b.operation);
  EXPECT_EQ(a.value, b.value);
  EXPECT_EQ(a.extra, b.extra);
  EXPECT_EQ(a.number, b.number);
}

TEST(Recorder, every_kind_has_a_name) {
  for (int i = 0; i < static_cast<int>(RecordKind::count); ++i) {
    EXPECT_NE(record_kind_name(static_cast<RecordKind>(i)), "?") << i;
  }
}

TEST(Recorder, read__gives_what_was_written) {
  Recorder recorder;
  RecordWords words;
  EXPECT_FALSE(recorder.read(0, words));
  for (std::uint64_t i = 0; i < 10; ++i) recorder.write(patterned(i));
  ASSERT_EQ(recorder.written(), 10u);
  for (std::uint64_t i = 0; i < 10; ++i) {
    ASSERT_TRUE(recorder.read(i, words));
    expect_equal(unpack(words, recorder.written()), patterned(i));
  }
  EXPECT_FALSE(recorder.read(10, words));
}

TEST(Recorder, read__of_what_is_overwritten__false) {
  Recorder recorder;
  constexpr std::uint64_t kEvents = Recorder::kCapacity + 100;
  for (std::uint64_t i = 0; i < kEvents; ++i) recorder.write(patterned(i));
  RecordWords words;
  EXPECT_EQ(recorder.first(), 100u);
  EXPECT_FALSE(recorder.read(99, words));
  ASSERT_TRUE(recorder.read(100, words));
  expect_equal(unpack(words, kEvents), patterned(100));
}

TEST(Recorder, mask__has_64_ranks) {
  Record record;
  record.set_mask(0x8000000100000003ull);
  EXPECT_EQ(record.mask(), 0x8000000100000003ull);
}

TEST(Recorder, read__while_it_is_written__never_torn) {
  Recorder recorder;
  std::atomic<bool> over = false;
  constexpr std::uint64_t kEvents = 300'000;
  std::thread writer([&] {
    for (std::uint64_t i = 0; i < kEvents; ++i) recorder.write(patterned(i));
    over = true;
  });
  std::uint64_t seen = 0;
  while (!over || seen == 0) {
    // The oldest ones are overwritten at this moment.
    const std::uint64_t first = recorder.first();
    for (std::uint64_t i = first; i < first + 64 && i < recorder.written(); ++i) {
      RecordWords words;
      if (!recorder.read(i, words)) continue;
      expect_equal(unpack(words, recorder.written()), patterned(i));
      ++seen;
    }
  }
  writer.join();
  EXPECT_GT(seen, 0u);
}

TEST(Recorder, write__costs_little) {
  Recorder recorder;
  constexpr std::uint64_t kEvents = 1'000'000;
  double best = 1e9;
  for (int round = 0; round < 5; ++round) {
    const auto start = std::chrono::steady_clock::now();
    for (std::uint64_t i = 0; i < kEvents; ++i) recorder.write(patterned(i));
    const std::chrono::duration<double, std::nano> spent = std::chrono::steady_clock::now() - start;
    best = std::min(best, spent.count() / kEvents);
  }
  std::printf("an event costs %.1f ns (at most 50 are allowed; not asserted)\n", best);
  EXPECT_EQ(recorder.written(), 5 * kEvents);
}

std::vector<Record> records_of(const Recorder& recorder) {
  std::vector<Record> records;
  for (std::uint64_t i = recorder.first(); i < recorder.written(); ++i) {
    RecordWords words;
    if (recorder.read(i, words)) records.push_back(unpack(words, recorder.written()));
  }
  return records;
}

std::vector<Record> of_kind(const std::vector<Record>& records, RecordKind kind) {
  std::vector<Record> found;
  std::copy_if(records.begin(), records.end(), std::back_inserter(found),
               [kind](const Record& record) { return record.kind == kind; });
  return found;
}

constexpr std::uint64_t kBytes = 4 * testing_support::kSlot;

TEST(EndpointRecords, operation__from_its_beginning_to_the_end_of_its_stages) {
  Recorder recorder;
  EndpointOptions options = testing_support::small_options();
  options.recorder = &recorder;
  testing_support::Harness net(2, options);
  for (Rank rank = 0; rank < 2; ++rank) {
    net.submit(testing_support::exchange(rank, 2, kBytes), rank);
  }
  net.run_until(net.now + 100ms, [](const testing_support::Packet&) { return 1; });
  const auto records = records_of(recorder);  // of both
  EXPECT_EQ(of_kind(records, RecordKind::opened).size(), 2u);
  const auto closed = of_kind(records, RecordKind::stage_closed);
  ASSERT_EQ(closed.size(), 2u);
  EXPECT_EQ(closed[0].detail, static_cast<std::uint8_t>(Closing::complete));
  const auto heard = of_kind(records, RecordKind::first_packet);
  ASSERT_EQ(heard.size(), 2u);
  EXPECT_NE(heard[0].peer, heard[1].peer);
  EXPECT_EQ(recorder.incidents(), 0u);
}

TEST(EndpointRecords, announcements_that_nobody_answers__are_thinned_out) {
  Recorder recorder;
  EndpointOptions options = testing_support::small_options();
  options.recorder = &recorder;
  testing_support::Harness net(2, options);
  net.submit(testing_support::exchange(0, 2, kBytes), 0);
  net.run_until(net.now + 9s, [](const testing_support::Packet&) { return 0; });
  const auto readies = of_kind(records_of(recorder), RecordKind::ready_out);
  ASSERT_GE(readies.size(), 5u);
  EXPECT_LE(readies.size(), 10u);
  for (const Record& record : readies) {
    EXPECT_EQ(record.value & (record.value - 1), 0u) << record.value;
    EXPECT_EQ(record.peer, 1);
  }
}

TEST(EndpointSnapshot, names_whom_an_operation_waits_for) {
  testing_support::Harness net(3);
  net.submit(testing_support::exchange(0, 3, kBytes), 0);
  net.submit(testing_support::exchange(1, 3, kBytes), 1);
  net.run_until(net.now + 100ms, [](const testing_support::Packet&) { return 1; });
  EndpointSnapshot snapshot;
  net[0].snapshot(snapshot);
  ASSERT_EQ(snapshot.open, 1u);
  EXPECT_EQ(snapshot.operations[0].stage, 0u);
  EXPECT_EQ(snapshot.operations[0].waiting, 0b100u);
  EXPECT_EQ(snapshot.operations[0].silent, 0b100u);
  EXPECT_NE(snapshot.last_heard[1], Time{});
  EXPECT_EQ(snapshot.last_heard[2], Time{});
  EXPECT_GT(snapshot.counters.data_in, 0u);
}

}  // namespace
}  // namespace tarpon::recorder_test
