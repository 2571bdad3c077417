#include "transport/near_work.h"

#include "transport/endpoint/contract.h"
#include "transport/operation/open_operation.h"

namespace tarpon {

void NearWork::begun(Rank peer, const Signature& signature, Time now) {
  require((operation_.state().near >> peer & 1) != 0, "begun() of a near peer");
  operation_.note_begun(peer, signature, now);
}

void NearWork::marked(const Marks& told) {
  operation_.note_marks(told);
}

void NearWork::left_out(Time now) {
  require(operation_.state().bounded, "left_out() of a bounded operation");
  operation_.left_out(now);
}

void NearWork::awaits(std::uint64_t peers) {
  operation_.state().awaited_near = peers;
}

void NearWork::close(std::uint8_t stage, Time now) {
  Operation& state = operation_.state();
  require(stage < state.stage_count, "close() of a stage");
  Stage& closing = state.stages[stage];
  closing.awaits_caller = false;
  if (closing.closed || closing.open_receives > 0) return;
  receiver_.close_stage(state, closing, Closing::complete, now);
}

}  // namespace tarpon
