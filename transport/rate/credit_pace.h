// SendRule::credit: peers are not paced, their credit alone limits what is sent to them.
#pragma once

#include "transport/rate/send_pace.h"

namespace tarpon {

class CreditPace final : public SendPace {
 public:
  std::size_t allowed(Rank, Time, std::size_t, std::size_t most) const override { return most; }
  void sent(Rank, Time, std::size_t) override {}
  Time next(Rank) const override { return kNever; }
  void round_trip(Rank, Duration) override {}
};

}  // namespace tarpon
