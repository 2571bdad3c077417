#include "collectives/engine/hosts/host_steps.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "transport/rank_mask.h"

namespace tarpon {
namespace {

using hosts::HostLine;
using hosts::Part;
using hosts::Position;
using hosts::position;

constexpr std::array<Part, 2> kWhole{Part::copy_in, Part::copy_out};
constexpr std::array<Part, 3> kOneHost{Part::copy_in, Part::add_up, Part::copy_out};
constexpr std::array<Part, 4> kOverHosts{Part::copy_in, Part::add_up, Part::spread, Part::copy_out};

std::span<const Part> parts_of(const HostPlan& plan, bool alone) {
  if (plan.whole()) return kWhole;
  return alone ? std::span<const Part>(kOneHost) : kOverHosts;
}

}  // namespace

HostSteps::HostSteps(const AllreduceArguments& call, const hosts::HostGroup& group,
                     const hosts::HostPeers& peers, const hosts::Assignment& assignment,
                     std::uint32_t world, std::uint32_t slot_bytes)
    : HostSteps(call, group, peers, assignment, world,
                HostPlan(call, group.layout, group.memory.shape(), slot_bytes), slot_bytes) {}

HostSteps::HostSteps(const AllreduceArguments& call, const hosts::HostGroup& group,
                     const hosts::HostPeers& peers, const hosts::Assignment& assignment,
                     std::uint32_t world, const HostPlan& plan, std::uint32_t slot_bytes)
    : LineWork(peers, assignment, parts_of(plan, plan.hosts() == 1 && slot_bytes == 0),
               plan.steps()),
      call_(call),
      group_(group),
      self_(group.self),
      local_(static_cast<std::uint32_t>(group.ranks().size())),
      bounded_(slot_bytes != 0),
      plan_(plan),
      alone_(plan_.hosts() == 1 && !bounded_),
      width_(element_bytes(call.type)),
      sums_(sums_of_host(call, alone_ || plan_.whole(), world)),
      from_(local_),
      results_(plan_.hosts()) {
  if (!bounded_) return;
  slots_.emplace(plan_, slot_bytes, width_, world);
  summed_.reserve(plan_.steps());
}

std::uint64_t HostSteps::sums(std::uint32_t shard) const {
  const std::uint32_t steps = done(Part::add_up);
  return steps == 0 || self_ >= plan_.owners() ? 0 : plan_.reached(steps - 1, self_, shard);
}

bool HostSteps::move() {
  const std::uint32_t before = steps_done();
  if (may_copy_in()) copy_in();
  if (may_add_up()) add_up();
  if (may_spread()) spread();
  if (may_copy_out()) copy_out();
  return steps_done() != before;
}

bool HostSteps::can_move() const {
  return may_copy_in() || may_add_up() || may_spread() || may_copy_out();
}

std::uint64_t HostSteps::lacking() const {
  if (bounded_) return blockers();
  std::uint64_t lacking = peers_.lacking();
  const std::uint32_t step = done(Part::copy_out);
  for (std::size_t i = parts().size() - 1; i-- > 0 && lacking == 0;) {
    if (done(parts()[i]) <= step) continue;
    lacking = line().lacking(parts()[i], position(number(), step + 1));
  }
  return lacking;
}

const std::byte* HostSteps::input_at(std::uint64_t element) const {
  return static_cast<const std::byte*>(call_.input) + element * width_;
}

std::byte* HostSteps::output_at(std::uint64_t element) const {
  return static_cast<std::byte*>(call_.output) + element * width_;
}

/// Where the contributions of the local ranks `among` to a piece lie: `offset` bytes into their
/// places, this rank's own in its input, from `element` on.
std::span<const std::byte* const> HostSteps::contributions(std::uint32_t place,
                                                           std::uint64_t offset,
                                                           std::uint64_t element,
                                                           std::uint64_t among) {
  std::size_t count = 0;
  for (; among != 0; among &= among - 1) {
    const auto rank = static_cast<std::uint32_t>(std::countr_zero(among));
    from_[count++] = rank == self_ ? input_at(element) : line().input(place, rank) + offset;
  }
  return std::span(from_).first(count);
}

/// Calls f(number of the shard, elements, offset in the place) for the pieces of a step that belong
/// to `owner`.
template <typename F>
void HostSteps::for_pieces(std::uint32_t step, std::uint32_t owner, F f) const {
  for (std::uint32_t shard = 0; shard < plan_.hosts(); ++shard) {
    const Range piece = plan_.piece(step, owner, shard);
    if (piece.count > 0) f(shard, piece, plan_.offset(owner, shard));
  }
}

/// Calls f(elements, offset in the place) for what this rank adds up in a step. A result of a
/// bounded call may come before: its owner had ended the stage. It stays.
template <typename F>
void HostSteps::for_sums(std::uint32_t step, F f) const {
  for_pieces(step, self_, [&](std::uint32_t shard, Range piece, std::uint64_t offset) {
    if (!slots_) return f(piece, offset);
    slots_->for_empty(step, self_, shard, [&](Range part) {
      f(Range{piece.first + part.first, part.count}, offset + part.first * width_);
    });
  });
}

/// Whether the next step of `part` is its turn, and all ranks of the host have done that step of
/// `before`.
bool HostSteps::may_follow(Part part, Part before) const {
  const std::uint32_t step = done(part);
  if (step >= done(before) || !line().is_turn(part, number())) return false;
  const std::uint64_t absent = this->absent();
  const Position wanted = position(number(), step + 1);
  return (line().lacking(before, wanted) & ~absent) == 0 && peers_.all_hold(absent);
}

void HostSteps::use(HostLine::Area area, Part until, std::uint32_t step) {
  line().use(area, place(step),
             {.part = until, .number = number(), .step = step, .bounded = bounded_});
}

bool HostSteps::is_result_free(std::uint32_t step) const {
  return line().is_free(HostLine::Area::result, place(step));
}

bool HostSteps::may_copy_in() const {
  const std::uint32_t step = done(Part::copy_in);
  return step < plan_.steps() && line().is_turn(Part::copy_in, number()) &&
         line().is_free(HostLine::Area::inputs, place(step));
}

void HostSteps::copy_in() {
  const std::uint32_t step = done(Part::copy_in);
  const std::uint32_t place = this->place(step);
  const Part until = plan_.whole() ? Part::copy_out : Part::add_up;
  use(HostLine::Area::inputs, until, step);
  for (std::uint32_t owner = 0; owner < plan_.owners(); ++owner) {
    // The slice that this rank owns is needed by no other rank.
    if (owner == self_ && !plan_.whole()) continue;
    for_pieces(step, owner, [&](std::uint32_t, Range piece, std::uint64_t offset) {
      std::memcpy(line().input(place, self_) + offset, input_at(piece.first), piece.count * width_);
    });
  }
  note_done(Part::copy_in);
}

bool HostSteps::may_add_up() const {
  if (plan_.whole() || !may_follow(Part::add_up, Part::copy_in)) return false;
  return !alone_ || is_result_free(done(Part::add_up));
}

/// Adds up over this host: into the result of the place, or, if there are more hosts, into the
/// output, from where the sums go to them.
void HostSteps::add_up() {
  const std::uint32_t step = done(Part::add_up);
  const std::uint32_t place = this->place(step);
  if (alone_) use(HostLine::Area::result, Part::copy_out, step);
  const std::uint64_t among = first_ranks(local_) & ~absent();
  if (self_ < plan_.owners()) {
    for_sums(step, [&](Range piece, std::uint64_t offset) {
      std::byte* const to = alone_ ? line().result(place) + offset : output_at(piece.first);
      sums_.add_up(to, contributions(place, offset, piece.first, among), piece.count);
    });
  }
  if (bounded_) {
    if (is_left_out()) return drop(step, self_);
    summed_.push_back(group_.ranks_of(among));
  }
  note_done(Part::add_up);
}

bool HostSteps::may_spread() const {
  const std::uint32_t step = done(Part::spread);
  if (alone_ || step >= done(Part::add_up)) return false;
  return line().is_turn(Part::spread, number()) && is_result_free(step) && has_results(step);
}

/// Whether the results of this rank's slice are there for a step.
bool HostSteps::has_results(std::uint32_t step) const {
  bool all = true;
  for (std::uint32_t shard = 0; shard < plan_.hosts() && self_ < plan_.owners(); ++shard) {
    all &= results_[shard] >= plan_.reached(step, self_, shard);
  }
  return all;
}

void HostSteps::spread() {
  const std::uint32_t step = done(Part::spread);
  const std::uint32_t place = this->place(step);
  use(HostLine::Area::result, Part::copy_out, step);
  if (self_ < plan_.owners() && local_ > 1) {
    for_pieces(step, self_, [&](std::uint32_t shard, Range piece, std::uint64_t offset) {
      std::memcpy(line().result(place) + offset, output_at(piece.first), piece.count * width_);
      if (slots_) slots_->spread(step, self_, shard, line().result(place));
    });
  }
  note_done(Part::spread);
}

bool HostSteps::may_copy_out() const {
  return !is_whole() && may_follow(Part::copy_out, parts()[parts().size() - 2]);
}

void HostSteps::copy_out() {
  const std::uint32_t step = done(Part::copy_out);
  const std::uint32_t place = this->place(step);
  const std::uint64_t absent = this->absent();
  for (std::uint32_t owner = 0; owner < plan_.owners(); ++owner) {
    if (owner == self_ && !alone_) continue;  // it is there
    if ((absent >> owner & 1) != 0) continue;
    for_pieces(step, owner, [&](std::uint32_t shard, Range piece, std::uint64_t offset) {
      if (plan_.whole()) {
        sums_.add_up(output_at(piece.first),
                     contributions(place, offset, piece.first, first_ranks(local_)), piece.count);
      } else if (bounded_) {
        slots_->copy(step, owner, shard, line().result(place), output_at(piece.first));
      } else {
        std::memcpy(output_at(piece.first), line().result(place) + offset, piece.count * width_);
      }
    });
  }
  if (bounded_ && is_left_out()) {
    for (std::uint32_t owner = 0; owner < plan_.owners(); ++owner) {
      if (owner != self_) drop(step, owner);
    }
    return;
  }
  note_done(Part::copy_out);
}

// -- bounded calls -------------------------------------------------------------------------------

std::uint64_t HostSteps::absent() const {
  if (!bounded_) return 0;
  const std::uint64_t left = line().left_out(number()) | peers_.ended();
  return left & ~(std::uint64_t{1} << self_);
}

bool HostSteps::is_left_out() const {
  return (line().left_out(number()) >> self_ & 1) != 0 || peers_.is_overtaken();
}

void HostSteps::leave_out(std::uint64_t ranks) {
  line().leave_out(ranks, number());
}

std::uint64_t HostSteps::blockers(bool sums) const {
  std::uint64_t ranks = peers_.lacking();
  std::uint64_t users = 0;  // ranks that have ended the call may still hold a place
  for (const Part part : parts()) {
    if (sums && part > Part::add_up) break;
    const std::uint32_t step = done(part);
    if (step == plan_.steps() || !line().is_turn(part, number())) continue;
    const Position next = position(number(), step + 1);
    switch (part) {
      case Part::copy_in:
        users |= line().users(HostLine::Area::inputs, place(step));
        break;
      case Part::add_up:
        if (step < done(Part::copy_in)) ranks |= line().lacking(Part::copy_in, next);
        break;
      case Part::spread:
        users |= line().users(HostLine::Area::result, place(step));
        break;
      case Part::copy_out:
        if (step < done(Part::spread)) ranks |= line().lacking(Part::spread, next);
        break;
    }
  }
  return ((ranks & ~absent()) | users) & ~(std::uint64_t{1} << self_);
}

void HostSteps::add_up_alone() {
  for (std::uint32_t step = done(Part::add_up); step < plan_.steps(); ++step) {
    summed_.push_back(bit(group_.ranks()[self_]));
    if (self_ >= plan_.owners()) continue;
    for_sums(step, [&](Range piece, std::uint64_t) {
      const std::byte* const own = input_at(piece.first);
      sums_.add_up(output_at(piece.first), {&own, 1}, piece.count);
    });
  }
  skip(Part::add_up);
}

/// Zeroes what this rank has written in a step: it was left out while it read, so others may have
/// written over its sources.
void HostSteps::drop(std::uint32_t step, std::uint32_t owner) {
  const auto zero = [&](Range piece, std::uint64_t) {
    std::memset(output_at(piece.first), 0, piece.count * width_);
  };
  if (owner == self_) return for_sums(step, zero);
  for_pieces(step, owner, [&](std::uint32_t shard, Range piece, std::uint64_t) {
    zero(piece, 0);
    slots_->clear(step, owner, shard);
  });
}

std::array<std::uint64_t, 2> HostSteps::due_from(std::uint32_t rank) const {
  if (plan_.whole()) return {plan_.elements(0, plan_.steps()), 0};
  return {plan_.elements(self_, plan_.steps()), plan_.elements(rank, plan_.steps())};
}

std::array<std::uint64_t, 2> HostSteps::taken_from(std::uint32_t rank) const {
  if (plan_.whole()) return {plan_.elements(0, done(Part::copy_out)), 0};
  if (!bounded_) {
    return {plan_.elements(self_, done(Part::add_up)), plan_.elements(rank, done(Part::copy_out))};
  }
  std::uint64_t contributed = 0;
  for (std::uint32_t step = 0; step < summed_.size(); ++step) {
    const bool has = (summed_[step] & bit(group_.ranks()[rank])) != 0;
    if (has) contributed += plan_.elements(self_, step + 1) - plan_.elements(self_, step);
  }
  return {contributed, rank < plan_.owners() ? slots_->elements(rank) : 0};
}

/// A call of one step that has been copied in waits for one thing.
std::optional<hosts::Wish> HostSteps::wish() const {
  if (bounded_ || plan_.steps() != 1 || done(Part::copy_in) == 0 || is_whole()) return std::nullopt;
  std::size_t i = 1;  // the part to do next
  while (done(parts()[i]) == 1) ++i;
  const bool writes_result = !plan_.whole() && parts()[i] != Part::copy_out;
  if (!line().is_turn(parts()[i], number()) || (writes_result && !is_result_free(0))) {
    return std::nullopt;
  }
  // Packets end the wait for results. No rank of the host has to ring then.
  const Part part = parts()[i] == Part::spread ? Part::spread : parts()[i - 1];
  return hosts::Wish{line().index(), part, position(number(), 1)};
}

}  // namespace tarpon
