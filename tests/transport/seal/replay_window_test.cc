#include "transport/seal/replay_window.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

namespace tarpon::seal::replay_window_test {
namespace {

TEST(ReplayWindowTest, each_number__counts_once) {
  ReplayWindow window;
  std::set<std::uint64_t> come;
  std::mt19937_64 random(3);
  std::uint64_t highest = 0;
  for (int i = 0; i < 200'000; ++i) {
    // Mostly near the front; jumps of up to three windows.
    const std::uint64_t jump = random() % 100 == 0 ? random() % 12'000 : random() % 4;
    const std::uint64_t back = random() % 3 == 0 ? random() % 5'000 : random() % 20;
    const std::uint64_t front = highest + jump;
    const std::uint64_t number = front - std::min(front, back);
    const bool old = number < highest && highest - number >= ReplayWindow::kNumbers;
    ASSERT_EQ(window.is_fresh(number), !old && !come.contains(number)) << number << " " << highest;
    if (!window.is_fresh(number)) continue;
    window.note(number);
    come.insert(number);
    highest = std::max(highest, number);
    ASSERT_EQ(window.highest(), highest);
  }
}

TEST(ReplayWindowTest, number__finds_the_high_bits) {
  ReplayWindow window;
  EXPECT_EQ(window.number(5, 31), 5u);
  const std::uint64_t period = std::uint64_t{1} << 31;
  window.note(period - 2);
  EXPECT_EQ(window.number(static_cast<std::uint32_t>(period - 1), 31), period - 1);
  EXPECT_EQ(window.number(3, 31), period + 3) << "after the wrap";
  window.note(period + 3);
  EXPECT_EQ(window.number(static_cast<std::uint32_t>(period - 1), 31), period - 1)
      << "overtaken at the wrap";
  EXPECT_EQ(window.number(4, 31), period + 4);
  window.note(5 * period + 7);
  EXPECT_EQ(window.number(8, 31), 5 * period + 8);
}

}  // namespace
}  // namespace tarpon::seal::replay_window_test
