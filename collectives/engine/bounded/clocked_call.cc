#include "collectives/engine/bounded/clocked_call.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "collectives/engine/schedules/tar_shards.h"
#include "transport/rank_mask.h"

namespace tarpon {

ClockedCall::ClockedCall(const Setting& setting, std::shared_ptr<PendingCall> call,
                         Endpoint& endpoint, Time submitted, Time now, const CallKind& kind,
                         Duration coding)
    : RunningCall(setting, std::move(call), endpoint, submitted, now),
      clock_({.bounds = *setting.bounds,
              .mechanisms = setting_.mechanisms,
              .arguments = call_->arguments,
              .endpoint = endpoint_,
              .handle = handle(),
              .rank = setting.rank,
              .world = setting.world,
              .kind = kind,
              .coding = coding,
              .submitted = submitted_,
              .deadline = deadline_,
              .report = call_->report}),
      lesson_({.bounds = *setting.bounds,
               .endpoint = endpoint_,
               .handle = handle(),
               .arguments = call_->arguments,
               .clock = clock_,
               .rank = setting.rank,
               .world = setting.world,
               .absent = setting.absent}) {
  Report& report = call_->report;
  if (report.mode == Mode::bounded) report.epoch = setting.epoch.number;
}

OperationSpec ClockedCall::common_spec(std::uint32_t slot_bytes, Time now) {
  OperationSpec spec;
  spec.tag = call_->arguments.tag;
  spec.slot_bytes = slot_bytes;
  spec.epoch.number = call_->report.epoch;
  spec.epoch.form = static_cast<std::uint8_t>((setting_.epoch.coded ? TARPON_FORM_CODED : 0) |
                                              (setting_.epoch.flat ? TARPON_FORM_FLAT : 0));
  spec.deadline = deadline_;
  spec.bounded = call_->report.mode == Mode::bounded;
  spec.began = setting_.began;
  if (spec.bounded) clock_.plan(spec, now);
  return spec;
}

OperationSignature ClockedCall::clocked_signature(std::uint32_t slot_bytes) const {
  OperationSignature result = common_signature(call_->arguments);
  result.algorithm = call_->report.algorithm;
  result.mode = call_->report.mode;
  result.slot_bytes = static_cast<std::uint16_t>(slot_bytes);
  result.epoch = call_->report.epoch;
  return result;
}

void ClockedCall::on_progress(const Event& event, Time now) {
  switch (event.kind) {
    case Event::Kind::acknowledged:
      return lesson_.note_delivered(now);  // advance() asks the endpoint itself
    case Event::Kind::clock:
      clock_.start(
          event.at, [this] { return closing_work(); }, now);
      update_limit();
      return limit_changed(now);
    case Event::Kind::extended:
      clock_.extend(event.elapsed, now);
      update_limit();
      return limit_changed(now);
    case Event::Kind::late:
      late_self_ = true;
      return update_limit();
    default:
      return;  // RunningCall handles the others
  }
}

void ClockedCall::hold(Time now) {
  if (!clock_.has_started() || late_self_ || now <= clock_.end()) return;
  clock_.extend(now - clock_.end(), now);
  update_limit();
}

void ClockedCall::update_limit() {
  limit_ = late_self_ ? deadline_ : std::min(deadline_, clock_.end());
}

bool ClockedCall::may_finish_confirmed(Time now) {
  const int lacking = std::popcount(endpoint_.view(handle()).unacknowledged());
  const bool waits = clock_.waits_for_live() && lacking > clock_.tolerated() * (setting_.world - 1);
  wake_at_ = waits ? clock_.latest(kScatter) : limit_;
  if (lacking != 0 && now < wake_at_) return false;
  if (clock_.waits_for_live()) hold(now);
  return true;
}

void ClockedCall::report_clocked_end(Time now) {
  report_end(now);
  const bool held = clock_.has_started() && now - clock_.started() > call_->report.bound;
  if (!held) call_->report.held = {};
}

void ClockedCall::report_late_begin() {
  Report& report = call_->report;
  const bool behind = clock_.has_started() && began_ > after(clock_.started(), report.bound);
  // Where the others wait for live ranks, they may have got all of this rank's data.
  const bool gone = report.stages[kScatter].closing == Closing::given_up;
  const bool late = behind && (gone || !clock_.waits_for_live());
  if (report.status != Status::partial || !late) return;
  report.status = Status::late_self;
  std::erase_if(report.late_ranks, [&](Rank rank) { return (gone_ & bit(rank)) == 0; });
  report.late_ranks.push_back(setting_.rank);
  std::sort(report.late_ranks.begin(), report.late_ranks.end());
  report.causes.late_ranks += report.causes.of_network();
  report.causes.cut = report.causes.network = report.causes.at_owner = 0;
}

void ClockedCall::take_lesson() {
  if (!late_self_ && !waited_in_vain_) lesson_.take(call_->report);
}

}  // namespace tarpon
