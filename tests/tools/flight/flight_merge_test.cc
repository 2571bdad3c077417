// Which recordings `tarpon flight` reads, and what it refuses.
#include "tools/flight/merge.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

namespace tarpon::flight_merge_test {
namespace {

using testing::HasSubstr;

class ReadFlightsTest : public testing::Test {
 protected:
  ReadFlightsTest() { directory_ = ::mkdtemp(name_); }
  ~ReadFlightsTest() override { std::filesystem::remove_all(directory_); }

  std::string path(const std::string& name) const { return directory_ + "/" + name; }

  std::string error_of(const std::string& path) {
    const auto dumps = read_flights({path});
    return dumps ? "read" : dumps.error().message;
  }

  std::string directory_;

 private:
  char name_[64] = "/tmp/tarpon-flights-XXXXXX";
};

TEST_F(ReadFlightsTest, fifo__is_refused_and_not_waited_for) {
  const std::string fifo = path("rank0.flight");
  ASSERT_EQ(::mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_THAT(error_of(fifo), HasSubstr(fifo + " is not a regular file"));
  EXPECT_THAT(error_of(directory_), HasSubstr("is not a regular file"));
}

TEST_F(ReadFlightsTest, files__are_refused_beyond_4096) {
  for (int i = 0; i <= 4096; ++i) std::ofstream(path(std::to_string(i) + ".flight"));
  EXPECT_THAT(error_of(directory_), HasSubstr("4097 recordings are more than 4096 at once"));
}

TEST_F(ReadFlightsTest, others__are_named_with_the_reason) {
  EXPECT_THAT(error_of(path("none")), HasSubstr("No such file"));
  std::ofstream(path("text")) << "no recording";
  EXPECT_THAT(error_of(path("text")), HasSubstr("text"));
  const auto none = read_flights({directory_});  // `text` does not end on .flight
  ASSERT_TRUE(none);
  EXPECT_TRUE(none->empty());
}

/// A rank's recording on the host with boot id "a".
FlightDump dump_of(Rank rank, std::uint32_t time_namespace) {
  FlightDump dump;
  dump.header.rank = rank;
  dump.header.world_size = 2;
  dump.header.boot_id[0] = 'a';
  dump.header.time_namespace = time_namespace;
  return dump;
}

TEST(MergeFlights, ranks_of_one_boot__share_a_clock_within_one_time_namespace) {
  const auto clock_of_rank_1 = [](std::uint32_t of_0, std::uint32_t of_1) {
    const auto job = merge_flights({dump_of(0, of_0), dump_of(1, of_1)}, {});
    return job.value().ranks[1].clock.clock;
  };
  EXPECT_EQ(clock_of_rank_1(7, 7), FlightClock::shared);
  EXPECT_EQ(clock_of_rank_1(0, 0), FlightClock::shared) << "recordings without the number";
  EXPECT_EQ(clock_of_rank_1(7, 8), FlightClock::unrelated);
}

}  // namespace
}  // namespace tarpon::flight_merge_test
