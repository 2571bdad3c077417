#include "tools/flight/verdict.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <tuple>

namespace tarpon {
namespace {

using Operation = std::vector<OperationAtRank>;
using Presence = OperationAtRank::Presence;

// A call that runs for less is under way, not stuck.
constexpr Duration kLongOpen = 100ms;

bool arguments_differ(const Operation& operation) {
  const OperationAtRank* first = nullptr;
  const auto key = [](const OperationAtRank& at) {
    return std::tuple(at.submitted->stage, at.submitted->detail, at.submitted->mask());
  };
  for (const OperationAtRank& at : operation) {
    if (!at.submitted) continue;
    if (first == nullptr) first = &at;
    if (key(at) != key(*first)) return true;
  }
  return false;
}

/// The longest time that a rank has been in the operation without ending it.
Duration open_for(const FlightJob& job, const Operation& operation) {
  Duration age{};
  for (std::size_t rank = 0; rank < operation.size(); ++rank) {
    if (!operation[rank].opened || operation[rank].ended) continue;
    age = std::max(age, job.ranks[rank].dumped() - job.ranks[rank].at(*operation[rank].opened));
  }
  return age;
}

FlightTrouble trouble_of(const FlightJob& job, const Operation& operation) {
  if (arguments_differ(operation)) return FlightTrouble::failed;
  FlightTrouble trouble = FlightTrouble::none;
  const auto raise = [&trouble](FlightTrouble to) { trouble = std::max(trouble, to); };
  for (std::size_t rank = 0; rank < operation.size(); ++rank) {
    const OperationAtRank& at = operation[rank];
    if (at.presence != Presence::begun) continue;
    if (!at.ended) {
      if (died_of_signal(job.ranks[rank])) return FlightTrouble::failed;
      continue;
    }
    const auto status = static_cast<Status>(at.ended->detail);
    if (is_failure(status)) return FlightTrouble::failed;
    if (status != Status::complete) raise(FlightTrouble::partial);
    if (at.nonfinite) raise(FlightTrouble::nonfinite);
  }
  if (open_for(job, operation) >= kLongOpen) raise(FlightTrouble::open);
  return trouble;
}

/// How each rank ended, or that it has not.
std::string how_it_ended(const Operation& operation) {
  std::string text;
  for (std::size_t rank = 0; rank < operation.size(); ++rank) {
    const OperationAtRank& at = operation[rank];
    if (at.presence == Presence::unknown) continue;
    std::string_view word = "not begun";
    if (at.presence == Presence::begun) {
      word = at.ended ? name(static_cast<Status>(at.ended->detail)) : "still open";
    }
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", rank, word);
  }
  return text;
}

std::string link_text(const FlightLink& link) {
  return fmt::format("from rank {} to rank {}", link.from, link.to);
}

std::string blames_text(const std::vector<FlightBlame>& blames) {
  std::string text;
  for (const FlightBlame& one : blames) {
    text += fmt::format("{}rank {}: {}", text.empty() ? "" : "; ", one.rank, one.why);
  }
  return text;
}

/// "rank 2: did not run for 3016.000 ms"; "packets do not arrive on the way from rank 0 to rank 1".
std::string finding_text(const FlightFinding& finding) {
  const std::string_view what = row_of(finding.cause).what;
  if (finding.cause == FlightCause::undecided) {
    return finding.guilty.empty() ? "undecided: no rank stands out"
                                  : "undecided between " + blames_text(finding.guilty);
  }
  if (!finding.guilty.empty()) return blames_text(finding.guilty);
  if (finding.links.empty()) return fmt::format("{}, no rank is to blame", what);
  std::vector<std::string> links;
  for (const FlightLink& link : finding.links) links.push_back(link_text(link));
  return fmt::format("{} {}", what, fmt::join(links, ", "));
}

/// How long the operation took the slowest rank; nothing if it did not end well everywhere. Of each
/// rank by its own clock.
std::optional<Duration> time_of(const Operation& operation) {
  std::optional<Duration> longest;
  for (const OperationAtRank& at : operation) {
    if (at.presence == Presence::unknown) continue;
    if (!at.opened || !at.ended) return std::nullopt;
    if (static_cast<Status>(at.ended->detail) != Status::complete) return std::nullopt;
    longest = std::max(longest.value_or(Duration{}), at.ended->time - at.opened->time);
  }
  return longest;
}

/// The times of operations with the same tag and arguments.
class UsualTimes {
 public:
  explicit UsualTimes(const FlightOperations& operations) {
    for (const auto& [key, operation] : operations) {
      if (const auto time = time_of(operation)) times_[kind_of(key, operation)].push_back(*time);
    }
    for (auto& [kind, times] : times_) std::sort(times.begin(), times.end());
  }

  /// The median of the operations alike, if this one is far slower.
  std::optional<Duration> exceeded_by(const OperationKey& key, const Operation& operation) const {
    constexpr std::size_t kEnough = 5;
    constexpr int kFactor = 10;
    const auto time = time_of(operation);
    if (!time || *time < kLongOpen) return std::nullopt;
    const auto& alike = times_.at(kind_of(key, operation));
    const Duration median = alike[(alike.size() - 1) / 2];
    if (alike.size() < kEnough || *time <= kFactor * median) return std::nullopt;
    return median;
  }

 private:
  using Kind = std::tuple<std::uint32_t, std::uint8_t, std::uint8_t, std::uint64_t>;

  static Kind kind_of(const OperationKey& key, const Operation& operation) {
    for (const OperationAtRank& at : operation) {
      if (!at.submitted) continue;
      return {key.first, at.submitted->stage, at.submitted->detail, at.submitted->mask()};
    }
    return {key.first, 0, 0, 0};
  }

  std::map<Kind, std::vector<Duration>> times_;
};

/// The operation to explain.
struct Choice {
  OperationKey key;
  FlightTrouble trouble = FlightTrouble::none;
  Duration median{};  // of operations alike, if this one is slow
};

std::optional<Choice> choose(const FlightJob& job, const FlightOperations& operations) {
  std::optional<Choice> chosen;
  Time first = kNever;
  const UsualTimes usual(operations);
  for (const auto& [key, operation] : operations) {
    FlightTrouble trouble = trouble_of(job, operation);
    std::optional<Duration> median;
    if (trouble == FlightTrouble::none) median = usual.exceeded_by(key, operation);
    if (median) trouble = FlightTrouble::slow;
    if (trouble == FlightTrouble::none) continue;
    const Time begin = begin_of(job, operation);
    const bool heavier = !chosen || trouble > chosen->trouble;
    if (!heavier && (trouble != chosen->trouble || begin >= first)) continue;
    chosen = Choice{key, trouble, median.value_or(Duration{})};
    first = begin;
  }
  return chosen;
}

FlightFinding find_cause(const FlightCase& of, std::vector<std::string>& also) {
  const auto findings = direct_findings(of);
  if (const FlightFinding* first = first_cause(of, findings)) {
    for (const FlightFinding& other : findings) {
      if (&other != first) also.push_back(finding_text(other));
    }
    return *first;
  }
  if (auto silence = silence_finding(of)) return *silence;
  if (auto link = link_finding(of)) return *link;
  FlightFinding nothing = undecided(of);
  if (nothing.cause == FlightCause::slow && of.trouble() == FlightTrouble::failed) {
    auto loss = loss_finding(of);
    return loss && !loss->links.empty() ? *loss : nothing;
  }
  if (auto loss = loss_finding(of)) return *loss;
  return nothing;
}

std::string line_of(const FlightJob& job, const Choice& choice, const Operation& operation,
                    const std::string& found) {
  std::string state;
  if (choice.trouble == FlightTrouble::open) {
    state = fmt::format(" is still open after {:.3f} ms", to_ms(open_for(job, operation)));
  } else if (choice.trouble == FlightTrouble::slow) {
    state = fmt::format(" took {:.3f} ms, the median is {:.3f} ms",
                        to_ms(time_of(operation).value_or(Duration{})), to_ms(choice.median));
  }
  return fmt::format("{}{}: {} (by rank: {})", operation_text(choice.key), state, found,
                     how_it_ended(operation));
}

}  // namespace

FlightVerdict judge_flight(const FlightJob& job) {
  const auto operations = operations_of(job);
  FlightVerdict verdict;
  const auto choice = choose(job, operations);
  if (!choice) {
    verdict.line = "nothing differs: every recorded operation is alike on all recorded ranks";
    verdict.next = row_of(FlightCause::none).next;
    return verdict;
  }
  const FlightCase of(job, operations, choice->key, choice->trouble);
  FlightFinding found = find_cause(of, verdict.also);
  verdict.operation = choice->key;
  verdict.cause = found.cause;
  verdict.zero = of.begin();
  verdict.line = line_of(job, *choice, operations.at(choice->key), finding_text(found));
  verdict.next = row_of(found.cause).next;
  const bool decided = found.cause != FlightCause::undecided;
  (decided ? verdict.guilty : verdict.candidates) = std::move(found.guilty);
  verdict.links = std::move(found.links);
  verdict.missing = std::move(found.missing);
  verdict.evidence = std::move(found.evidence);
  std::stable_sort(verdict.evidence.begin(), verdict.evidence.end(),
                   [](const FlightEvidence& a, const FlightEvidence& b) {
                     return a.at.value_or(Time::min()) < b.at.value_or(Time::min());
                   });
  return verdict;
}

}  // namespace tarpon
