#include "collectives/engine/call/mismatches.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace tarpon {
namespace {

// Time in which further mismatches may arrive after the first one, to be reported with it.
constexpr Duration kMismatchGrace = 50ms;

std::string difference(const std::optional<OperationSignature>& of,
                       const std::optional<OperationSignature>& from) {
  return (of && from ? first_difference(*of, *from) : std::nullopt).value_or("unknown operation");
}

}  // namespace

void Mismatches::add(Rank peer, const std::optional<OperationSignature>& theirs,
                     const std::optional<OperationSignature>& ours) {
  any_ = true;
  blamed_.push_back(peer);
  if (blamed_.size() == 1) {
    others_ = theirs;
    detail_ = fmt::format("rank {} differs: {}", peer, difference(theirs, ours));
  }
  others_alike_ = others_alike_ && theirs && theirs == others_;
  if (others_alike_ && blamed_.size() > 1 && blamed_.size() + 1 == world_) {
    blamed_ = {rank_};
    detail_ = fmt::format("this rank differs from all others: {}", difference(ours, theirs));
  }
}

void Mismatches::add_ended(std::string detail) {
  if (any_) return;
  any_ = true;
  detail_ = std::move(detail);
}

void Mismatches::collect(Time now, Time limit) {
  if (any_) end_at_ = std::min({end_at_, now + kMismatchGrace, now + (limit - now) / 2});
}

}  // namespace tarpon
