// What ranks of `tarpon check` tell each other. Input: a text of each of two or three ranks; the
// texts end with a line break.
#include "tools/check/pair_results.h"

#include <cmath>

#include "tests/fuzz/fuzz.h"

using namespace tarpon;
using fuzz::require;

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::vector<std::string> texts(1);
  for (const char c : fuzz::text_of(data, size)) {
    if (c != '\n') {
      texts.back() += c;
    } else if (texts.size() < 3) {
      texts.emplace_back();
    }
  }
  const std::size_t world = texts.size();
  const auto pairs = joined_pairs(texts, 1408);
  if (pairs) require(pairs->size() == world * (world - 1), "every pair has a result");
  for (const PairProbe& pair : pairs.value_or(std::vector<PairProbe>())) {
    require(pair.from < world && pair.to < world && pair.from != pair.to, "a pair is of two ranks");
    require(std::isfinite(pair.loss()) && std::isfinite(pair.flood_loss()), "losses are numbers");
    require(likely_cause(pair, {}).find('\n') == std::string::npos, "a cause is one line");
  }
  if (const auto counts = decode_slices(texts[0])) {
    const auto again = decode_slices(encode(*counts));
    require(again && *again == *counts, "decode inverts encode");
  }
  return 0;
}
