// ParkingLot: cells are taken, read back, freed and used up.
#include "transport/tags/parking.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

namespace tarpon::parking_test {
namespace {

std::vector<std::byte> packet(std::size_t bytes, int value) {
  return std::vector<std::byte>(bytes, static_cast<std::byte>(value));
}

bool holds(const ParkingLot& lot, std::uint32_t cell, const std::vector<std::byte>& expected) {
  const std::span<const std::byte> at = lot.at(cell);
  return std::equal(at.begin(), at.end(), expected.begin(), expected.end());
}

TEST(ParkingLotTest, park__nothing_fits_into_no_cells) {
  ParkingLot lot(0, 64);
  EXPECT_EQ(lot.capacity(), 0u);
  EXPECT_EQ(lot.park(packet(1, 1)), ParkingLot::kNone);
}

TEST(ParkingLotTest, park__as_many_as_there_are_cells_each_its_own) {
  constexpr std::size_t kCells = 65;
  ParkingLot lot(kCells, 16);
  std::vector<std::uint32_t> cells;
  for (int i = 0; i < static_cast<int>(kCells); ++i) cells.push_back(lot.park(packet(16, i)));
  EXPECT_EQ(std::set(cells.begin(), cells.end()).size(), kCells);
  EXPECT_EQ(lot.available(), 0u);
  EXPECT_EQ(lot.park(packet(16, 99)), ParkingLot::kNone);
  for (int i = 0; i < static_cast<int>(kCells); ++i) {
    EXPECT_LT(cells[static_cast<std::size_t>(i)], kCells);
    EXPECT_TRUE(holds(lot, cells[static_cast<std::size_t>(i)], packet(16, i)));
  }
}

TEST(ParkingLotTest, park__keeps_the_length_and_refuses_more_than_a_cell) {
  ParkingLot lot(2, 16);
  EXPECT_EQ(lot.park(packet(17, 1)), ParkingLot::kNone);
  EXPECT_EQ(lot.available(), 2u);
  const std::uint32_t one = lot.park(packet(16, 1));
  const std::uint32_t two = lot.park(packet(1, 2));
  EXPECT_TRUE(holds(lot, one, packet(16, 1)));
  EXPECT_TRUE(holds(lot, two, packet(1, 2)));
}

TEST(ParkingLotTest, release__the_last_freed_cell_is_the_next_one_taken) {
  ParkingLot lot(3, 8);
  const std::uint32_t one = lot.park(packet(8, 1));
  const std::uint32_t two = lot.park(packet(8, 2));
  lot.release(one);
  lot.release(two);
  EXPECT_EQ(lot.available(), 3u);
  EXPECT_EQ(lot.park(packet(3, 4)), two);
  EXPECT_EQ(lot.park(packet(8, 5)), one);
  EXPECT_TRUE(holds(lot, two, packet(3, 4)));
}

}  // namespace
}  // namespace tarpon::parking_test
