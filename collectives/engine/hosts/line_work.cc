#include "collectives/engine/hosts/line_work.h"

namespace tarpon {

std::optional<std::uint32_t> LineWork::turn() const {
  for (const hosts::Part part : parts_) {
    if (done(part) < steps_ && !line().is_turn(part, number())) return line().first(part);
  }
  return std::nullopt;
}

void LineWork::note_done(hosts::Part part) {
  const std::uint32_t done = ++done_[static_cast<std::size_t>(part)];
  if (done == steps_) {
    line().leave(part, number());
  } else {
    line().publish(part, number(), done);
  }
}

}  // namespace tarpon
