// How fast the codec is, on one core, beside a copy of the same buffer and a transform of the whole
// vector. Prints JSON: seconds of each round, by size and contender.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <bit>
#include <cstring>
#include <functional>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
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

nlohmann::json measure(std::uint64_t count, std::uint32_t row, std::uint32_t ways, int rounds) {
  const codec::CodedLayout strided = codec::strided_layout(count, row, ways);
  const codec::CodedLayout in_place = codec::contiguous_layout(count, codec::kUsualBlock);
  std::vector<float> in(count), out(count), coded(strided.coded_count());
  std::mt19937 random(1);
  for (float& value : in) value = std::normal_distribution<float>()(random);
  std::vector<float> blocks(in_place.coded_count()), whole(in);
  std::copy(in.begin(), in.end(), blocks.begin());
  const std::vector<float> gains(strided.groups, 1.0f);
  std::map<std::string, std::function<void()>> contenders{
      {"copy", [&] { std::memcpy(out.data(), in.data(), count * sizeof(float)); }},
      {"encode", [&] { codec::encode(strided, kKey, in, coded); }},
      {"decode", [&] { codec::decode(strided, kKey, coded, gains, out); }},
      {"blocks", [&] { codec::encode(in_place, kKey, std::span(blocks).first(count), blocks); }}};
  // Its values grow beyond all bounds, which costs no time.
  if (std::has_single_bit(count)) {
    contenders["full length"] = [&] { full_length_hadamard(whole.data(), count); };
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
  app.add_option("--counts", counts, "elements: powers of two, and others without a full length")
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
