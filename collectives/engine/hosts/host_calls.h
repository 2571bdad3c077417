// The calls of one rank that go through the memory of its host: which of them work on which places,
// and how ranks that sleep are woken.
//
// Calls of a tag do each part of their work in their order, so that all ranks use the places alike:
// step k of call n works on place (n + k) % places. A rank writes to a place again when no rank
// needs the data of the earlier step there.
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
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "collectives/engine/call/signature.h"
#include "collectives/hosts/host_group.h"
#include "collectives/hosts/host_tags.h"
#include "transport/rank_mask.h"
#include "transport/time.h"

namespace tarpon::hosts {

/// A part of the work that all ranks of the host have to reach.
struct Wish {
  std::uint32_t tag = 0;  // its index
  Part part = Part::copy_in;
  Position position = 0;
};

/// The work of one tag at one rank.
class HostTag {
 public:
  HostTag(const HostGroup& group, std::uint32_t index);

  // -- the order of calls ------------------------------------------------------------------------

  /// Call `number` has begun here: tells the other ranks. Its `parts` wait for those of earlier
  /// calls. A rank that is at this call is done with all earlier ones that do not wait.
  void begin(std::uint32_t number, const SignatureBytes& signature, std::span<const Part> parts);
  /// Whether all earlier calls are done with `part`.
  bool is_turn(Part part, std::uint32_t number) const;
  /// Tells that this rank has done `steps` steps of `part`.
  void publish(Part part, std::uint32_t number, std::uint32_t steps);
  /// The call is done with `part`.
  void leave(Part part, std::uint32_t number);
  /// Why a call ends without a result.
  struct Ending {
    CallState state = CallState::given_up;
    std::uint32_t reason = 0;  // of given_up: tarpon_abort_reason
    std::uint64_t blamed = 0;  // of given_up: bit r: rank r of the communicator
  };
  /// The call ends without a result: tells the other ranks, and leaves all parts.
  void end(std::uint32_t number, const Ending& ending);
  /// This rank does not begin call `number`, which takes its number all the same.
  void pass_over(std::uint32_t number, const Ending& ending);

  // -- the other ranks ---------------------------------------------------------------------------

  struct Told {
    CallState state = CallState::none;
    SignatureBytes signature{};
    std::uint32_t reason = 0;
    std::uint64_t blamed = 0;
  };
  /// What local rank `rank` says about call `number`. A rank that has gone on so far that it no
  /// longer says so has given the call up.
  Told told(std::uint32_t rank, std::uint32_t number) const;

  /// Whether all ranks of the host, this one included, have reached `position`.
  bool all_have_reached(Part part, Position position) const { return lacking(part, position) == 0; }
  /// The local ranks that have not. Bit r: local rank r.
  std::uint64_t lacking(Part part, Position position) const {
    return group_.memory.lacking(index_, part, position);
  }

  // -- places ------------------------------------------------------------------------------------

  std::uint32_t place(std::uint32_t number, std::uint32_t step) const {
    return (number + step) % group_.memory.shape().places;
  }
  /// What a place has.
  enum class Area : std::uint8_t { inputs, result };
  /// Whether no rank needs the data of the last step there.
  bool is_free(Area area, std::uint32_t place) const;
  /// The area holds step `step` of call `number` from now on, until all ranks have done that step
  /// of `part`.
  void use(Area area, std::uint32_t place, Part part, std::uint32_t number, std::uint32_t step);

  std::byte* input(std::uint32_t place, std::uint32_t rank) const {
    return group_.memory.input(index_, place, rank);
  }
  std::byte* result(std::uint32_t place) const { return group_.memory.result(index_, place); }

  std::uint32_t index() const { return index_; }

 private:
  void tell(std::uint32_t number, const Ending& ending);
  void reach(std::uint32_t number);
  Board& own() const { return group_.memory.board(index_, group_.self); }

  const HostGroup& group_;
  const std::uint32_t index_;
  std::array<std::vector<std::uint32_t>, kParts> waiting_;  // numbers of open calls, in order
  std::uint32_t next_number_ = 0;                           // after the latest call that began
  struct Use {
    Part part;
    Position position;  // to reach with that part
  };
  std::array<std::vector<std::optional<Use>>, 2> used_;  // by Area and place
};

/// A running call, as HostCalls sees it.
class HostWork {
 public:
  virtual ~HostWork() = default;
  /// Does the work that the memory allows.
  virtual void move(Time now) = 0;
  /// Whether move() does something.
  virtual bool can_move() const = 0;
  /// What has to come true before it does; nullopt: one of several things.
  virtual std::optional<Wish> wish() const = 0;
};

class HostCalls {
 public:
  /// `group` outlives it.
  explicit HostCalls(const HostGroup& group);

  const HostGroup& group() const { return group_; }

  /// REQUIRES: `index` is one of host_tag().
  HostTag& tag(std::uint32_t index) { return tags_.at(index); }

  /// This rank does not begin call `number` of the tag: tells the other ranks why.
  void pass_over(std::uint32_t index, std::uint32_t number, const HostTag::Ending& ending);

  void add(HostWork& work) { open_.push_back(&work); }
  void remove(HostWork& work) { std::erase(open_, &work); }

  /// Something was published: wakes the ranks that wait for it. `all`: every rank that sleeps.
  void ring(bool all = false);
  /// Whether ring() was called since the last time.
  bool take_moved() { return std::exchange(moved_, false); }

  /// Does the work that the memory allows, in all calls. Call it before timers run, and before a
  /// rank counts as gone: data that is in the memory by then still counts.
  void move(Time now);

  /// How many calls are open.
  std::size_t open() const { return open_.size(); }
  /// Whether a call can move on.
  bool can_move() const;

  /// The caller is about to sleep. Returns false if a call can move on: it must not. Else other
  /// ranks ring from now on, until wake().
  bool fall_asleep();
  void wake();

 private:
  bool has_come_true(std::uint64_t word) const;

  const HostGroup& group_;
  std::vector<HostTag> tags_;  // by index
  std::vector<HostWork*> open_;
  bool moved_ = false;
};

}  // namespace tarpon::hosts
