// How fast the codec is, on one core, beside a copy of the same buffer and transforms of the
// whole vector. Prints JSON: seconds of each round, by size and contender.
#include <sys/mman.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <new>
#include <nlohmann/json.hpp>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "codec/hadamard.h"
#include "tests/bench/full_length.h"
#include "transport/clock.h"

namespace tarpon {
namespace {

constexpr codec::SignKey kKey{17, 23};

/// Seconds a call, over so many of them that it takes `least`.
double time_one(const std::function<void()>& work, double least) {
  work();
  for (std::uint64_t calls = 1;; calls *= 2) {
    const Time start = monotonic_now();
    for (std::uint64_t i = 0; i < calls; ++i) work();
    const double seconds = std::chrono::duration<double>(monotonic_now() - start).count();
    if (seconds >= least) return seconds / static_cast<double>(calls);
  }
}

/// Of zeros, at a huge page, as coded buckets lie; all contenders alike.
class Buffer {
 public:
  explicit Buffer(std::uint64_t count) : count_(count) {
    const std::size_t bytes = (count * sizeof(float) + kHugePage - 1) / kHugePage * kHugePage;
    data_.reset(static_cast<float*>(std::aligned_alloc(kHugePage, bytes)));
    if (!data_) throw std::bad_alloc();
    madvise(data_.get(), bytes, MADV_HUGEPAGE);
    std::memset(data_.get(), 0, bytes);
  }
  std::span<float> all() const { return {data_.get(), count_}; }
  float* data() const { return data_.get(); }

 private:
  static constexpr std::size_t kHugePage = 2 << 20;
  struct Free {
    void operator()(float* data) const { std::free(data); }
  };
  std::unique_ptr<float, Free> data_;
  std::uint64_t count_;
};

nlohmann::json measure(std::uint64_t count, std::uint32_t row, std::uint32_t ways, int rounds) {
  const codec::CodedLayout strided = codec::strided_layout(count, row, ways);
  const codec::CodedLayout in_place = codec::contiguous_layout(count, codec::kUsualBlock);
  const Buffer in(count), out(count), coded(strided.room());
  const Buffer blocks(in_place.room()), radix_2(count), radix_8(count);
  std::mt19937 random(1);
  for (float& value : in.all()) value = std::normal_distribution<float>()(random);
  for (const Buffer* copy : {&blocks, &radix_2, &radix_8}) {
    std::copy(in.all().begin(), in.all().end(), copy->data());
  }
  const std::vector<float> gains(strided.groups, 1.0f);
  std::map<std::string, std::function<void()>> contenders{
      {"copy", [&] { std::memcpy(out.data(), in.data(), count * sizeof(float)); }},
      {"encode", [&] { codec::encode(strided, kKey, in.all(), coded.all()); }},
      {"decode", [&] { codec::decode(strided, kKey, coded.all(), gains, out.all()); }},
      {"blocks", [&] { codec::encode(in_place, kKey, blocks.all().first(count), blocks.all()); }}};
  // Their values grow beyond all bounds, which costs no time.
  if (std::has_single_bit(count)) {
    contenders["radix 2"] = [&] { plain_full_length_hadamard(radix_2.data(), count); };
    contenders["radix 8"] = [&] { full_length_hadamard(radix_8.data(), count); };
  }
  nlohmann::json result{
      {"count", count},
      {"row", row},
      {"padding", static_cast<double>(strided.coded_count()) / static_cast<double>(count) - 1}};
  for (int round = 0; round < rounds; ++round) {
    for (const auto& [name, work] : contenders) {
      result["seconds"][name].push_back(time_one(work, 0.02));
    }
  }
  return result;
}

}  // namespace
}  // namespace tarpon

int main(int argc, char** argv) {
  CLI::App app("How fast the codec is, on one core");
  std::vector<std::uint64_t> counts{1u << 12, 1u << 16, 25u << 18, 1u << 26};
  int rounds = 9;
  std::uint32_t row = 352;
  app.add_option("--counts", counts, "elements: powers of two, and others without full lengths")
      ->delimiter(',');
  app.add_option("--rounds", rounds, "of all contenders in turn");
  app.add_option("--row", row, "most elements of a row");
  CLI11_PARSE(app, argc, argv);
  nlohmann::json sizes = nlohmann::json::array();
  for (const std::uint64_t count : counts) sizes.push_back(tarpon::measure(count, row, 4, rounds));
  std::cout << nlohmann::json{{"instruction_set",
                               tarpon::codec::codec_kernels().back().instruction_set},
                              {"sizes", sizes}}
            << '\n';
}
