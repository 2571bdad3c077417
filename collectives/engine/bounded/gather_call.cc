#include "collectives/engine/bounded/gather_call.h"

#include <algorithm>
#include <cstring>

#include "collectives/engine/bounded/parts_account.h"
#include "collectives/engine/schedules/shards.h"

namespace tarpon {

GatherCall::GatherCall(const Setting& setting, const std::shared_ptr<PendingCall>& call,
                       Endpoint& endpoint, Time submitted, Time now)
    : ClockedCall(setting, call, endpoint, submitted, now,
                  {.bytes = bucket_bytes(call->arguments),
                   .open = setting.open,
                   .collective = Collective::all_gather},
                  Duration::zero()),
      layout_(call_->arguments, nullptr, setting.world, setting.rank, 0, setting.slot_bytes),
      own_(layout_.input_at(layout_.shards().own.first), bit(setting.rank)) {
  call_->report.algorithm = Algorithm::tar;
  open(specify(now), clocked_signature(layout_.slot_bytes()), now);
}

/// The parts go in the first stage. As in a scatter, what a rank has not sent by its end never
/// comes.
OperationSpec GatherCall::specify(Time now) {
  OperationSpec spec = common_spec(layout_.slot_bytes(), now);
  spec.asks_if_late = false;
  spec.awaits_confirmations = true;
  spec.stages.resize(2);
  StageSpec& stage = spec.stages[kScatter];
  stage.repair = setting_.mechanisms.repair;
  stage.acknowledge = true;
  stage.alike = true;
  const TarShards& shards = layout_.shards();
  for (auto to = shards.others.rbegin(); to != shards.others.rend(); ++to) {
    stage.sends.push_back({to->owner, &own_, shards.own.count});
    call_->report.bytes_sent += shards.own.count;
  }
  parts_.reserve(shards.others.size());
  for (const TarShards::Shard& from : shards.others) {
    parts_.emplace_back(layout_.result_at(from.range.first),
                        slots(from.range.count, layout_.slot_bytes()), setting_.memory);
    stage.receives.push_back({from.owner, &parts_.back(), from.range.count});
  }
  return spec;
}

bool GatherCall::advance(Time now) {
  if (closed_.all() && may_finish_confirmed(now)) finish(now);
  return over();
}

void GatherCall::finish(Time now) {
  report_clocked_end(now);
  PartsAccount({.endpoint = endpoint_,
                .handle = handle(),
                .rank = setting_.rank,
                .world = setting_.world,
                .layout = layout_,
                .parts = parts_,
                .gone = gone_,
                .late_self = late_self_},
               call_->report)
      .fill();
  report_late_begin();
  take_lesson();
  close(nullptr, 0);
}

/// Bytes of the own part, unless the call is in place.
std::uint64_t GatherCall::bytes_to_copy() const {
  const Range own = layout_.shards().own;
  return layout_.input_at(own.first).data == layout_.result_at(own.first).data ? 0 : own.count;
}

Duration GatherCall::closing_work() const {
  const std::uint64_t bytes = bytes_to_copy();
  return bytes <= setting_.piece_bytes ? Duration::zero() : setting_.work_rate->of(bytes);
}

void GatherCall::complete_output() {
  if (!has_result(call_->report.status)) return;
  const std::uint64_t bytes = bytes_to_copy();
  work_.add(slots(bytes, layout_.slot_bytes()), layout_.slot_bytes(),
            [this, bytes](std::uint64_t first, std::uint64_t count) {
              const Range own = layout_.shards().own;
              const std::uint64_t begin = first * layout_.slot_bytes();
              const std::uint64_t length = std::min(count * layout_.slot_bytes(), bytes - begin);
              std::memcpy(layout_.result_at(own.first + begin).data,
                          layout_.input_at(own.first + begin).data, length);
            });
}

}  // namespace tarpon
