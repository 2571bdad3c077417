#include "collectives/engine/hosts/host_exchange.h"

#include <bit>
#include <cstring>
#include <utility>

#include "transport/rank_mask.h"

namespace tarpon {
namespace {

using hosts::HostLine;
using hosts::Part;
using hosts::position;

constexpr std::array<Part, 2> kParts{Part::copy_in, Part::copy_out};

}  // namespace

HostExchange::HostExchange(const CallArguments& call, const hosts::HostGroup& group,
                           const hosts::HostPeers& peers, const hosts::Assignment& assignment,
                           const ExchangePlan& plan, std::uint32_t world, std::byte* rail,
                           std::function<bool(Range)> has_come)
    : LineWork(peers, assignment, kParts, plan.steps()),
      call_(call),
      self_(group.self),
      rank_(group.ranks()[group.self]),
      local_(static_cast<std::uint32_t>(group.ranks().size())),
      width_(element_bytes(call.type)),
      plan_(plan),
      rail_(rail),
      has_come_(std::move(has_come)),
      sums_(sums_of_host(call, rail == nullptr, world)),
      from_(local_) {
  for (std::uint32_t rank = 0; rank < local_; ++rank) {
    if (rank == self_) continue;
    const std::uint64_t mask = std::uint64_t{1} << rank;
    if (plan_.passes(rank, self_)) sources_ |= mask;
    if (plan_.passes(self_, rank)) receivers_ |= mask;
  }
}

std::uint64_t HostExchange::sums(std::uint32_t slice) const {
  return plan_.reached(plan_.target(self_, self_, slice), done(Part::copy_out));
}

bool HostExchange::move() {
  const std::uint32_t before = steps_done();
  if (may_copy_in()) copy_in();
  if (may_take()) take();
  return steps_done() != before;
}

bool HostExchange::can_move() const {
  return may_copy_in() || may_take();
}

/// The ranks that this rank exchanges no data with, itself included.
std::uint64_t HostExchange::others() const {
  return first_ranks(local_) & ~(sources_ | receivers_);
}

bool HostExchange::may_copy_in() const {
  const std::uint32_t step = done(Part::copy_in);
  return has_turn(Part::copy_in) && line().is_free(HostLine::Area::inputs, place(step)) &&
         has_come(step);
}

/// Whether the elements of other hosts that this rank passes on in a step are there.
bool HostExchange::has_come(std::uint32_t step) const {
  if (receivers_ == 0) return true;
  const auto to = static_cast<std::uint32_t>(std::countr_zero(receivers_));
  for (std::uint32_t slice = 0; slice < plan_.slices(); ++slice) {
    const Range piece = plan_.piece(plan_.source(self_, to, slice), step);
    if (plan_.is_passed_on(self_, slice) && !has_come_(piece)) return false;
  }
  return true;
}

void HostExchange::copy_in() {
  const std::uint32_t step = done(Part::copy_in);
  std::byte* const place = line().input(this->place(step), self_);
  line().use(HostLine::Area::inputs, this->place(step),
             {.part = Part::copy_out, .number = number(), .step = step});
  std::uint64_t receivers = receivers_;
  if (plan_.shares()) receivers &= ~(receivers - 1);  // one of them stands for all
  for (; receivers != 0; receivers &= receivers - 1) {
    const auto to = static_cast<std::uint32_t>(std::countr_zero(receivers));
    for (std::uint32_t slice = 0; slice < plan_.slices(); ++slice) {
      const Range piece = plan_.piece(plan_.source(self_, to, slice), step);
      if (piece.count == 0) continue;  // buffers may be null
      const std::byte* const from =
          plan_.is_passed_on(self_, slice) ? call_.bucket_output(rank_) : call_.bucket_input(rank_);
      std::memcpy(place + plan_.offset(to, slice), from + piece.first * width_,
                  piece.count * width_);
    }
  }
  note_done(Part::copy_in);
}

/// The ranks whose work the next step of copy_out waits for. A rank that only sends does its last
/// step when its receivers have taken all.
std::uint64_t HostExchange::awaited() const {
  const std::uint32_t next = done(Part::copy_out) + 1;
  const std::uint64_t late = line().lacking(Part::copy_in, position(number(), next)) & sources_;
  if (late != 0 || sources_ != 0 || next < steps()) return late;
  return line().lacking(Part::copy_out, position(number(), next)) & receivers_;
}

bool HostExchange::may_take() const {
  if (!has_turn(Part::copy_out) || done(Part::copy_out) >= done(Part::copy_in)) return false;
  return awaited() == 0 && peers_.all_hold(others());
}

void HostExchange::take() {
  const std::uint32_t step = done(Part::copy_out);
  for (std::uint32_t slice = 0; slice < plan_.slices(); ++slice) {
    plan_.adds() ? add_up(step, slice) : copy_out(step, slice);
  }
  note_done(Part::copy_out);
}

void HostExchange::copy_out(std::uint32_t step, std::uint32_t slice) {
  for (std::uint64_t left = sources_; left != 0; left &= left - 1) {
    const auto from = static_cast<std::uint32_t>(std::countr_zero(left));
    const Range piece = plan_.piece(plan_.target(from, self_, slice), step);
    if (piece.count == 0) continue;  // buffers may be null
    std::memcpy(call_.bucket_output(rank_) + piece.first * width_,
                line().input(place(step), from) + plan_.offset(self_, slice), piece.count * width_);
  }
}

/// Adds up what the ranks of the host contribute to a slice of this rank's sums.
void HostExchange::add_up(std::uint32_t step, std::uint32_t slice) {
  if (sources_ == 0) return;
  const Range piece = plan_.piece(plan_.source(self_, self_, slice), step);
  for (std::uint32_t rank = 0; rank < local_; ++rank) {
    from_[rank] = rank == self_ ? call_.bucket_input(rank_) + piece.first * width_
                                : line().input(place(step), rank) + plan_.offset(self_, slice);
  }
  std::byte* const sums = rail_ != nullptr ? rail_ : call_.bucket_output(rank_);
  const Range target = plan_.piece(plan_.target(self_, self_, slice), step);
  sums_.add_up(sums + target.first * width_, from_, piece.count);
}

std::uint64_t HostExchange::lacking() const {
  const std::uint64_t unheard = peers_.lacking() & ~others();
  if (unheard != 0 || is_whole()) return unheard;
  const std::uint64_t users = done(Part::copy_in) < steps()
                                  ? line().users(HostLine::Area::inputs, place(done(Part::copy_in)))
                                  : 0;
  return awaited() | (users & ~(std::uint64_t{1} << self_));
}

/// A call of one step that takes data of all ranks waits for one thing.
std::optional<hosts::Wish> HostExchange::wish() const {
  const bool of_all = (sources_ | std::uint64_t{1} << self_) == first_ranks(local_);
  if (steps() != 1 || !of_all || done(Part::copy_in) == 0 || !has_turn(Part::copy_out)) {
    return std::nullopt;
  }
  return hosts::Wish{line().index(), Part::copy_in, position(number(), 1)};
}

std::uint64_t HostExchange::elements_from(std::uint32_t rank, std::uint32_t steps) const {
  std::uint64_t elements = 0;
  for (std::uint32_t slice = 0; slice < plan_.slices() && (sources_ >> rank & 1) != 0; ++slice) {
    elements += plan_.reached(plan_.target(rank, self_, slice), steps);
  }
  return elements;
}

std::array<std::uint64_t, 2> HostExchange::due_from(std::uint32_t rank) const {
  return {elements_from(rank, steps()), 0};
}

std::array<std::uint64_t, 2> HostExchange::taken_from(std::uint32_t rank) const {
  return {elements_from(rank, done(Part::copy_out)), 0};
}

}  // namespace tarpon
