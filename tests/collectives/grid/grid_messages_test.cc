#include "collectives/grid/grid_messages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tarpon::grid_messages_test {
namespace {

using namespace grid;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// Two hosts of two ranks each.
GridLayout two_by_two() {
  const std::vector<std::string> hosts{"a", "b", "a", "b"};
  return *GridLayout::make(hosts, hosts);
}

TEST(GridMessagesTest, errors_and_texts__come_back) {
  EXPECT_EQ(decode_told(encode(Told{.text = "a\nb"})).text, "a\nb");
  const Told late{.error = Error::make(Error::Code::timeout, "late")};
  const Told told = decode_told(encode(late));
  ASSERT_TRUE(told.error);
  EXPECT_EQ(told.error->code, Error::Code::timeout);
  EXPECT_EQ(told.error->message, "late");
}

TEST(GridMessagesTest, bytes_without_a_known_kind__are_an_error) {
  for (const char* bytes : {"", "text", "Glate", "@late", "\xff"}) {
    const Told told = decode_told(bytes);
    ASSERT_TRUE(told.error) << bytes;
    EXPECT_EQ(told.error->code, Error::Code::unavailable) << bytes;
  }
}

TEST(GridMessagesTest, a_place__comes_back) {
  const RankPlace place = decode_place(encode(RankPlace{"4026531840", "node3"}));
  EXPECT_EQ(place.key, "4026531840");
  EXPECT_EQ(place.name, "node3");
  EXPECT_EQ(decode_place("key").name, "");
}

TEST(GridMessagesTest, a_plan__comes_back) {
  const auto plan = decode_plan(encode(GridPlan{two_by_two(), {"node0", "node1"}}), 4);
  ASSERT_TRUE(plan) << plan.error().message;
  EXPECT_THAT(plan->layout.host(1), ElementsAre(1, 3));
  EXPECT_THAT(plan->host_names, ElementsAre("node0", "node1"));
}

TEST(GridMessagesTest, a_plan_for_other_ranks__is_refused) {
  const std::string plan = encode(GridPlan{two_by_two(), {"node0", "node1"}});
  for (const std::size_t world_size : {0u, 2u, 3u, 5u, 100u}) {
    const auto refused = decode_plan(plan, world_size);
    ASSERT_FALSE(refused) << world_size;
    EXPECT_THAT(refused.error().message, HasSubstr("rank 0 told a grid that"));
  }
  EXPECT_FALSE(decode_plan(encode(GridPlan{two_by_two(), {"node0"}}), 4)) << "a name is missing";
}

TEST(GridMessagesTest, addresses__come_back) {
  const GridAddresses given{{"host0", "host1"}, {"rail0", "rail1"}};
  const auto addresses = decode_addresses(encode(given), two_by_two());
  ASSERT_TRUE(addresses) << addresses.error().message;
  EXPECT_EQ(addresses->hosts, given.hosts);
  EXPECT_EQ(addresses->rails, given.rails);
}

TEST(GridMessagesTest, another_number_of_addresses__is_refused) {
  for (const char* text : {"", "a\nb\nc\n", "a\nb\nc\nd\ne\n"}) {
    EXPECT_FALSE(decode_addresses(text, two_by_two())) << text;
  }
}

}  // namespace
}  // namespace tarpon::grid_messages_test
