// The oracles: which promises a call of a simulated job has broken.
#include <fmt/format.h>

#include <cstring>

#include "collectives/schedule.h"
#include "tools/fnv.h"
#include "tools/reference.h"
#include "tools/simulation_call.h"

namespace tarpon {
namespace {

class Judge {
 public:
  Judge(const SimulationPlan& plan, const SimulatedCall& call, SimulationResult& result)
      : plan_(plan), call_(call), result_(result) {}

  void run() {
    for (Rank rank = 0; rank < plan_.ranks; ++rank) {
      if (!call_.pending[rank] || !call_.pending[rank]->done) return violate(rank, "did not end");
      judge_end(rank);
    }
    if (plan_.bounded) return;
    with_element_type(call_.type, [&](auto zero) { judge_exact<decltype(zero)>(); });
  }

 private:
  void violate(Rank rank, const std::string& what) {
    result_.violations.push_back(fmt::format("tag {} call {} ({} {} x {}) rank {}: {}", call_.tag,
                                             call_.number, name(call_.function), name(call_.type),
                                             call_.count, rank, what));
  }

  void judge_end(Rank rank) {
    const Report& report = call_.pending[rank]->report;
    ++result_.calls;
    if (report.status == Status::partial) ++result_.partial;
    fnv_mix(result_.trace_hash, call_.outputs[rank]);
    if (report.elapsed > kSimulationDeadline) violate(rank, "ended after its deadline");
    // Until half of the ranks are heard, two bounds, an eighth for confirmations. Where the first
    // announcements are lost, hearing may take a few repetitions.
    const Duration hearing = plan_.skew + (plan_.faults.any() ? 500ms : 2ms);
    const Duration most = (hearing + 2 * plan_.bound) * 9 / 8;
    if (report.mode == Mode::bounded && plan_.calls_per_tag == 1 && report.elapsed > most) {
      violate(rank, fmt::format("took {} us", report.elapsed / 1us));
    }
    const bool good =
        report.status == Status::complete || (plan_.bounded && report.status == Status::partial);
    if (!good) violate(rank, fmt::format("{}: {}", name(report.status), report.detail));
    if (good && plan_.bounded) judge_bounded(rank, report);
  }

  template <typename T>
  void judge_exact() {
    const ShardLayout layout{call_.count, sizeof(T), plan_.ranks};
    for (std::uint32_t shard = 0; shard < plan_.ranks; ++shard) {
      const Rank owner = owner_of(shard, call_.number, plan_.ranks);
      const Range range = layout.elements(shard);
      for (std::uint64_t i = range.first; i < range.end(); ++i) {
        const T expected =
            reduce_over<T>(all_ranks(plan_.ranks), plan_.ranks, owner, call_.function,
                           [&](Rank rank) { return element_at<T>(call_.inputs[rank], i); });
        for (Rank rank = 0; rank < plan_.ranks; ++rank) {
          const T got = element_at<T>(call_.outputs[rank], i);
          if (std::memcmp(&got, &expected, sizeof got) == 0) continue;
          return violate(rank, fmt::format("element {} is {}, not {}", i, got, expected));
        }
      }
    }
  }

  /// Coded values tell their contributors: every element must be the reduction over exactly the
  /// ranks that the report names for it.
  void judge_bounded(Rank rank, const Report& report) {
    std::uint64_t next = 0;
    std::vector<std::uint64_t> missing(plan_.ranks, 0);
    for (const ContributorRun& run : runs_of(report, call_.count, plan_.ranks)) {
      if (run.first != next) return violate(rank, "the report's runs have gaps");
      next += run.count;
      for (Rank r = 0; r < plan_.ranks; ++r) {
        if ((run.contributors >> r & 1) == 0) missing[r] += run.count;
      }
      const auto expected =
          reduce_over<float>(run.contributors, plan_.ranks, 0, call_.function,
                             [](Rank r) { return static_cast<float>(coded_value(r)); });
      for (std::uint64_t i = run.first; i < next; ++i) {
        const auto got = element_at<float>(call_.outputs[rank], i);
        if (got == expected) continue;
        return violate(rank, fmt::format("element {} is {}, but the contributors {:#x} give {}", i,
                                         got, run.contributors, expected));
      }
    }
    if (next != call_.count) violate(rank, "the report's runs do not cover the result");
    if (!report.missing.empty() && report.missing != missing) {
      violate(rank, "the report's sums per rank differ from its runs");
    }
  }

  const SimulationPlan& plan_;
  const SimulatedCall& call_;
  SimulationResult& result_;
};

}  // namespace

void judge(const SimulationPlan& plan, const SimulatedCall& call, SimulationResult& result) {
  Judge(plan, call, result).run();
}

}  // namespace tarpon
