#include "collectives/engine/hosts/host_exchange.h"

#include <cstring>

#include "transport/rank_mask.h"

namespace tarpon {
namespace {

using hosts::HostLine;
using hosts::Part;
using hosts::position;

constexpr std::array<Part, 2> kParts{Part::copy_in, Part::copy_out};

}  // namespace

HostExchange::HostExchange(const CallArguments& call, const hosts::HostGroup& group,
                           const hosts::HostPeers& peers, const hosts::Assignment& assignment)
    : HostExchange(call, group, peers, assignment,
                   ExchangePlan(*call.parts, static_cast<std::uint32_t>(group.ranks().size()),
                                element_bytes(call.type), group.memory.shape().place_bytes)) {}

HostExchange::HostExchange(const CallArguments& call, const hosts::HostGroup& group,
                           const hosts::HostPeers& peers, const hosts::Assignment& assignment,
                           const ExchangePlan& plan)
    : LineWork(peers, assignment, kParts, plan.steps()),
      call_(call),
      self_(group.self),
      local_(static_cast<std::uint32_t>(group.ranks().size())),
      width_(element_bytes(call.type)),
      plan_(plan),
      sums_({.type = call.type, .function = call.function, .custom = call.custom, .ranks = local_}),
      from_(local_) {
  const auto self = static_cast<Rank>(self_);
  for (Rank rank = 0; rank < local_; ++rank) {
    if (rank == self) continue;
    if (plan_.passes(rank, self)) sources_ |= bit(rank);
    if (plan_.passes(self, rank)) receivers_ |= bit(rank);
  }
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
  return has_turn(Part::copy_in) &&
         line().is_free(HostLine::Area::inputs, place(done(Part::copy_in)));
}

void HostExchange::copy_in() {
  const std::uint32_t step = done(Part::copy_in);
  const auto self = static_cast<Rank>(self_);
  std::byte* const place = line().input(this->place(step), self_);
  const std::byte* const input = call_.bucket_input(self);
  line().use(HostLine::Area::inputs, this->place(step),
             {.part = Part::copy_out, .number = number(), .step = step});
  std::uint64_t receivers = receivers_;
  if (plan_.shares()) receivers &= ~(receivers - 1);  // one of them stands for all
  for (const Rank to : ranks_of(receivers)) {
    const Range piece = plan_.piece(plan_.source(self, to), step);
    std::memcpy(place + plan_.offset(to), input + piece.first * width_, piece.count * width_);
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
  const auto self = static_cast<Rank>(self_);
  const std::uint32_t place = this->place(step);
  if (plan_.adds()) {
    add_up(step, place);
  } else {
    std::byte* const output = call_.bucket_output(self);
    for (const Rank from : ranks_of(sources_)) {
      const Range piece = plan_.piece(plan_.target(from, self), step);
      std::memcpy(output + piece.first * width_, line().input(place, from) + plan_.offset(self),
                  piece.count * width_);
    }
  }
  note_done(Part::copy_out);
}

/// Adds up what all ranks contribute to this rank's output.
void HostExchange::add_up(std::uint32_t step, std::uint32_t place) {
  if (sources_ == 0) return;
  const auto self = static_cast<Rank>(self_);
  const Range piece = plan_.piece(plan_.target(self, self), step);
  for (std::uint32_t rank = 0; rank < local_; ++rank) {
    from_[rank] = rank == self_ ? call_.bucket_input(self) + piece.first * width_
                                : line().input(place, rank) + plan_.offset(self);
  }
  sums_.add_up(call_.bucket_output(self) + piece.first * width_, from_, piece.count);
}

std::uint64_t HostExchange::lacking() const {
  const std::uint64_t unheard = peers_.lacking() & ~others();
  return unheard != 0 || is_whole() ? unheard : awaited();
}

/// A call of one step that takes data of all ranks waits for one thing.
std::optional<hosts::Wish> HostExchange::wish() const {
  const bool of_all = (sources_ | bit(static_cast<Rank>(self_))) == first_ranks(local_);
  if (steps() != 1 || !of_all || done(Part::copy_in) == 0 || !has_turn(Part::copy_out)) {
    return std::nullopt;
  }
  return hosts::Wish{line().index(), Part::copy_in, position(number(), 1)};
}

std::uint64_t HostExchange::elements_from(std::uint32_t rank, std::uint32_t steps) const {
  const auto from = static_cast<Rank>(rank), self = static_cast<Rank>(self_);
  if ((sources_ & bit(from)) == 0) return 0;
  return plan_.reached(plan_.target(from, self), steps);
}

std::array<std::uint64_t, 2> HostExchange::due_from(std::uint32_t rank) const {
  return {elements_from(rank, steps()), 0};
}

std::array<std::uint64_t, 2> HostExchange::taken_from(std::uint32_t rank) const {
  return {elements_from(rank, done(Part::copy_out)), 0};
}

}  // namespace tarpon
