// Every copy of the transform against plain code, bit by bit; what it refuses; what it leaves
// alone.
#include "codec/hadamard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "tests/codec/plain_transform.h"
#include "tests/support/sanitized.h"

namespace tarpon::codec {
namespace {

using testing::Each;
using testing::Eq;

std::vector<float> values(std::uint64_t count, std::uint32_t seed = 1) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> result(count);
  for (float& value : result) value = normal(random);
  return result;
}

std::vector<std::uint32_t> bits(std::span<const float> data) {
  std::vector<std::uint32_t> result;
  for (const float value : data) result.push_back(std::bit_cast<std::uint32_t>(value));
  return result;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

/// Memory that begins one float behind a cache line.
struct Unaligned {
  explicit Unaligned(std::uint64_t count) : room(count + 32) {}
  explicit Unaligned(const std::vector<float>& data) : Unaligned(data.size()) {
    std::copy(data.begin(), data.end(), begin());
  }
  float* begin() {
    const auto address = reinterpret_cast<std::uintptr_t>(room.data());
    return room.data() + (64 - address % 64) / sizeof(float) + 1;
  }
  std::vector<float> room;
};

constexpr SignKey kKey{0x12345678, 0x9abcdef0};

class Kernels : public testing::TestWithParam<CodecKernels> {};

std::string set_name(const testing::TestParamInfo<CodecKernels>& info) {
  return std::string(info.param.instruction_set);
}

INSTANTIATE_TEST_SUITE_P(Sets, Kernels, testing::ValuesIn(codec_kernels()), set_name);

TEST_P(Kernels, give_the_bits_of_plain_code) {
  std::vector<CodedLayout> layouts;
  for (const std::uint64_t count :
       {1u, 64u, 65u, 1000u, 4095u, 4096u, 4097u, 70'001u, 140'001u, 300'000u}) {
    for (const std::uint32_t most : {16u, 352u, 2224u}) {
      layouts.push_back(strided_layout(count, most, 4));
    }
  }
  for (std::uint32_t block = kLeastBlock; block <= kMostBlock; block *= 2) {
    layouts.push_back(contiguous_layout(3 * block - 7, block));
  }
  for (const CodedLayout& layout : layouts) {
    SCOPED_TRACE(testing::Message() << layout.count << " elements, blocks of " << layout.block
                                    << ", stride " << layout.stride);
    Unaligned in(values(layout.count));
    const std::vector<float> input(in.begin(), in.begin() + layout.count);
    Unaligned coded(layout.room());
    const std::span<float> there(coded.begin(), layout.room());
    ASSERT_TRUE(encode(layout, kKey, {in.begin(), layout.count}, there, GetParam()));
    const std::vector<float> plain = plain_encode(layout, kKey, input);
    ASSERT_EQ(bits(there), bits(plain));

    std::vector<float> gains(layout.groups);
    for (std::uint32_t i = 0; i < layout.groups; ++i) gains[i] = 1 + 0.01f * static_cast<float>(i);
    Unaligned out(layout.count);
    const std::span<float> back(out.begin(), layout.count);
    decode(layout, kKey, there, gains, back, GetParam());
    ASSERT_EQ(bits(back), bits(plain_decode(layout, kKey, plain, gains)));
  }
}

/// Ranges of one member to many, in another order than that of the members.
TEST_P(Kernels, parts_give_the_bits_of_the_whole) {
  std::vector<CodedLayout> layouts{strided_layout(kFarFrom + 17, 352, 4),
                                   strided_layout(kFarFrom + 4095, 344, 3)};
  for (const std::uint64_t count : {1u, 65u, 4097u, 70'001u, 140'001u, 300'000u}) {
    for (const std::uint32_t most : {8u, 16u, 352u, 2224u}) {
      layouts.push_back(strided_layout(count, most, 4));
    }
  }
  for (std::uint32_t block = kLeastBlock; block <= kMostBlock; block *= 4) {
    layouts.push_back(contiguous_layout(7 * block - 3, block));
  }
  for (const CodedLayout& layout : layouts) {
    const std::vector<float> input = values(layout.count);
    std::vector<float> gains(layout.groups);
    for (std::uint32_t i = 0; i < layout.groups; ++i) {
      gains[i] = i % 5 == 4 ? 0 : 1 + 0.01f * static_cast<float>(i);
    }
    std::vector<float> coded(layout.room(), 7.0f), out(layout.count, 42.0f);
    ASSERT_TRUE(encode(layout, kKey, input, coded, GetParam()));
    decode(layout, kKey, coded, gains, out, GetParam());
    const std::uint64_t members = layout.all_members();
    for (const std::uint64_t part : {std::uint64_t{1}, std::uint64_t{3}, members / 2 + 1}) {
      SCOPED_TRACE(testing::Message()
                   << layout.count << " elements, blocks of " << layout.block << ", stride "
                   << layout.stride << ", " << part << " of " << members << " members at once");
      std::vector<float> coded_in_parts(layout.room(), 7.0f), out_of_parts(layout.count, 42.0f);
      const auto last_first = [&](auto work) {
        for (std::uint64_t end = members; end > 0;) {
          const std::uint64_t first = end - std::min(part, end);
          work(MemberRange{first, end - first});
          end = first;
        }
      };
      last_first([&](MemberRange range) {
        EXPECT_TRUE(encode(layout, kKey, range, input, coded_in_parts, GetParam()));
      });
      ASSERT_TRUE(same_bits(coded_in_parts, coded));
      last_first([&](MemberRange range) {
        decode(layout, kKey, range, coded, gains, out_of_parts, GetParam());
      });
      ASSERT_TRUE(same_bits(out_of_parts, out));
    }
  }
}

TEST_P(Kernels, a_part_tells_of_its_own_elements_alone) {
  const CodedLayout layout = strided_layout(9 * 4096, 352, 4);
  std::vector<float> input = values(layout.count);
  input[5 * 4096] = std::numeric_limits<float>::infinity();
  std::vector<float> coded(layout.room());
  int refused = 0;
  for (std::uint64_t member = 0; member < layout.all_members(); ++member) {
    refused += !encode(layout, kKey, {member, 1}, input, coded, GetParam());
  }
  EXPECT_EQ(refused, 1);
}

TEST_P(Kernels, work_in_place_where_blocks_stay) {
  const CodedLayout layout = contiguous_layout(10'001, 2048);
  const std::vector<float> input = values(layout.count);
  std::vector<float> data(layout.room(), 7.0f);
  std::copy(input.begin(), input.end(), data.begin());
  ASSERT_TRUE(encode(layout, kKey, std::span(data).first(layout.count), data, GetParam()));
  EXPECT_EQ(bits(data), bits(plain_encode(layout, kKey, input)));
  const std::vector<float> ones(layout.groups, 1.0f);
  decode(layout, kKey, data, ones, std::span(data).first(layout.count), GetParam());
  for (std::uint64_t i = 0; i < layout.count; ++i) ASSERT_NEAR(data[i], input[i], 1e-5f);
}

TEST_P(Kernels, refuse_what_is_not_finite_wherever_it_is) {
  const CodedLayout layout = strided_layout(9'000, 352, 4);
  std::vector<float> coded(layout.room());
  std::vector<float> input = values(layout.count);
  const float infinity = std::numeric_limits<float>::infinity();
  for (const std::uint64_t at : {0u, 1u, 15u, 4095u, 4096u, 8191u, 8192u, 8999u}) {
    for (const float bad : {infinity, -infinity, std::numeric_limits<float>::quiet_NaN(),
                            -std::numeric_limits<float>::quiet_NaN()}) {
      const float good = std::exchange(input[at], bad);
      EXPECT_FALSE(encode(layout, kKey, input, coded, GetParam())) << bad << " at " << at;
      input[at] = good;
    }
  }
  EXPECT_TRUE(encode(layout, kKey, input, coded, GetParam()));
}

TEST_P(Kernels, the_largest_elements_of_64_ranks_do_not_overflow) {
  const CodedLayout layout = contiguous_layout(kMostBlock, kMostBlock);
  std::vector<float> input(layout.count);
  for (std::uint32_t i = 0; i < layout.count; ++i) {
    input[i] = negative(kKey, 0, kMostBlock, i) ? -kLargest : kLargest;  // all in one coefficient
  }
  std::vector<float> coded(layout.room());
  ASSERT_TRUE(encode(layout, kKey, input, coded, GetParam()));
  for (float& value : coded) value *= 64;
  const std::vector<float> ones(layout.groups, 1.0f);
  std::vector<float> out(layout.count);
  decode(layout, kKey, coded, ones, out, GetParam());
  for (std::uint32_t i = 0; i < layout.count; ++i) ASSERT_EQ(out[i], 64 * input[i]);
}

TEST_P(Kernels, denormals_are_not_flushed) {
  const CodedLayout layout = contiguous_layout(kLeastBlock, kLeastBlock);
  std::vector<float> input(layout.count, 0.0f);
  input[5] = 64 * std::numeric_limits<float>::denorm_min();
  std::vector<float> coded(layout.room());
  ASSERT_TRUE(encode(layout, kKey, input, coded, GetParam()));
  EXPECT_EQ(bits(coded), bits(plain_encode(layout, kKey, input)));
  EXPECT_EQ(std::abs(coded[0]), 8 * std::numeric_limits<float>::denorm_min());
}

TEST_P(Kernels, a_group_without_gain_is_left_alone) {
  const CodedLayout layout = strided_layout(100'000, 128, 2);
  ASSERT_GT(layout.groups, 1u);
  const std::vector<float> input = values(layout.count);
  std::vector<float> coded(layout.room());
  ASSERT_TRUE(encode(layout, kKey, input, coded, GetParam()));
  std::vector<float> gains(layout.groups, 1.0f);
  gains[1] = 0;
  std::vector<float> out(layout.count, 42.0f);
  decode(layout, kKey, coded, gains, out, GetParam());
  for (std::uint64_t i = 0; i < layout.count; ++i) {
    if (i / layout.block % layout.groups == 1) {
      ASSERT_EQ(out[i], 42.0f);
    } else {
      ASSERT_NEAR(out[i], input[i], 1e-5f);
    }
  }
}

/// Buckets beyond the caches are read ahead and written past them. One test: the plain result,
/// which takes long, is the same for all copies.
TEST(AllKernels, give_the_same_bits_beyond_the_caches) {
  for (const std::uint32_t most :
       testing_support::first_if_sanitized<std::uint32_t>(2, {352, 2224, 344, 360})) {
    const CodedLayout layout = strided_layout(kFarFrom + 17, most, 4);
    SCOPED_TRACE(testing::Message() << layout.members << " members, stride " << layout.stride);
    const std::vector<float> input = values(layout.count);
    const std::vector<float> plain = plain_encode(layout, kKey, input);
    const std::vector<float> gains(layout.groups, 1.5f);
    const std::vector<float> back = plain_decode(layout, kKey, plain, gains);
    for (const CodecKernels& kernels : codec_kernels()) {
      for (const std::size_t off : {0u, 8u}) {
        SCOPED_TRACE(testing::Message() << kernels.instruction_set << ", off by " << off);
        std::vector<float> coded_room(layout.room() + 32), out_room(layout.count + 32);
        const auto at = [off](std::vector<float>& room) {
          const auto address = reinterpret_cast<std::uintptr_t>(room.data());
          return room.data() + (64 - address % 64) / sizeof(float) % 16 + off;
        };
        const std::span<float> coded(at(coded_room), layout.room());
        const std::span<float> out(at(out_room), layout.count);
        ASSERT_TRUE(encode(layout, kKey, input, coded, kernels));
        ASSERT_EQ(bits(coded), bits(plain));
        decode(layout, kKey, coded, gains, out, kernels);
        ASSERT_EQ(bits(out), bits(back));
      }
    }
  }
}

TEST(Encode, is_orthonormal) {
  const CodedLayout layout = strided_layout(50'000, 352, 4);
  const std::vector<float> input = values(layout.count);
  std::vector<float> coded(layout.room());
  ASSERT_TRUE(encode(layout, kKey, input, coded));
  const auto energy = [](const std::vector<float>& data) {
    double sum = 0;
    for (const float value : data) sum += double{value} * value;
    return sum;
  };
  EXPECT_NEAR(energy(coded) / energy(input), 1, 1e-6);
}

TEST(Encode, is_sylvesters_matrix) {
  const CodedLayout layout = contiguous_layout(64, 64);
  for (const std::uint32_t element : {0u, 1u, 6u, 37u, 63u}) {
    std::vector<float> input(64, 0.0f);
    input[element] = 8;
    std::vector<float> coded(64);
    ASSERT_TRUE(encode(layout, kKey, input, coded));
    for (std::uint32_t c = 0; c < 64; ++c) {
      const bool minus = std::popcount(c & element) % 2 != 0;
      EXPECT_EQ(coded[c], minus != negative(kKey, 0, 64, element) ? -1 : 1);
    }
  }
}

TEST(Signs, are_fair_and_of_each_operation_and_block) {
  constexpr std::uint32_t kElements = 4096;
  const auto agreeing = [](SignKey a, std::uint64_t block_a, SignKey b, std::uint64_t block_b) {
    int same = 0;
    for (std::uint32_t i = 0; i < kElements; ++i) {
      same += negative(a, block_a, kElements, i) == negative(b, block_b, kElements, i);
    }
    return same;
  };
  constexpr int kFar = 320;  // ten standard deviations
  int negatives = 0;
  const SignKey key = sign_key(7, 1, 2);
  for (std::uint32_t i = 0; i < kElements; ++i) negatives += negative(key, 3, kElements, i);
  EXPECT_NEAR(negatives, kElements / 2, kFar / 2);
  EXPECT_EQ(agreeing(key, 3, sign_key(7, 1, 2), 3), int{kElements});
  for (const SignKey other : {sign_key(7, 1, 3), sign_key(7, 2, 2), sign_key(8, 1, 2)}) {
    EXPECT_NEAR(agreeing(key, 3, other, 3), kElements / 2, kFar);
    EXPECT_NEAR(agreeing(key, 3, other, 4), kElements / 2, kFar);
  }
  EXPECT_NEAR(agreeing(key, 3, key, 4), kElements / 2, kFar);
}

}  // namespace
}  // namespace tarpon::codec
