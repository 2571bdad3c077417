// An AllReduce of all ranks of a simulated grid, and what its results and reports have to say.
//
// Every rank has a random value of 42 bits in every element. Sums of up to 1,024 of them are exact
// in float64, and two sums over different ranks, or over one rank twice, are equal by chance alone
// (2^-42). So each element of a result tells of which ranks it is the sum.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "tests/simulation/simulated_grid.h"
#include "transport/rank_mask.h"

namespace tarpon::testing_support {

/// How long a call took.
struct GridTimes {
  Duration first = Duration::max(), last{};  // of the ranks, from the submission to the end
};

/// `Element`: std::int64_t or double.
template <typename Element>
class GridSum {
 public:
  GridSum(SimulatedGrid& grid, std::uint64_t count, std::uint32_t tag, std::uint64_t salt = 0)
      : grid_(grid), count_(count), tag_(tag), salt_(salt) {
    for (Rank rank = 0; rank < grid.size(); ++rank) {
      buffers_.emplace_back(count);
      for (std::uint64_t i = 0; i < count; ++i) buffers_[rank][i] = value(rank, i);
    }
    calls_.resize(grid.size());
  }

  AllreduceArguments arguments(Rank rank) {
    AllreduceArguments call;
    call.input = call.output = buffers_[rank].data();
    call.count = count_;
    call.type = std::is_same_v<Element, double> ? DataType::float64 : DataType::int64;
    call.tag = tag_;
    return call;
  }
  void submit(Rank rank, const AllreduceArguments& call) {
    calls_[rank] = grid_.submit(rank, call);
  }
  void submit_all() {
    for (Rank rank = 0; rank < grid_.size(); ++rank) submit(rank, arguments(rank));
  }
  /// Bounded: the rail waits for `bound` at most.
  AllreduceArguments bounded(Rank rank, Duration bound) {
    AllreduceArguments call = arguments(rank);
    call.mode = Mode::bounded;
    call.bound = bound;
    return call;
  }
  void submit_all_bounded(Duration bound) {
    for (Rank rank = 0; rank < grid_.size(); ++rank) submit(rank, bounded(rank, bound));
  }

  const Report& report(Rank rank) const { return calls_[rank]->report; }
  bool is_done(Rank rank) const { return calls_[rank] && calls_[rank]->done; }
  GridTimes times() const {
    GridTimes times;
    for (const auto& call : calls_) {
      times.first = std::min(times.first, call->report.elapsed);
      times.last = std::max(times.last, call->report.elapsed);
    }
    return times;
  }

  /// Every contribution is in every element of every rank once.
  void expect_complete() const {
    const std::vector<Element> sums = sum_of_all();
    for (Rank rank = 0; rank < grid_.size(); ++rank) {
      ASSERT_TRUE(is_done(rank)) << "rank " << rank;
      const Report& got = report(rank);
      ASSERT_EQ(got.status, Status::complete) << "rank " << rank << ": " << got.detail;
      EXPECT_TRUE(got.missing.empty());
      EXPECT_EQ(got.lost_fraction, 0);
      ASSERT_EQ(buffers_[rank], sums) << "rank " << rank;
    }
  }

  /// What a bounded call may lose. Each element of each result is made of the contributions of the
  /// hosts that the reports of the rails name, each once, or is empty; the report of each rank
  /// counts what its slice lacks. Returns the largest share that a rank lacks.
  double expect_what_reports_say(Rescale rescale) const {
    double most = 0;
    const std::vector<std::vector<double>> sums = sums_of_hosts();
    std::vector<std::uint64_t> known(count_);  // hosts in an element, at the hosts that have some
    for (std::uint32_t host = 0; host < grid_.layout().hosts(); ++host) {
      const std::optional<std::vector<std::uint64_t>> masks = masks_at(host);
      if (!masks) return 1;
      const std::vector<double> wanted = results(*masks, sums, rescale);
      for (std::uint64_t i = 0; i < count_; ++i) {
        if ((*masks)[i] == 0) continue;
        if (known[i] == 0) known[i] = (*masks)[i];
        EXPECT_EQ(known[i], (*masks)[i]) << "element " << i << " differs on host " << host;
      }
      for (const Rank rank : grid_.layout().host(host)) {
        if (!expect_near(rank, wanted)) return 1;
        expect_counts(rank, *masks);
        most = std::max(most, report(rank).lost_fraction);
      }
    }
    return most;
  }

 private:
  Element value(Rank rank, std::uint64_t element) const {
    Random random((salt_ * 4099 + rank) << 32 ^ element);
    return static_cast<Element>(random.next() >> 22);
  }

  std::vector<Element> sum_of_all() const {
    std::vector<Element> sums(count_);
    for (Rank rank = 0; rank < grid_.size(); ++rank) {
      for (std::uint64_t i = 0; i < count_; ++i) sums[i] += value(rank, i);
    }
    return sums;
  }

  std::vector<std::vector<double>> sums_of_hosts() const {
    std::vector<std::vector<double>> sums(grid_.layout().hosts(), std::vector<double>(count_));
    for (Rank rank = 0; rank < grid_.size(); ++rank) {
      std::vector<double>& sum = sums[grid_.layout().host_of(rank)];
      for (std::uint64_t i = 0; i < count_; ++i) sum[i] += static_cast<double>(value(rank, i));
    }
    return sums;
  }

  /// The slice of `rank`, which is what its call on the rail reduced.
  Range slice(Rank rank) const {
    const auto call = grid_.rail_call(rank, tag_);
    const auto* const first = static_cast<const Element*>(call->arguments.output);
    return {static_cast<std::uint64_t>(first - buffers_[rank].data()), call->arguments.count};
  }

  /// By element: the hosts whose contributions the ranks of `host` have, as their rails say. Bit h:
  /// host h. Nothing, with a failed test, when the rails do not say it of all elements once.
  std::optional<std::vector<std::uint64_t>> masks_at(std::uint32_t host) const {
    std::vector<std::uint64_t> masks(count_);
    std::vector<int> told(count_);
    for (const Rank rank : grid_.layout().host(host)) {
      const auto call = grid_.rail_call(rank, tag_);
      const Range mine = slice(rank);
      std::vector<ContributorRun> runs = call->report.runs;
      if (runs.empty()) runs = {{0, mine.count, first_ranks(grid_.layout().hosts())}};
      for (const ContributorRun& run : runs) {
        for (std::uint64_t i = 0; i < run.count; ++i) {
          const std::uint64_t element = mine.first + run.first + i;
          if (element >= count_) break;
          masks[element] = run.contributors;
          ++told[element];
        }
      }
    }
    const bool once = told == std::vector<int>(count_, 1);
    EXPECT_TRUE(once) << "the rails of host " << host << " do not report each element once";
    return once ? std::optional(masks) : std::nullopt;
  }

  static std::vector<double> results(const std::vector<std::uint64_t>& masks,
                                     const std::vector<std::vector<double>>& sums,
                                     Rescale rescale) {
    std::vector<double> results(masks.size());
    for (std::size_t i = 0; i < masks.size(); ++i) {
      for (std::size_t host = 0; host < sums.size(); ++host) {
        if ((masks[i] >> host & 1) != 0) results[i] += sums[host][i];
      }
      if (rescale == Rescale::none || masks[i] == 0) continue;
      results[i] *= static_cast<double>(sums.size()) / std::popcount(masks[i]);
    }
    return results;
  }

  /// But for the rounding of a weight.
  bool expect_near(Rank rank, const std::vector<double>& wanted) const {
    for (std::uint64_t i = 0; i < count_; ++i) {
      const auto got = static_cast<double>(buffers_[rank][i]);
      if (std::abs(got - wanted[i]) <= 1e-14 * wanted[i]) continue;
      ADD_FAILURE() << "rank " << rank << ", element " << i << ": " << got << ", not " << wanted[i];
      return false;
    }
    return true;
  }

  /// That the report of `rank` counts what its slice lacks.
  void expect_counts(Rank rank, const std::vector<std::uint64_t>& masks) const {
    const grid::GridLayout& layout = grid_.layout();
    const Report& got = report(rank);
    const Range mine = slice(rank);
    std::vector<std::uint64_t> missing(layout.world_size());
    std::uint64_t lost = 0;  // elements of hosts
    for (std::uint64_t i = mine.first; i < mine.end(); ++i) {
      for (std::uint32_t host = 0; host < layout.hosts(); ++host) {
        if ((masks[i] >> host & 1) != 0) continue;
        ++lost;
        for (const Rank of : layout.host(host)) ++missing[of];
      }
    }
    if (lost == 0) missing.clear();
    EXPECT_EQ(got.missing, missing) << "rank " << rank;
    const double all = static_cast<double>(mine.count) * layout.hosts();
    const LossCauses& causes = got.causes;
    EXPECT_NEAR(got.lost_fraction, static_cast<double>(lost) / all, 1e-9) << "rank " << rank;
    EXPECT_NEAR(got.lost_stage1 + got.lost_stage2, got.lost_fraction, 1e-9) << "rank " << rank;
    EXPECT_NEAR(causes.of_live_ranks() + causes.gone, got.lost_fraction, 1e-9) << "rank " << rank;
    if (got.status != Status::late_self) {
      EXPECT_EQ(got.status, lost == 0 ? Status::complete : Status::partial) << "rank " << rank;
    }
  }

  SimulatedGrid& grid_;
  const std::uint64_t count_;
  const std::uint32_t tag_;
  const std::uint64_t salt_;
  std::vector<std::vector<Element>> buffers_;  // by rank
  std::vector<std::shared_ptr<PendingCall>> calls_;
};

}  // namespace tarpon::testing_support
