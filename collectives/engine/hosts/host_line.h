// The work of one rank on one line of the memory of its host.
//
// Calls of a line do each part of their work in their order, so that all ranks use the places
// alike: step k of call n works on place (n + k) % places. A rank writes to a place again when no
// rank needs the data of the earlier step there.
//
// Not thread-safe, but the memory is shared with other processes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "collectives/engine/call/signature.h"
#include "collectives/hosts/host_group.h"
#include "transport/operation_news.h"
#include "transport/rank_mask.h"

namespace tarpon::hosts {

class HostLine {
 public:
  /// `most_open`: calls that are open at once. Beyond that, begin() allocates.
  HostLine(const HostGroup& group, std::uint32_t index, std::size_t most_open);

  // -- the order of calls ------------------------------------------------------------------------

  /// Call `number` has begun here: tells the other ranks. Its `parts` wait for those of earlier
  /// calls. A rank that is at this call is done with all earlier ones that do not wait.
  /// `marks`: of a bounded call.
  void begin(std::uint32_t number, const SignatureBytes& signature, std::span<const Part> parts,
             const Marks& marks = {});
  /// Tells further marks of a call that this rank has begun.
  void mark(std::uint32_t number, const Marks& marks);
  /// Whether all earlier calls are done with `part`.
  bool is_turn(Part part, std::uint32_t number) const;
  /// The call whose turn it is. REQUIRES: a call waits for its turn with `part`.
  std::uint32_t first(Part part) const { return waiting_[static_cast<std::size_t>(part)].front(); }
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

  // -- ranks that are left out -------------------------------------------------------------------

  /// Bounded calls up to `number` do without the local ranks `ranks`. Bit r: local rank r.
  void leave_out(std::uint64_t ranks, std::uint32_t number);
  /// The local ranks that a rank of the host has left out of call `number`. A rank asks after it
  /// has read data from the memory: if it is left out, others may have written over that data.
  std::uint64_t left_out(std::uint32_t number) const;

  // -- the other ranks ---------------------------------------------------------------------------

  struct Told {
    CallState state = CallState::none;
    bool overtaken = false;  // given_up, because the rank is so far ahead that it no longer says
    SignatureBytes signature{};
    std::uint32_t reason = 0;
    std::uint64_t blamed = 0;
  };
  /// What local rank `rank` says about call `number`. A rank that has gone on so far that it no
  /// longer says so has given the call up.
  Told told(std::uint32_t rank, std::uint32_t number) const;

  /// The marks that local rank `rank` has told of call `number`.
  Marks marks(std::uint32_t rank, std::uint32_t number) const;

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
  /// The local ranks that need the data of the last step there. Bit r: local rank r.
  std::uint64_t users(Area area, std::uint32_t place) const;
  bool is_free(Area area, std::uint32_t place) const { return users(area, place) == 0; }
  /// What holds an area from now on, until all ranks have done that step of `part`.
  struct Use {
    Part part = Part::copy_in;
    std::uint32_t number = 0;  // of the call
    std::uint32_t step = 0;
    bool bounded = false;  // ranks that are left out of the call do not count
  };
  void use(Area area, std::uint32_t place, const Use& use);

  std::byte* input(std::uint32_t place, std::uint32_t rank) const {
    return group_.memory.input(index_, place, rank);
  }
  std::byte* result(std::uint32_t place) const { return group_.memory.result(index_, place); }

  std::uint32_t index() const { return index_; }

 private:
  void tell(std::uint32_t number, const Ending& ending);
  void reach(std::uint32_t number);
  void forget_left_out(std::uint32_t number);
  Board& own() const { return group_.memory.board(index_, group_.self); }

  const HostGroup& group_;
  const std::uint32_t index_;
  std::array<std::vector<std::uint32_t>, kParts> waiting_;  // numbers of open calls, in order
  std::uint32_t next_number_ = 0;                           // after the latest call that began
  std::array<std::vector<std::optional<Use>>, 2> used_;     // by Area and place
};

/// Where a call does its work.
struct Assignment {
  HostLine* line = nullptr;  // null: it has none yet
  std::uint32_t number = 0;  // of the call on the line
};

}  // namespace tarpon::hosts
