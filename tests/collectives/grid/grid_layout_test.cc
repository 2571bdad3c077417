#include "collectives/grid/grid_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tarpon::grid_layout_test {
namespace {

using grid::GridLayout;
using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::string> hosts_of(std::size_t hosts, std::size_t each) {
  std::vector<std::string> keys;
  for (std::size_t rank = 0; rank < hosts * each; ++rank) {
    keys.push_back("node" + std::to_string(rank / each));
  }
  return keys;
}

TEST(GridLayoutTest, hosts_and_places__as_ranks_lie) {
  const auto layout = GridLayout::make({"b", "a", "a", "b"}, {"b", "a", "a", "b"});
  ASSERT_TRUE(layout) << layout.error().message;
  EXPECT_EQ(layout->hosts(), 2u);
  EXPECT_EQ(layout->places(), 2u);
  EXPECT_THAT(layout->host(0), ElementsAre(0, 3));
  EXPECT_THAT(layout->host(1), ElementsAre(1, 2));
  EXPECT_THAT(layout->rail(0), ElementsAre(0, 1));
  EXPECT_THAT(layout->rail(1), ElementsAre(3, 2));
  EXPECT_EQ(layout->host_of(2), 1u);
  EXPECT_EQ(layout->place_of(2), 1u);
}

TEST(GridLayoutTest, largest_grid__has_4096_ranks) {
  const auto keys = hosts_of(64, 64);
  const auto layout = GridLayout::make(keys, keys);
  ASSERT_TRUE(layout) << layout.error().message;
  EXPECT_EQ(layout->world_size(), 4096u);
  const auto same = GridLayout::decode(layout->encode());
  ASSERT_TRUE(same);
  EXPECT_EQ(same->rail(63), layout->rail(63));
}

void expect_refused(const std::vector<std::string>& keys, const std::string& text) {
  const auto layout = GridLayout::make(keys, keys);
  ASSERT_FALSE(layout);
  EXPECT_THAT(layout.error().message, HasSubstr(text));
}

TEST(GridLayoutTest, too_many_hosts_or_ranks_of_a_host__and_uneven_hosts_are_refused) {
  expect_refused(hosts_of(1, 96), "96 ranks on 1 host: start at most 64 on a host: node0 has 96");
  expect_refused(hosts_of(65, 1), "at most 64 hosts");
  auto uneven = hosts_of(5, 16);
  uneven.pop_back();
  expect_refused(uneven, "needs as many on each host: node0 has 16 (rank 0, ...)");
  expect_refused(uneven, "node4 has 15 (rank 64, ...)");
}

TEST(GridLayoutTest, bytes_of_no_grid__are_refused) {
  EXPECT_FALSE(GridLayout::decode(std::string("\0\0\1", 3)));
}

}  // namespace
}  // namespace tarpon::grid_layout_test
