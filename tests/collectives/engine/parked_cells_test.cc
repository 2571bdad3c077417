// ParkedCells: a cell gives back the data that was parked in it. Memory that is free again is used
// before memory that was never touched.
#include "collectives/engine/exact/parked_cells.h"

#include <gtest/gtest.h>

#include <array>
#include <memory_resource>
#include <new>
#include <set>

namespace tarpon::parked_cells_test {
namespace {

constexpr std::size_t kCellBytes = 64;
using Cell = std::array<std::byte, kCellBytes>;

Cell filled(int value) {
  Cell cell;
  cell.fill(std::byte(value));
  return cell;
}

class ParkedCellsTest : public testing::Test {
 protected:
  ParkedCellsTest() : parked_(pool_) {}

  FloatBufferPool pool_{std::pmr::new_delete_resource()};
  ParkedCells parked_;
};

TEST_F(ParkedCellsTest, expect__numbers_follow_each_other) {
  EXPECT_EQ(parked_.expect(3), 0u);
  EXPECT_EQ(parked_.expect(0), 3u);
  EXPECT_EQ(parked_.expect(2), 3u);
  parked_.allocate(kCellBytes);
  for (std::uint32_t cell = 0; cell < 5; ++cell) EXPECT_FALSE(parked_.holds(cell));
}

TEST(NoParkedCellsTest, allocate__takes_no_memory) {
  FloatBufferPool refusing(std::pmr::null_memory_resource());
  ParkedCells none(refusing);
  EXPECT_NO_THROW(none.allocate(kCellBytes));
  ParkedCells one(refusing);
  one.expect(1);
  EXPECT_THROW(one.allocate(kCellBytes), std::bad_alloc);
}

TEST_F(ParkedCellsTest, take__gives_what_was_parked_once) {
  parked_.expect(4);
  parked_.allocate(kCellBytes);
  for (std::uint32_t cell = 0; cell < 4; ++cell) {
    const Cell data = filled(static_cast<int>(cell + 1));
    parked_.park(cell, std::span(data).first(cell * 16));
  }
  for (const std::uint32_t cell : {2u, 0u, 3u, 1u}) {
    EXPECT_TRUE(parked_.holds(cell));
    const std::byte* const data = parked_.take(cell);
    EXPECT_FALSE(parked_.holds(cell));
    for (std::size_t i = 0; i < cell * 16; ++i) ASSERT_EQ(data[i], std::byte(cell + 1));
  }
}

TEST_F(ParkedCellsTest, park__uses_the_memory_of_cells_that_were_taken) {
  parked_.expect(100);
  parked_.allocate(kCellBytes);
  std::set<const std::byte*> places;
  for (std::uint32_t cell = 0; cell + 1 < 100; ++cell) {
    parked_.park(cell, filled(1));
    parked_.park(cell + 1, filled(2));
    places.insert(parked_.take(cell));
    places.insert(parked_.take(cell + 1));
  }
  EXPECT_EQ(places.size(), 2u);
}

}  // namespace
}  // namespace tarpon::parked_cells_test
