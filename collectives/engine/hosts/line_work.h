// The work of one call on its line, part by part and step by step. Derived classes say what a step
// of a part is, and when it may run.
//
// Not thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <numeric>
#include <optional>
#include <span>

#include "collectives/engine/hosts/host_calls.h"
#include "collectives/engine/hosts/host_line.h"
#include "collectives/engine/hosts/host_peers.h"

namespace tarpon {

class LineWork {
 public:
  virtual ~LineWork() = default;
  LineWork(const LineWork&) = delete;
  LineWork& operator=(const LineWork&) = delete;

  /// How many steps are done with a part.
  std::uint32_t done(hosts::Part part) const { return done_[static_cast<std::size_t>(part)]; }
  /// Whether the output is whole.
  bool is_whole() const { return done(hosts::Part::copy_out) == steps_; }
  /// The parts of its work, in order.
  std::span<const hosts::Part> parts() const { return parts_; }
  /// The call on the line that has the turn which move() waits for; nullopt: it waits for none.
  std::optional<std::uint32_t> turn() const;

  /// Does at most one step of each part. Returns whether it did one.
  virtual bool move() = 0;
  virtual bool can_move() const = 0;
  /// What has to come true before can_move(); nullopt: one of several things.
  virtual std::optional<hosts::Wish> wish() const = 0;
  /// The local ranks whose work move() waits for. Bit r: local rank r.
  virtual std::uint64_t lacking() const = 0;

  /// Elements that are due from local rank `rank`, by stage of the report: contributions, results.
  virtual std::array<std::uint64_t, 2> due_from(std::uint32_t rank) const = 0;
  /// The part of due_from() that this rank has taken.
  virtual std::array<std::uint64_t, 2> taken_from(std::uint32_t rank) const = 0;

 protected:
  /// `peers` and `assignment`, those of the call, outlive it; `parts` too.
  LineWork(const hosts::HostPeers& peers, const hosts::Assignment& assignment,
           std::span<const hosts::Part> parts, std::uint32_t steps)
      : peers_(peers), assignment_(assignment), parts_(parts), steps_(steps) {}

  hosts::HostLine& line() const { return *assignment_.line; }
  std::uint32_t number() const { return assignment_.number; }
  std::uint32_t steps() const { return steps_; }
  std::uint32_t place(std::uint32_t step) const { return line().place(number(), step); }
  /// Whether a step of the part is left, and it is this call's turn.
  bool has_turn(hosts::Part part) const {
    return done(part) < steps_ && line().is_turn(part, number());
  }
  /// How many steps are done, of all parts.
  std::uint32_t steps_done() const { return std::accumulate(done_.begin(), done_.end(), 0u); }
  /// The next step of the part is done.
  void note_done(hosts::Part part);
  /// Passes over all steps of the part that are left, without telling.
  void skip(hosts::Part part) { done_[static_cast<std::size_t>(part)] = steps_; }

  const hosts::HostPeers& peers_;

 private:
  const hosts::Assignment& assignment_;
  const std::span<const hosts::Part> parts_;
  const std::uint32_t steps_;
  std::array<std::uint32_t, hosts::kParts> done_{};  // by Part
};

}  // namespace tarpon
