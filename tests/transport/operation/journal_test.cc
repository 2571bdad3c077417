// Events for the caller, records for the flight recorder.
#include "transport/operation/journal.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace tarpon::journal_test {
namespace {

using testing::ElementsAre;

class JournalTest : public testing::Test {
 protected:
  JournalTest() {
    operation_.handle = {.index = 3, .generation = 2};
    operation_.tag = 7;
    operation_.number = 5;
  }

  std::vector<Record> records() const {
    std::vector<Record> result;
    for (std::uint64_t number = recorder_.first(); number < recorder_.written(); ++number) {
      RecordWords words;
      EXPECT_TRUE(recorder_.read(number, words));
      result.push_back(unpack(words, recorder_.written()));
    }
    return result;
  }

  tarpon_header control(std::uint8_t type, std::uint32_t slot = 0) const {
    tarpon_header header{};
    header.type = type;
    header.sender = 1;
    header.tag = 7;
    header.operation = 5;
    header.slot = slot;
    return header;
  }

  Recorder recorder_;
  Journal journal_{&recorder_, 2};
  Operation operation_;
};

TEST_F(JournalTest, tell__keeps_the_event_and_records_it) {
  Event event;
  event.kind = Event::Kind::stage_closed;
  event.stage = 1;
  event.closing = Closing::bound;
  journal_.tell(operation_, event, Time(4s));
  Event polled;
  ASSERT_TRUE(journal_.poll(polled));
  EXPECT_EQ(polled.operation, operation_.handle);
  EXPECT_EQ(polled.stage, 1);
  EXPECT_FALSE(journal_.poll(polled));
  ASSERT_EQ(records().size(), 1u);
  const Record record = records().front();
  EXPECT_EQ(record.kind, RecordKind::stage_closed);
  EXPECT_EQ(record.time, Time(4s));
  EXPECT_EQ(record.tag, 7u);
  EXPECT_EQ(record.operation, 5u);
  EXPECT_EQ(record.detail, static_cast<std::uint8_t>(Closing::bound));
}

TEST_F(JournalTest, tell__an_event_of_no_operation_is_not_recorded) {
  Event event;
  event.kind = Event::Kind::silent;
  event.peer = 1;
  journal_.tell(event);
  Event polled;
  ASSERT_TRUE(journal_.poll(polled));
  EXPECT_EQ(polled.operation.index, kNoOperation);
  EXPECT_TRUE(records().empty());
}

TEST_F(JournalTest, forget__the_events_of_one_operation) {
  Operation other;
  other.handle = {.index = 4, .generation = 1};
  journal_.tell(operation_, {}, Time(1s));
  journal_.tell(other, {}, Time(1s));
  journal_.forget(operation_.handle);
  Event polled;
  ASSERT_TRUE(journal_.poll(polled));
  EXPECT_EQ(polled.operation, other.handle);
  EXPECT_FALSE(journal_.poll(polled));
}

/// Repeated requests must not push the first records out of the ring.
TEST_F(JournalTest, note_in__requests_in_a_row_at_powers_of_two) {
  for (int i = 0; i < 9; ++i) journal_.note_in({control(TARPON_REPAIR), {}}, Time(1s));
  std::vector<std::uint32_t> counts;
  for (const Record& record : records()) counts.push_back(record.value);
  EXPECT_THAT(counts, ElementsAre(1, 2, 4, 8));
  tarpon_header next = control(TARPON_REPAIR);
  next.operation = 6;
  journal_.note_in({next, {}}, Time(1s));
  EXPECT_EQ(records().back().value, 1u);
}

TEST_F(JournalTest, note_out__asks_and_answers) {
  for (const std::uint32_t asks : {1u, 2u, 3u}) {
    journal_.note_out({.type = TARPON_REPAIR, .peer = 1}, asks, Time(1s));
  }
  journal_.note_out({.type = TARPON_READY, .peer = 1, .repeats = TARPON_READY_ANSWER}, 0, Time(1s));
  journal_.note_out({.type = TARPON_CREDIT, .peer = 1}, 0, Time(1s));
  journal_.note_out({.type = TARPON_CLOSED, .peer = 1, .ranks = 0b10}, 0, Time(1s));
  std::vector<RecordKind> kinds;
  for (const Record& record : records()) kinds.push_back(record.kind);
  EXPECT_THAT(kinds, ElementsAre(RecordKind::repair_out, RecordKind::repair_out,
                                 RecordKind::ready_out, RecordKind::closed_out));
  EXPECT_EQ(records().back().mask(), 0b10u);
}

TEST_F(JournalTest, note__without_a_recorder) {
  Journal journal(nullptr, 2);
  journal.note(RecordKind::opened, operation_, kNoPeer, Time(1s));
  journal.note_in({control(TARPON_ABORT), {}}, Time(1s));
  journal.tell(operation_, {}, Time(1s));
  Event polled;
  EXPECT_TRUE(journal.poll(polled));
}

}  // namespace
}  // namespace tarpon::journal_test
