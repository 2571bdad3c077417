// The oracle of results: what each element of a call's output has to be.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "collectives/engine/schedules/tar_shards.h"
#include "tools/reference/coded_reference.h"
#include "tools/reference/replay.h"
#include "tools/simulation/judge/owned_parts.h"
#include "tools/simulation/simulated_call.h"
#include "transport/rank_mask.h"

namespace tarpon {
namespace {

/// Whether it is a bounded call over hosts.
bool runs_by_hosts(const SimulatedCall& call) {
  return std::any_of(call.pending.begin(), call.pending.end(), [](const auto& one) {
    return one && one->report.mode == Mode::bounded && one->report.algorithm == Algorithm::hosts;
  });
}

class Results {
 public:
  Results(const SimulationPlan& plan, const SimulatedCall& call, SimulationResult& result)
      : plan_(plan),
        call_(call),
        result_(result),
        owned_(plan, exact_arguments(call), turn(), runs_by_hosts(call)) {}

  void run() {
    if (call_.mismatched) return;
    if (call_.gathers_parts()) {
      for (Rank rank = 0; rank < plan_.ranks; ++rank) {
        if (!has_result(rank)) continue;
        with_element_type(call_.type, [&](auto zero) { judge_parts<decltype(zero)>(rank); });
      }
    } else if (call_.bounded) {
      for (Rank rank = 0; rank < plan_.ranks; ++rank) {
        if (!has_result(rank)) continue;
        with_element_type(call_.type, [&](auto zero) {
          if constexpr (kIsFloat<decltype(zero)>) {
            judge_rank<decltype(zero)>(rank, call_.pending[rank]->report);
          }
        });
      }
    } else {
      with_element_type(call_.type, [&](auto zero) { judge_exact<decltype(zero)>(); });
    }
  }

 private:
  void violate(Rank rank, const std::string& what) {
    result_.violations.push_back(describe(call_, rank) + ": " + what);
  }

  bool has_result(Rank rank) const {
    return call_.pending[rank] && call_.pending[rank]->done &&
           tarpon::has_result(call_.pending[rank]->report.status);
  }

  template <typename T>
  void judge_rank(Rank rank, const Report& report) {
    judge_nonfinite(rank, report);
    report.nonfinite ? judge_all_nan<T>(rank, report) : judge_bounded<T>(rank, report);
  }

  /// Checks that a rank that does not know of NaN or infinity has nothing of the rank that had it.
  void judge_nonfinite(Rank rank, const Report& report) {
    for (const Rank named : report.nonfinite_ranks) {
      if (named != plan_.victim) violate(rank, fmt::format("rank {} had nothing infinite", named));
    }
    const bool found = call_.nonfinite && (plan_.mechanisms.nonfinite || report.coded);
    if (report.nonfinite) {
      if (!found) violate(rank, "nothing was infinite");
      return;
    }
    if (!found) return;
    for (const ContributorRun& run :
         runs_of(report, positions_of(report, call_.output_of(rank).count), plan_.ranks)) {
      if (run.count == 0 || (run.contributors >> plan_.victim & 1) == 0) continue;
      return violate(rank, "does not know of the infinite input that its result holds");
    }
  }

  template <typename T>
  void judge_all_nan(Rank rank, const Report& report) {
    if (report.nonfinite_ranks.empty() && !plan_.on.any()) violate(rank, "names nobody");
    const Range output = call_.output_of(rank);
    for (std::uint64_t i = output.first; i < output.end(); ++i) {
      const auto got = static_cast<double>(element_at<T>(call_.outputs[rank], i));
      if (!std::isnan(got)) return violate(rank, fmt::format("element {} is {}, not NaN", i, got));
    }
  }

  /// Whether after healing the run has the contributions of all survivors, or lies in the shard of
  /// a dead rank.
  bool good_without_the_dead(const Report& report, const ContributorRun& run) const {
    if (!plan_.loses_victim() || run.count == 0) return true;  // complete
    if (run.contributors == (all_ranks(plan_.ranks) & ~bit(plan_.victim))) return true;
    if (report.coded) {
      const std::uint32_t shard = shard_of(plan_.victim, turn(), plan_.ranks);
      const std::uint64_t row = report.coded->layout.row_elements();
      return run.contributors == 0 && run.count == row && run.first / row % plan_.ranks == shard;
    }
    const Range dead = owned_.shard(plan_.victim);
    return run.contributors == 0 && run.first >= dead.first && run.first + run.count <= dead.end();
  }

  std::uint32_t turn() const { return plan_.mechanisms.rotation ? call_.number : 0; }

  template <typename T>
  void judge_exact() {
    if (!call_.parts.empty()) return judge_collective<T>();
    if (call_.algorithm != Algorithm::tar || !call_.shares.even()) return judge_scheduled<T>();
    const ShardLayout layout{call_.count, sizeof(T), plan_.ranks};
    for (std::uint32_t shard = 0; shard < plan_.ranks; ++shard) {
      const Rank owner = owner_of(shard, turn(), plan_.ranks);
      const Range range = layout.elements(shard);
      for (std::uint64_t i = range.first; i < range.end(); ++i) {
        const T expected =
            reduce_over<T>(all_ranks(plan_.ranks), plan_.ranks, owner, call_.function,
                           [&](Rank rank) { return element_at<T>(call_.inputs[rank], i); });
        if (!judge_element(i, expected)) return;
      }
    }
  }

  /// What element `i` of the output of `rank` has to be. Elements are those of the bucket.
  template <typename T>
  T collective_result(Rank rank, Rank part, std::uint64_t i) const {
    const CollectiveParts& parts = call_.parts[rank];
    switch (parts.collective) {
      case Collective::reduce_scatter:
      case Collective::reduce:
        if (call_.algorithm == Algorithm::hosts) {
          return replay<T>(addition_program(exact_arguments(call_), plan_.layout(), rank),
                           plan_.ranks, call_.function,
                           [&](Rank r) { return element_at<T>(call_.inputs[r], i); });
        }
        return reduce_over<T>(all_ranks(plan_.ranks), plan_.ranks, rank, call_.function,
                              [&](Rank r) { return element_at<T>(call_.inputs[r], i); });
      case Collective::all_to_all: {
        const std::uint64_t place = i - parts.parts[part].first;
        return element_at<T>(call_.inputs[part], call_.parts[part].sent[rank].first + place);
      }
      case Collective::broadcast:
      case Collective::scatter:
      case Collective::send:
      case Collective::receive:
        return element_at<T>(call_.inputs[parts.root], i);
      case Collective::all_gather:
      case Collective::gather:
      case Collective::allreduce:
        break;
    }
    return element_at<T>(call_.inputs[part], i);
  }

  template <typename T>
  void judge_collective() {
    for (Rank rank = 0; rank < plan_.ranks; ++rank) {
      if (!has_result(rank)) continue;
      const CollectiveParts& parts = call_.parts[rank];
      const Range output = parts.output(rank);
      Rank part = 0;
      for (std::uint64_t i = output.first; i < output.end(); ++i) {
        while (part < parts.parts.size() && i >= parts.parts[part].end()) ++part;
        const T expected = collective_result<T>(rank, part, i);
        const T got = element_at<T>(call_.outputs[rank], i);
        if (std::memcmp(&got, &expected, sizeof got) == 0) continue;
        violate(rank,
                fmt::format("element {} is {}, not {}", i, SumOf<T>{got}, SumOf<T>{expected}));
        break;
      }
    }
  }

  template <typename T>
  void judge_scheduled() {
    const AllreduceArguments arguments = exact_arguments(call_);
    const bool by_hosts = call_.algorithm == Algorithm::hosts;
    for (const AdditionProgram& program :
         by_hosts ? addition_programs(arguments, plan_.layout(), plan_.host_shape(), turn())
                  : addition_programs(arguments, plan_.ranks, turn())) {
      for (std::uint64_t i = program.elements.first; i < program.elements.end(); ++i) {
        const T expected = replay<T>(program, plan_.ranks, call_.function, [&](Rank rank) {
          return element_at<T>(call_.inputs[rank], i);
        });
        if (!judge_element(i, expected)) return;
      }
    }
  }

  /// Whether every rank with a result has these bits.
  template <typename T>
  bool judge_element(std::uint64_t i, T expected) {
    for (Rank rank = 0; rank < plan_.ranks; ++rank) {
      if (!has_result(rank)) continue;
      const T got = element_at<T>(call_.outputs[rank], i);
      if (std::memcmp(&got, &expected, sizeof got) == 0) continue;
      violate(rank, fmt::format("element {} is {}, not {}", i, SumOf<T>{got}, SumOf<T>{expected}));
      return false;
    }
    return true;
  }

  /// What element `i` of `run` has to be.
  template <typename T>
  T expect(const ContributorRun& run) const {
    return reduce_over<T>(
        run.contributors, plan_.ranks, 0, call_.function,
        [](Rank r) { return static_cast<SumOf<T>>(coded_as<T>(r)); }, plan_.mechanisms.rescale);
  }

  /// Hosts round their sums of half precision.
  template <typename T>
  static bool is_near(T got, T expected) {
    const auto wanted = static_cast<double>(expected);
    return std::abs(static_cast<double>(got) - wanted) <= 4 * epsilon_of<T>() * std::abs(wanted);
  }

  /// What MissingFill has to put at element `i` of rank `rank`.
  template <typename T>
  T filled(Rank rank, std::uint64_t i) const {
    if (call_.missing == MissingFill::zero) return T{};
    return reduce_over<T>(bit(rank), plan_.ranks, 0, call_.function,
                          [&](Rank r) { return element_at<T>(call_.inputs[r], i); });
  }

  /// Whether a late rank in place has added contributions of others to its own, in its own shard.
  bool has_lost_own(Rank rank, const Report& report, std::uint64_t i) const {
    if (report.status != Status::late_self || !call_.in_place) return false;
    const Range own = owned_.shard(rank);
    if (i < own.first || i >= own.end()) return false;
    return std::any_of(report.peers.begin(), report.peers.end(),
                       [](const PeerReport& of) { return of.bytes_received[kScatter] > 0; });
  }

  /// Returns false if an element without contributors is not what it has to be.
  template <typename T>
  bool judge_filled(Rank rank, const Report& report, const ContributorRun& run) {
    // Rules other than Rescale::count divide a late rank's own shard and multiply it again.
    const bool rounds = plan_.mechanisms.rescale != Rescale::count;
    for (std::uint64_t i = run.first; i < run.first + run.count; ++i) {
      const auto expected =
          static_cast<double>(has_lost_own(rank, report, i) ? T{} : filled<T>(rank, i));
      const auto got = static_cast<double>(element_at<T>(call_.outputs[rank], i));
      if (owned_.by_hosts() && is_filled_by_host<T>(rank, i, got)) continue;
      const double slack = rounds ? std::max(1e-6, epsilon_of<T>()) * std::abs(expected) : 0;
      if (std::abs(got - expected) <= slack || got == expected) continue;
      if (std::isnan(got) && std::isnan(expected)) continue;
      violate(rank,
              fmt::format("element {} is {}, but has to be filled with {}", i, got, expected));
      return false;
    }
    return true;
  }

  /// Whether `got` stands for a slot that a rank lacks of its own slice: a sum over ranks of its
  /// host, or nothing, if this rank was left out while it made the sum.
  template <typename T>
  bool is_filled_by_host(Rank rank, std::uint64_t i, double got) const {
    const Range slice = owned_.slice(rank);
    if (i < slice.first || i >= slice.end()) return call_.in_place && got == 0;
    if (got == 0) return call_.in_place || call_.missing == MissingFill::zero;
    const std::uint64_t host = owned_.host_of(rank);
    for (std::uint64_t some = host; some != 0; some = (some - 1) & host) {
      if ((some & bit(rank)) == 0) continue;
      const auto sum =
          static_cast<double>(reduce_over<T>(some, plan_.ranks, 0, call_.function, [&](Rank r) {
            return element_at<T>(call_.inputs[r], i);
          }));
      if (sum == got || std::abs(sum - got) <= std::max(1e-6, 4 * epsilon_of<T>()) * std::abs(sum))
        return true;
    }
    return false;
  }

  /// Coded values tell their contributors: every element must be the reduction over exactly the
  /// ranks that the report names for it.
  template <typename T>
  void judge_bounded(Rank rank, const Report& report) {
    std::uint64_t next = 0;
    std::vector<std::uint64_t> missing(plan_.ranks, 0);
    const Range output = call_.output_of(rank);
    const std::uint64_t positions = positions_of(report, output.count);
    for (const ContributorRun& run : runs_of(report, positions, plan_.ranks)) {
      if (run.first != next) return violate(rank, "the report's runs have gaps");
      next += run.count;
      if (call_.live && !plan_.overflows_unrepaired() && !good_without_the_dead(report, run)) {
        violate(rank, fmt::format("elements {} to {} are of {:#x}", run.first, next - 1,
                                  run.contributors));
      }
      for (Rank r = 0; r < plan_.ranks; ++r) {
        if ((run.contributors >> r & 1) == 0) missing[r] += run.count;
      }
      if (report.coded) continue;
      if (run.contributors == 0) {
        if (!judge_filled<T>(rank, report, run)) return;
        continue;
      }
      const T expected = expect<T>(run);
      for (std::uint64_t i = run.first; i < next; ++i) {
        const T got = element_at<T>(call_.outputs[rank], output.first + i);
        if (got == expected) continue;
        if (owned_.by_hosts() && kIsHalf<T> && is_near(got, expected)) continue;
        // NaN or infinity spreads if no rank looks for it.
        const auto value = static_cast<double>(got);
        if (call_.nonfinite && !std::isfinite(value) &&
            (run.contributors >> plan_.victim & 1) != 0) {
          continue;
        }
        return violate(rank, fmt::format("{}: element {} is {}, but the contributors {:#x} give {}",
                                         name(report.status), i, value, run.contributors,
                                         static_cast<double>(expected)));
      }
    }
    if (next != positions) violate(rank, "the report's runs do not cover the result");
    if (!report.missing.empty() && report.missing != missing) {
      violate(rank, "the report's sums per rank differ from its runs");
    }
    const bool lacks = std::any_of(missing.begin(), missing.end(),
                                   [](std::uint64_t positions) { return positions > 0; });
    if (report.missing.empty() == lacks || report.runs.empty() == lacks) {
      violate(rank, "the report lists what is missing, and nothing is, or the reverse");
    }
    if (report.coded) judge_coded(rank, report);
  }

  /// Checks a bounded all_gather: an element is that of its rank, or as it was before.
  template <typename T>
  void judge_parts(Rank rank) {
    const Report& report = call_.pending[rank]->report;
    const std::vector<Range>& parts = call_.parts[0].parts;
    std::vector<std::uint64_t> missing(plan_.ranks, 0);
    std::uint64_t next = 0;
    Rank owner = 0;
    for (const ContributorRun& run : runs_of(report, call_.count, plan_.ranks)) {
      if (run.first != next) return violate(rank, "the report's runs have gaps");
      for (; next < run.first + run.count; ++next) {
        while (next >= parts[owner].end()) ++owner;
        const bool here = run.contributors != 0;
        if (here && !report.runs.empty() && run.contributors != bit(owner)) {
          return violate(rank, fmt::format("element {} is of {:#x}", next, run.contributors));
        }
        if (!here) ++missing[owner];
        const T got = element_at<T>(call_.outputs[rank], next);
        const T expected = here             ? element_at<T>(call_.inputs[owner], next)
                           : call_.in_place ? element_at<T>(call_.inputs[rank], next)
                                            : T{};
        if (std::memcmp(&got, &expected, sizeof got) == 0) continue;
        return violate(rank, fmt::format("element {} is {}, not {}: {}", next, SumOf<T>{got},
                                         SumOf<T>{expected}, here ? "it came" : "it is missing"));
      }
    }
    if (next != call_.count) violate(rank, "the report's runs do not cover the result");
    for (Rank of = 0; of < plan_.ranks; ++of) {
      const bool may_lack = (plan_.loses_victim() && of == plan_.victim) ||
                            plan_.overflows_unrepaired() || !call_.live;
      if (missing[of] > 0 && (!may_lack || of == rank)) {
        violate(rank, fmt::format("lacks elements of rank {}", of));
      }
    }
    const auto lost = std::accumulate(missing.begin(), missing.end(), std::uint64_t{0});
    if (report.missing != (lost > 0 ? missing : std::vector<std::uint64_t>())) {
      violate(rank, "the report's sums per rank differ from its runs");
    }
  }

  /// Checks that every element is what the coefficients of exactly those ranks decode to.
  void judge_coded(Rank rank, const Report& report) {
    const CodedExpectation expected =
        coded_expectation(report, plan_.ranks, rank, call_.function, call_.missing,
                          [](Rank r, std::uint64_t) { return static_cast<float>(coded_value(r)); });
    for (std::uint64_t i = 0; i < call_.count; ++i) {
      // Only a filled element can hold NaN or infinity, because neither is coded.
      const bool spoilt = call_.missing == MissingFill::local &&
                          !std::isfinite(element_at<float>(call_.inputs[rank], i));
      if (spoilt) continue;
      const double got = element_at<float>(call_.outputs[rank], i);
      if (std::abs(got - expected.values[i]) <= expected.tolerances[i]) continue;
      return violate(rank, fmt::format("element {} decodes to {}, but should to {}", i, got,
                                       expected.values[i]));
    }
  }

  const SimulationPlan& plan_;
  const SimulatedCall& call_;
  SimulationResult& result_;
  const OwnedParts owned_;
};

}  // namespace

void judge_results(const SimulationPlan& plan, const SimulatedCall& call,
                   SimulationResult& result) {
  Results(plan, call, result).run();
}

}  // namespace tarpon
