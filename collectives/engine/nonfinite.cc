// NaN and infinity in the inputs of a bounded AllReduce: sets the report and the result.
//
// The input is searched before the first packet (Engine::submit), not slot by slot as it is sent:
// packets sent before the find would not be marked, and a rank that received only those would end
// with a finite result. The search is a separate pass over the input: 0.01 ns a byte from L1, 0.03
// from the last-level cache (25 MiB: 0.9 ms), 0.14 from memory (AVX-512, one Sapphire Rapids core
// of a virtual machine; half of memcpy's time). `--without nonfinite` turns it off.
#include <fmt/format.h>

#include <cstring>
#include <limits>

#include "collectives/engine/tar_call.h"
#include "collectives/rank_list.h"

namespace tarpon {

/// A rank for which no peer waited has no data in the result: a mark that it alone knows does not
/// count.
void TarCall::report_nonfinite() {
  const Marks known = endpoint_.marks(handle());
  Report& report = call_->report;
  report.nonfinite = known.heard || (known.any() && !late_self_);
  if (!report.nonfinite) return;
  report.nonfinite_ranks = ranks_of(known.ranks);
  report.detail += fmt::format(
      "{}NaN or infinity in the input of {}: the result is NaN", report.detail.empty() ? "" : "; ",
      report.nonfinite_ranks.empty() ? "an unknown rank"
                                     : rendezvous::rank_list(report.nonfinite_ranks));
}

/// Nothing reads the buffers any more, not even in place.
void TarCall::fill_with_nan() {
  const auto fill_all = [this](auto nan) {
    work_.add(call_->arguments.count, sizeof nan,
              [output = output_, nan](std::uint64_t first, std::uint64_t count) {
                for (std::uint64_t i = first; i < first + count; ++i) {
                  std::memcpy(output + i * sizeof nan, &nan, sizeof nan);
                }
              });
  };
  constexpr std::uint16_t kFloat16Nan = 0x7e00;
  constexpr std::uint16_t kBfloat16Nan = 0x7fc0;
  switch (call_->arguments.type) {
    case DataType::float64:
      return fill_all(std::numeric_limits<double>::quiet_NaN());
    case DataType::float16:
      return fill_all(kFloat16Nan);
    case DataType::bfloat16:
      return fill_all(kBfloat16Nan);
    default:
      return fill_all(std::numeric_limits<float>::quiet_NaN());
  }
}

}  // namespace tarpon
