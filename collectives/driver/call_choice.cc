#include "collectives/driver/call_choice.h"

#include "collectives/engine/schedules/exchange_plan.h"
#include "transport/pair_tag.h"

namespace tarpon {

CallArguments CallChoice::chosen(CallArguments call) const {
  if (pair_tag(call.tag)) {
    call.algorithm = Algorithm::tar;
    return call;
  }
  if (call.parts || !call.wrong.empty()) {
    // A refused call is told in the memory too, where the other ranks look for it.
    const bool shared = sharing != nullptr && ExchangePlan::suits(call.parts.get(), *sharing);
    if (shared) call.algorithm = Algorithm::hosts;
    return call;
  }
  call.learn_shares = call.learn_shares || learns_shares;
  if (call.algorithm == Algorithm::automatic) {
    const bool shared = sharing != nullptr && call.shares.even() && !call.learn_shares;
    call.algorithm = shared ? Algorithm::hosts : choose_algorithm(call, world);
  }
  if (call.follows) {
    call.input = call.output;
    call.missing = MissingFill::zero;
  }
  return call;
}

}  // namespace tarpon
