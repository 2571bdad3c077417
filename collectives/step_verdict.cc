#include "collectives/step_verdict.h"

#include <algorithm>

#include "collectives/allreduce.h"

namespace tarpon {

std::string_view name(Verdict verdict) {
  switch (verdict) {
    case Verdict::apply:
      return "apply";
    case Verdict::skip:
      return "skip";
    case Verdict::halt:
      return "halt";
  }
  return "?";
}

LossBudget LossBudget::usual(double loss_target) {
  LossBudget budget;
  budget.skip_above = std::clamp(20 * loss_target, budget.skip_above, budget.halt_above);
  return budget;
}

LossReport loss_report(const Report& report) {
  const std::uint64_t late = report.mask(report.late_ranks);
  switch (report.status) {
    case Status::complete:
    case Status::partial:
    case Status::late_self:
      return {report.causes.of_network(), report.nonfinite, late, 0};
    case Status::peer_late:
    case Status::mismatch:
    case Status::aborted:
    case Status::failed:
    case Status::peer_dead:
    case Status::evicted:
    case Status::peer_left:
      break;
  }
  return {1.0, report.nonfinite, late, 0};  // no result
}

}  // namespace tarpon
