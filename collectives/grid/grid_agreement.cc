#include "collectives/grid/grid_agreement.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <type_traits>
#include <vector>

#include "collectives/grid/global_names.h"
#include "collectives/grid/host_gather.h"
#include "transport/clock.h"
#include "transport/rank_mask.h"
#include "xdp/base/printable.h"

namespace tarpon::grid {
namespace {

/// What a rank tells its host of the verdict of its rail.
struct RailVerdict {
  std::uint64_t step = 0;
  double lost_fraction = 0;
  std::uint64_t reporters = 0;
  std::uint64_t differing = 0;
  std::uint64_t gone = 0;
  std::uint64_t late = 0;
  std::uint64_t digest = 0;
  std::uint32_t verdict = 0;
  std::uint32_t decided_by = 0;
  std::array<char, 256> detail{};
};
static_assert(std::is_trivially_copyable_v<RailVerdict>);

/// Whether a rail of a grid can have this verdict: a process of the host may write anything.
bool is_possible(const RailVerdict& one, const GridLayout& layout) {
  const std::uint64_t named = one.reporters | one.differing | one.gone | one.late;
  return one.verdict <= static_cast<std::uint32_t>(Verdict::halt) &&
         one.decided_by < layout.world_size() && (named & ~first_ranks(layout.hosts())) == 0 &&
         one.lost_fraction >= 0 && one.lost_fraction <= 1;
}

StepVerdict halted(std::uint64_t step, std::string why) {
  StepVerdict verdict;
  verdict.step = step;
  verdict.detail = std::move(why);
  return verdict;
}

RailVerdict told(const StepVerdict& rail, const LossReport& report,
                 const std::vector<Rank>& ranks) {
  RailVerdict mine{.step = rail.step,
                   .lost_fraction = rail.lost_fraction,
                   .reporters = rail.reporters,
                   .differing = rail.differing,
                   .gone = rail.gone,
                   .late = rail.late,
                   .digest = report.digest,
                   .verdict = static_cast<std::uint32_t>(rail.verdict),
                   .decided_by = ranks[rail.decided_by],
                   .detail = {}};
  global_text(rail.detail, ranks).copy(mine.detail.data(), mine.detail.size() - 1);
  return mine;
}

/// Whether two rails have different digests.
bool rails_differ(const std::vector<RailVerdict>& all) {
  std::uint64_t usual = 0;
  for (const RailVerdict& one : all) {
    if (one.digest == 0) continue;
    if (usual != 0 && one.digest != usual) return true;
    usual = one.digest;
  }
  return false;
}

StepVerdict worst(const std::vector<RailVerdict>& all, std::uint32_t hosts) {
  const auto heavier = [](const RailVerdict& a, const RailVerdict& b) {
    return std::pair(a.verdict, a.lost_fraction) < std::pair(b.verdict, b.lost_fraction);
  };
  const RailVerdict& heaviest = *std::max_element(all.begin(), all.end(), heavier);
  StepVerdict verdict;
  verdict.step = heaviest.step;
  verdict.verdict = static_cast<Verdict>(heaviest.verdict);
  verdict.decided_by = static_cast<Rank>(heaviest.decided_by);
  verdict.detail = heaviest.detail.data();
  verdict.reporters = first_ranks(hosts);
  for (const RailVerdict& one : all) {
    verdict.lost_fraction = std::max(verdict.lost_fraction, one.lost_fraction);
    verdict.reporters &= one.reporters;
    verdict.differing |= one.differing;
    verdict.gone |= one.gone;
    verdict.late |= one.late;
  }
  if (verdict.differing == 0 && rails_differ(all)) verdict.differing = first_ranks(hosts);
  return verdict;
}

}  // namespace

StepVerdict agree(const LiveParts& parts, std::uint64_t step, const LossReport& report,
                  Duration deadline) {
  const Time until = after(monotonic_now(), deadline);
  // The host needs the rest of the time.
  const StepVerdict rail = parts.rail_job->agree(step, report, deadline / 4 * 3);
  RailVerdict mine = told(rail, report, parts.rail_ranks());
  mine.step = step;
  auto all = gather_in_host(parts, mine, until - std::min(until, monotonic_now()));
  if (!all) {
    return halted(step, fmt::format("the ranks of this host did not tell their verdicts: {}",
                                    all.error().message));
  }
  for (std::size_t place = 0; place < all->size(); ++place) {
    RailVerdict& one = (*all)[place];
    const Rank rank = parts.host_ranks()[place];
    if (one.step != step) {
      return halted(step, fmt::format("rank {} asks for step {} where rank {} asks for step {}",
                                      rank, one.step, parts.self, step));
    }
    if (!is_possible(one, parts.layout)) {
      return halted(step, fmt::format("rank {} told a verdict that no rail has", rank));
    }
    one.detail.back() = '\0';
    const std::string detail = printable(one.detail.data(), kLongestMessage);
    one.detail.fill('\0');
    detail.copy(one.detail.data(), one.detail.size() - 1);
  }
  return worst(*all, parts.layout.hosts());
}

}  // namespace tarpon::grid
