// The calls of one rank that go through the memory of its host: on which lines they work, and how
// ranks that sleep are woken.
//
// Common lines. The lowest local rank gives a line to each call when it begins the call, or ends it
// before. The line is free: all local ranks are through with the call that had it last. The other
// ranks look the binding up. One that has ended the call meanwhile passes it over, and keeps the
// reason until then. One that has not begun the call keeps the line until it does. Only one rank
// binds, so there is no race, and nothing to agree upon with other hosts.
//
// Sleep. A rank that finds nothing to do writes its sleep word, looks once more, and sleeps. A rank
// that has published something then reads the words of the others, and rings for those whose wish
// has come true. Both sides put a full fence between their write and their read, so one of them
// sees the other.
//
// Not thread-safe, but the memory is shared with other processes.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "collectives/engine/hosts/host_line.h"
#include "collectives/hosts/host_group.h"
#include "transport/time.h"

namespace tarpon::hosts {

/// A part of the work that all ranks of the host have to reach.
struct Wish {
  std::uint32_t line = 0;
  Part part = Part::copy_in;
  Position position = 0;
};

struct CallName {
  std::uint32_t tag = 0;
  std::uint32_t number = 0;  // of its tag
  bool operator==(const CallName&) const = default;
};

/// A running call, as HostCalls sees it.
class HostWork {
 public:
  virtual ~HostWork() = default;
  virtual CallName name() const = 0;
  /// The ranks for which it waits. Bit r: rank r of the communicator.
  virtual std::uint64_t lacks() const = 0;
  /// Whether it works on a line.
  virtual bool has_line() const = 0;
  /// Does the work that the memory allows.
  virtual void move(Time now) = 0;
  /// Whether move() does something.
  virtual bool can_move() const = 0;
  /// What has to come true before it does; nullopt: one of several things.
  virtual std::optional<Wish> wish() const = 0;
};

class HostCalls {
 public:
  /// From now on calls work in the memory of `group`, which outlives this object. Before, no call
  /// is open. REQUIRES: called once at most.
  void share(const HostGroup& group);
  bool shares() const { return group_ != nullptr; }
  /// REQUIRES: shares().
  const HostGroup& group() const { return *group_; }

  // -- lines -------------------------------------------------------------------------------------

  /// Assigns a line to a call that this rank begins. nullopt: the call has none yet, ask again. A
  /// rank asks for each call until it has a line, or passes the call over.
  std::optional<Assignment> assign(const CallName& call);
  /// Whether assign() would return one. Of calls that need a common line.
  bool can_assign(const CallName& call) const { return find_line(call).has_value(); }
  /// The ranks for which a call without a line waits: the lowest rank of the host, which has not
  /// begun the call. Where all lines are in use: those for which calls with a line wait. Bit r:
  /// rank r of the communicator.
  std::uint64_t lacked_for_a_line() const;

  /// This rank does not begin the call, or ends it before it has a line: tells the other ranks why.
  void pass_over(const CallName& call, const HostLine::Ending& ending);

  // -- work --------------------------------------------------------------------------------------

  /// A call is open as long as it has one. Both outlive it.
  class OpenCall {
   public:
    OpenCall(HostCalls& calls, HostWork& work) : calls_(calls), work_(work) {
      calls_.open_.push_back(&work_);
    }
    ~OpenCall() { std::erase(calls_.open_, &work_); }
    OpenCall(const OpenCall&) = delete;
    OpenCall& operator=(const OpenCall&) = delete;

   private:
    HostCalls& calls_;
    HostWork& work_;
  };

  /// HostWork::lacks() of a call; 0: it is not open.
  std::uint64_t lacked_by(const CallName& call) const;

  /// Something was published: wakes the ranks that wait for it. `all`: every rank that sleeps.
  void ring(bool all = false);
  /// Whether ring() was called since the last time.
  bool take_moved() { return std::exchange(moved_, false); }

  /// Tells of calls that this rank has ended and that have a line now. Call it in every round.
  /// `begun`: whether this rank has taken the number of a call: if it ran the call otherwise, it
  /// passes it over here.
  void tell_passed(const std::function<bool(const CallName&)>& begun);
  /// Does the work that the memory allows, in all calls. Call it before timers run, and before a
  /// rank counts as gone: data that is in the memory by then still counts.
  void move(Time now);

  /// How many calls are open.
  std::size_t open() const { return open_.size(); }
  /// Whether tell_passed() or a call can move on.
  bool can_move() const;

  /// The caller is about to sleep. Returns false if a call can move on: it must not. Else other
  /// ranks ring from now on, until wake().
  bool fall_asleep();
  void wake();

 private:
  /// Calls that this rank ended before they had a line. When there are more, the oldest is
  /// forgotten. The lowest rank then gives it no line, and ABORT alone tells the others. At another
  /// rank it passes as a call that this rank ran otherwise.
  static constexpr std::size_t kMostPassed = 64;
  struct Passed {
    CallName call;
    HostLine::Ending ending;
  };

  /// Whether this rank assigns the common lines.
  bool binds() const { return group_->self == 0; }
  bool waits() const { return !open_.empty() || !passed_.empty(); }
  bool tell(const Passed& one);
  std::uint32_t used_lines() const;
  std::optional<CallName> binding(std::uint32_t common) const;
  std::optional<std::uint32_t> find_line(const CallName& call) const;
  std::uint64_t lacking(std::uint32_t common) const;
  bool has_come_true(std::uint64_t word) const;

  const HostGroup* group_ = nullptr;
  std::vector<HostLine> lines_;
  std::array<std::uint32_t, kCommonLines> taken_{};  // by common line: calls of this rank there
  std::uint32_t used_ = 0;  // at the lowest rank: common lines that have been used
  std::deque<Passed> passed_;
  std::vector<HostWork*> open_;
  bool moved_ = false;
};

}  // namespace tarpon::hosts
