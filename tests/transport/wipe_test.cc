// Memory of keys after their end.
#include "transport/wipe.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <new>
#include <string>

#include "transport/job_key.h"
#include "transport/seal/gcm.h"

namespace tarpon::wipe_test {
namespace {

/// Makes a key in memory that outlives it, ends it, and returns how many bytes of it are left.
template <typename Key>
std::size_t left_of_key() {
  alignas(Key) std::array<std::byte, sizeof(Key)> memory;
  Key* const key = new (memory.data()) Key();
  key->fill(std::byte{0x5a});
  // The compiler, which knows that a key without a life has no value, has to write it and read it.
  asm volatile("" : : "r"(memory.data()) : "memory");
  key->~Key();
  std::array<std::byte, sizeof(Key)> copy;
  const volatile std::byte* const from = memory.data();
  for (std::size_t i = 0; i < copy.size(); ++i) copy[i] = from[i];
  return static_cast<std::size_t>(std::count(copy.begin(), copy.end(), std::byte{0x5a}));
}

TEST(KeyBytesTest, destructor__leaves_nothing) {
  EXPECT_EQ(left_of_key<JobKey>(), 0u);
  EXPECT_EQ(left_of_key<seal::Key>(), 0u);
}

TEST(WipeAtEndTest, text__has_zeros__when_the_scope_ends) {
  std::string text = "12";
  {
    const WipeAtEnd wipe(text);
    text = std::string(100, 'k');  // what it has at the end counts
  }
  EXPECT_EQ(text, std::string(100, '\0'));
  std::array<char, 4> array{'a', 'b', 'c', 'd'};
  { const WipeAtEnd wipe(array); }
  EXPECT_EQ(array, (std::array<char, 4>{}));
}

}  // namespace
}  // namespace tarpon::wipe_test
