#include "collectives/engine/hosts/host_steps.h"

#include <cstring>

namespace tarpon {
namespace {

using hosts::HostLine;
using hosts::Part;
using hosts::position;

constexpr std::array<Part, 2> kWhole{Part::copy_in, Part::copy_out};
constexpr std::array<Part, 3> kOneHost{Part::copy_in, Part::add_up, Part::copy_out};
constexpr std::array<Part, 4> kOverHosts{Part::copy_in, Part::add_up, Part::spread, Part::copy_out};

std::span<const Part> parts_of(const HostPlan& plan) {
  if (plan.whole()) return kWhole;
  return plan.hosts() == 1 ? std::span<const Part>(kOneHost) : kOverHosts;
}

/// Whether a host divides its sums for an average. Half precision would overflow if all hosts did
/// that together at the end.
bool divides_in_host(const AllreduceArguments& call) {
  return call.function == ReduceOp::avg && is_half(call.type);
}

Contributions::Shape sums_of(const AllreduceArguments& call, std::uint32_t hosts,
                             std::uint32_t world) {
  const bool sum = hosts > 1 && call.function == ReduceOp::avg && !divides_in_host(call);
  return {.type = call.type,
          .function = sum ? ReduceOp::sum : call.function,
          .custom = call.custom,
          .ranks = world};
}

}  // namespace

ReduceOp HostSteps::function_over_hosts(const AllreduceArguments& call) {
  return divides_in_host(call) ? ReduceOp::sum : call.function;
}

HostSteps::HostSteps(const AllreduceArguments& call, const hosts::HostGroup& group,
                     const hosts::HostPeers& peers, const hosts::Assignment& assignment,
                     std::uint32_t world)
    : call_(call),
      peers_(peers),
      assignment_(assignment),
      self_(group.self),
      local_(static_cast<std::uint32_t>(group.ranks().size())),
      plan_(call, group.layout, group.memory.shape()),
      parts_(parts_of(plan_)),
      width_(element_bytes(call.type)),
      sums_(sums_of(call, plan_.hosts(), world)),
      from_(local_),
      results_(plan_.hosts()) {}

std::uint64_t HostSteps::sums(std::uint32_t shard) const {
  const std::uint32_t steps = done(Part::add_up);
  return steps == 0 || self_ >= plan_.owners() ? 0 : plan_.reached(steps - 1, self_, shard);
}

bool HostSteps::move() {
  const auto before = done_;
  if (may_copy_in()) copy_in();
  if (may_add_up()) add_up();
  if (may_spread()) spread();
  if (may_copy_out()) copy_out();
  return done_ != before;
}

bool HostSteps::can_move() const {
  return may_copy_in() || may_add_up() || may_spread() || may_copy_out();
}

std::optional<std::uint32_t> HostSteps::turn() const {
  for (const Part part : parts_) {
    const bool waits =
        done(part) < plan_.steps() && !assignment_.line->is_turn(part, assignment_.number);
    if (waits) return assignment_.line->first(part);
  }
  return std::nullopt;
}

std::uint64_t HostSteps::lacking() const {
  std::uint64_t lacking = peers_.lacking();
  const std::uint32_t step = done(Part::copy_out);
  for (std::size_t i = parts_.size() - 1; i-- > 0 && lacking == 0;) {
    if (done(parts_[i]) <= step) continue;
    lacking = assignment_.line->lacking(parts_[i], position(assignment_.number, step + 1));
  }
  return lacking;
}

const std::byte* HostSteps::input_at(std::uint64_t element) const {
  return static_cast<const std::byte*>(call_.input) + element * width_;
}

std::byte* HostSteps::output_at(std::uint64_t element) const {
  return static_cast<std::byte*>(call_.output) + element * width_;
}

/// Where the contributions of all ranks to a piece lie: `offset` bytes into their places, this
/// rank's own in its input, from `element` on.
std::span<const std::byte* const> HostSteps::contributions(std::uint32_t place,
                                                           std::uint64_t offset,
                                                           std::uint64_t element) {
  for (std::uint32_t rank = 0; rank < local_; ++rank) {
    from_[rank] = rank == self_ ? input_at(element) : assignment_.line->input(place, rank) + offset;
  }
  return from_;
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

void HostSteps::note_done(Part part) {
  const std::uint32_t steps = ++done_[static_cast<std::size_t>(part)];
  if (steps == plan_.steps()) {
    assignment_.line->leave(part, assignment_.number);
  } else {
    assignment_.line->publish(part, assignment_.number, steps);
  }
}

/// Whether the next step of `part` is its turn, and all ranks of the host have done that step of
/// `before`.
bool HostSteps::may_follow(Part part, Part before) const {
  const std::uint32_t step = done(part);
  if (step >= done(before) || !assignment_.line->is_turn(part, assignment_.number)) return false;
  return assignment_.line->all_have_reached(before, position(assignment_.number, step + 1)) &&
         peers_.all_hold();
}

bool HostSteps::is_result_free(std::uint32_t step) const {
  return assignment_.line->is_free(HostLine::Area::result, place(step));
}

bool HostSteps::may_copy_in() const {
  const std::uint32_t step = done(Part::copy_in);
  return step < plan_.steps() && assignment_.line->is_turn(Part::copy_in, assignment_.number) &&
         assignment_.line->is_free(HostLine::Area::inputs, place(step));
}

void HostSteps::copy_in() {
  const std::uint32_t step = done(Part::copy_in);
  const std::uint32_t place = this->place(step);
  const Part until = plan_.whole() ? Part::copy_out : Part::add_up;
  assignment_.line->use(HostLine::Area::inputs, place, until, assignment_.number, step);
  for (std::uint32_t owner = 0; owner < plan_.owners(); ++owner) {
    // The slice that this rank owns is needed by no other rank.
    if (owner == self_ && !plan_.whole()) continue;
    for_pieces(step, owner, [&](std::uint32_t, Range piece, std::uint64_t offset) {
      std::memcpy(assignment_.line->input(place, self_) + offset, input_at(piece.first),
                  piece.count * width_);
    });
  }
  note_done(Part::copy_in);
}

bool HostSteps::may_add_up() const {
  if (plan_.whole() || !may_follow(Part::add_up, Part::copy_in)) return false;
  return plan_.hosts() > 1 || is_result_free(done(Part::add_up));
}

/// Adds up over this host: into the result of the place, or, if there are more hosts, into the
/// output, from where the sums go to them.
void HostSteps::add_up() {
  const std::uint32_t step = done(Part::add_up);
  const std::uint32_t place = this->place(step);
  const bool alone = plan_.hosts() == 1;
  if (alone)
    assignment_.line->use(HostLine::Area::result, place, Part::copy_out, assignment_.number, step);
  if (self_ < plan_.owners()) {
    for_pieces(step, self_, [&](std::uint32_t, Range piece, std::uint64_t offset) {
      std::byte* const to =
          alone ? assignment_.line->result(place) + offset : output_at(piece.first);
      sums_.add_up(to, contributions(place, offset, piece.first), piece.count);
    });
  }
  note_done(Part::add_up);
}

bool HostSteps::may_spread() const {
  const std::uint32_t step = done(Part::spread);
  if (plan_.hosts() == 1 || step >= done(Part::add_up)) return false;
  return assignment_.line->is_turn(Part::spread, assignment_.number) && is_result_free(step) &&
         has_results(step);
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
  assignment_.line->use(HostLine::Area::result, place, Part::copy_out, assignment_.number, step);
  if (self_ < plan_.owners() && local_ > 1) {
    for_pieces(step, self_, [&](std::uint32_t, Range piece, std::uint64_t offset) {
      std::memcpy(assignment_.line->result(place) + offset, output_at(piece.first),
                  piece.count * width_);
    });
  }
  note_done(Part::spread);
}

bool HostSteps::may_copy_out() const {
  return !is_whole() && may_follow(Part::copy_out, parts_[parts_.size() - 2]);
}

void HostSteps::copy_out() {
  const std::uint32_t step = done(Part::copy_out);
  const std::uint32_t place = this->place(step);
  for (std::uint32_t owner = 0; owner < plan_.owners(); ++owner) {
    if (owner == self_ && plan_.hosts() > 1) continue;  // it is there
    for_pieces(step, owner, [&](std::uint32_t, Range piece, std::uint64_t offset) {
      if (plan_.whole()) {
        sums_.add_up(output_at(piece.first), contributions(place, offset, piece.first),
                     piece.count);
      } else {
        std::memcpy(output_at(piece.first), assignment_.line->result(place) + offset,
                    piece.count * width_);
      }
    });
  }
  note_done(Part::copy_out);
}

/// A call of one step that has been copied in waits for one thing.
std::optional<hosts::Wish> HostSteps::wish() const {
  if (plan_.steps() != 1 || done(Part::copy_in) == 0 || is_whole()) return std::nullopt;
  std::size_t i = 1;  // the part to do next
  while (done(parts_[i]) == 1) ++i;
  const bool writes_result = !plan_.whole() && parts_[i] != Part::copy_out;
  if (!assignment_.line->is_turn(parts_[i], assignment_.number) ||
      (writes_result && !is_result_free(0))) {
    return std::nullopt;
  }
  // Packets end the wait for results. No rank of the host has to ring then.
  const Part part = parts_[i] == Part::spread ? Part::spread : parts_[i - 1];
  return hosts::Wish{assignment_.line->index(), part, position(assignment_.number, 1)};
}

}  // namespace tarpon
