#include "transport/simulated/link.h"

#include <algorithm>
#include <cmath>

namespace tarpon {

Link::Bucket Link::bucket(double bits_per_second, std::uint64_t burst_bytes) {
  Bucket result;
  if (bits_per_second <= 0) return result;
  result.ps_per_byte = std::max<std::int64_t>(1, std::llround(8e12 / bits_per_second));
  result.burst_ps = static_cast<std::int64_t>(burst_bytes) * result.ps_per_byte;
  result.free_at = -result.burst_ps;  // full
  return result;
}

std::int64_t Link::Bucket::finish(std::int64_t now, std::uint32_t bytes) const {
  return std::max(free_at, now - burst_ps) + std::int64_t{bytes} * ps_per_byte;
}

Link::Link(const LinkOptions& options, std::uint64_t seed)
    : options_(options),
      policer_(bucket(options.policer_bits_per_second, options.policer_burst_bytes)),
      wire_(bucket(options.bits_per_second, options.burst_bytes)),
      queue_ps_(static_cast<std::int64_t>(options.queue_bytes) * wire_.ps_per_byte),
      extra_(options.tail, options.tail_median),
      random_(seed) {}

bool Link::lost() {
  if (options_.burst_loss_enter > 0) {
    const double turn = lossy_ ? options_.burst_loss_leave : options_.burst_loss_enter;
    if (random_.chance(turn)) lossy_ = !lossy_;
  }
  const bool lost = options_.loss > 0 && random_.chance(options_.loss);
  return lossy_ || lost;
}

bool Link::has_room(Time now, std::uint32_t wire_bytes) const {
  const std::int64_t now_ps = now.time_since_epoch().count() * 1000;
  if (wire_.ps_per_byte <= 0 || queue_ps_ <= 0 || wire_.free_at <= now_ps) return true;
  return wire_.finish(now_ps, wire_bytes) - now_ps <= queue_ps_;
}

Passage Link::enter(Time now, std::uint32_t wire_bytes) {
  const std::int64_t now_ps = now.time_since_epoch().count() * 1000;
  if (policer_.ps_per_byte > 0) {
    const std::int64_t finish = policer_.finish(now_ps, wire_bytes);
    if (finish > now_ps) return {LinkFate::policer, now};
    policer_.free_at = finish;
  }
  Time departure = now;
  if (wire_.ps_per_byte > 0) {
    const std::int64_t finish = wire_.finish(now_ps, wire_bytes);
    const bool waits = wire_.free_at > now_ps;
    if (waits && queue_ps_ > 0 && finish - now_ps > queue_ps_) return {LinkFate::queue, now};
    wire_.free_at = finish;
    departure = std::max(now, Time(Duration((finish + 999) / 1000)));
  }
  const Time arrival = departure + options_.delay + extra_.draw(random_);
  return {lost() ? LinkFate::loss : LinkFate::delivered, arrival};
}

}  // namespace tarpon
