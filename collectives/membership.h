// Who is in the job still: deaths, silence, evictions, aborts, verdicts, and the way to the next
// communicator, over the control mesh.
//
// A rank that does not answer for 300 ms is *suspect* until it is heard again: stopped, or cut off.
// Only who is lacked somewhere is asked, and a rank answers from the mesh's thread, whatever its
// callers do: who merely computes is not suspect.
//
// A rank that holds the others back is *evicted*: to their operations it is dead, and none of its
// reports counts. Its connections stay, for rejoin().
//
// Thread-safe. Handlers run on the mesh's thread with no lock of this class held.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "collectives/agreement.h"
#include "collectives/epochs.h"
#include "transport/port.h"
#include "transport/time.h"
#include "xdp/result.h"

namespace tarpon {

namespace mesh {
class Mesh;
}

/// What a new communicator is made for.
enum class Regroup : std::uint8_t {
  shrink,  // of the ranks that are neither dead nor evicted
  rejoin,  // of all that are not dead
};

/// Whom the next communicator consists of, and where its ranks meet.
struct ShrinkPlan {
  std::uint64_t members = 0;  // bit r: old rank r
  std::string address;        // "tcp://HOST:PORT", where the lowest of them listens
};

class Membership {
 public:
  struct Handlers {
    std::function<void(Rank, const std::string& evidence)> dead;
    std::function<void(Rank, const std::string& reason)> aborted;
    std::function<void(Rank, bool suspect)> suspect;
    /// `rank` may be the own one.
    std::function<void(Rank, const std::string& reason)> evicted;
    /// How far this rank's calls have come, by tag.
    std::function<std::vector<EpochRecord::Start>()> next_numbers;
    std::function<void(const EpochRecord&)> epoch_decided;
  };

  /// `mesh` is null in a job of one. `epochs`: whether the ranks agree on new ones, by their loss.
  Membership(Rank rank, std::uint32_t world_size, std::unique_ptr<mesh::Mesh> mesh,
             const std::vector<LossBudget>& budgets, bool epochs);
  /// As stop().
  ~Membership();

  void start(Handlers handlers);
  void say_goodbye();
  /// Goodbye; no handler runs any more.
  void stop();

  /// Asks those of `ranks` (bit r: rank r) for a sign of life. Never blocks.
  void ask(std::uint64_t ranks);

  /// This rank's calls are held back by `ranks` (bit r: rank r), beyond what it may retain. Never
  /// blocks; what comes of it is told by the handler.
  void wish_eviction(std::uint64_t ranks);

  /// What bounded calls of this rank lacked, as shares. Never blocks.
  void note_losses(const std::vector<double>& shares);

  /// Ranks that wait in rejoin() for the others, also by the verdicts so far: bit r: rank r.
  std::uint64_t rejoin_wanted() const;

  /// This rank's agree() halts, now and later; `peers_too`: the other ranks' as well.
  void abort(const std::string& reason, bool peers_too);

  /// Blocks until the verdict on `step`, at most `deadline`; halts then, and at once on an evicted
  /// rank and after an abort.
  StepVerdict agree(std::uint64_t step, const LossReport& report, Duration deadline);

  /// Collective among the ranks that `what` is for; blocks until `deadline` at most. The lowest of
  /// them waits for the others and calls `listen`, which returns the plan's address. Errors:
  /// timeout, naming the ranks that did not come; unavailable: an evicted rank shrinks; those of
  /// `listen`.
  Result<ShrinkPlan> plan(Regroup what, const std::function<Result<std::string>()>& listen,
                          Time deadline);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tarpon
