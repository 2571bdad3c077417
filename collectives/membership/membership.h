// Membership of a job: facts about ranks, aborts, verdicts, and the way to the next communicator,
// over the control mesh.
//
// The membership of a job has one thread, which reads the mesh and sleeps in epoll while nothing
// arrives. It answers the other ranks regardless of what this rank's callers do, and calls the
// handlers, one at a time, with no lock of this class held. Communicators that are split from a job
// have memberships of their own (a line of the mesh each) and share that thread. All functions may
// be called from any thread, and from handlers unless said otherwise.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "collectives/membership/agreement.h"
#include "collectives/membership/epoch_history.h"
#include "collectives/membership/facts.h"
#include "transport/port.h"
#include "transport/time.h"
#include "xdp/base/result.h"

namespace tarpon {

namespace mesh {
class SocketNetwork;
class Hub;
struct Part;
}  // namespace mesh

/// Which ranks form the next communicator.
enum class Regroup : std::uint8_t {
  shrink,  // the live ranks
  rejoin,  // the live ranks, the evicted ones, and dead ones that come back
};

/// The members of the next communicator, and where they meet. Ranks are those of the old one.
struct ShrinkPlan {
  std::uint64_t members = 0;  // bit r: rank r
  Rank planner = 0;           // the member that made the plan
  std::string address = {};   // "tcp://HOST:PORT", where the planner listens
  /// The facts about the other ranks, as known to this rank: why they are not members.
  std::string left_out = {};

  /// The rank of `member` in the next communicator: 0 for the planner, whose address rank 0 must
  /// have; the others follow in the old order.
  Rank new_rank(Rank member) const;
};

struct MembershipOptions {
  Rank rank = 0;
  std::uint32_t world_size = 1;
  std::uint32_t job = 0;
  std::uint16_t communicator = 0;  // 0: that of the job; else it is split from it
  std::vector<LossBudget> budgets = {};
  bool coded = false;         // whether calls are coded at first
  bool codec_adapts = false;  // whether the ranks agree on that anew, by their loss
  /// A rank is dead after it was silent for this long while exact calls or shrink() needed it
  /// (votes.h).
  Duration dead_after = 5s;
};

class Membership {
 public:
  struct Handlers {
    /// A row has risen; it may be this rank's own.
    std::function<void(const Fact&)> learned;
    std::function<void(Rank, const std::string& reason)> aborted;
    /// Returns when the last packet of a rank arrived, of any communicator of the job; Time{}:
    /// never. Only the job's own membership asks.
    std::function<Time(Rank)> last_heard;
    /// Returns how far this rank's calls have come, by tag.
    std::function<std::vector<EpochRecord::Start>()> next_numbers;
    std::function<void(const EpochRecord&)> epoch_decided;
    /// The ranks that wait in rejoin(): bit r. They make no calls.
    std::function<void(std::uint64_t)> rejoining;
    /// Sends datagrams to ranks of this communicator. They may be lost.
    std::function<void(const std::vector<AgreementPacket>&)> send;
  };

  /// Of a job.
  Membership(const MembershipOptions& options, std::unique_ptr<mesh::SocketNetwork> network);
  /// That of a communicator which is split from this job, whose ranks `members` are its ranks. Null
  /// if the job had a communicator of this number before. After stop() of the job no news comes,
  /// and functions that wait return at once. REQUIRES: this is that of a job, and
  /// options.communicator > 0.
  std::unique_ptr<Membership> split(const MembershipOptions& options,
                                    std::vector<Rank> members) const;
  /// Calls stop().
  ~Membership();

  /// Blocks until all ranks are connected, or have opened this communicator too, at most until
  /// `deadline`. That of a job starts the thread, and ends early when this process lacks a file
  /// descriptor or the thread (io), or when `is_over` returns true (unavailable); it asks that
  /// every 20 ms. Handlers do not run before start(). Errors: timeout and unavailable, naming the
  /// ranks that are missing, and why; mismatch: another rank opened this communicator with other
  /// members.
  Result<void> open(Time deadline, const std::function<bool()>& is_over = nullptr);
  void start(Handlers handlers);
  /// No handler runs afterwards. That of a job ends the thread and the connections; the others then
  /// take this rank for dead, unless it left. Must not be called from a handler.
  void stop();

  /// Announces that this rank makes no further call (Communicator::close()). `next_numbers`: the
  /// next number of each tag that not every rank has passed. Blocks until all live ranks have
  /// passed them or left too. Errors: timeout, naming the ranks that have not.
  Result<void> leave(std::vector<NextNumber> next_numbers, Time deadline);
  /// Leaves without next numbers, and without waiting.
  void leave_at_once();
  /// Tells `ranks` (bit r: rank r), which have left, that their operations are over here. Never
  /// blocks.
  void passed(std::uint64_t ranks);

  /// `silent`: ranks that are silent on the data path now; agree() does not wait for them.
  /// `needed`: those of them that exact calls need now. Bit r: rank r. Never blocks.
  void set_silent(std::uint64_t silent, std::uint64_t needed);
  /// Votes against `ranks`, which hold back this rank's bounded calls beyond what it may retain.
  /// Never blocks.
  void wish_eviction(std::uint64_t ranks);
  /// Takes the measurements of bounded calls of this rank that have ended. Never blocks.
  void note_calls(const std::vector<CallEvidence>& calls);

  /// Other ranks that wait in rejoin(), by their own messages or by verdicts. Bit r: rank r.
  std::uint64_t rejoin_wanted() const;

  /// Makes this rank's agree() halt, now and later. `peers_too`: the other ranks' agree() as well,
  /// if this rank is live.
  void abort(const std::string& reason, bool peers_too);

  /// Takes datagrams that have come from ranks of this communicator (Handlers::send). Never blocks.
  void receive(const std::vector<AgreementPacket>& packets);

  /// Blocks until the verdict on `step`, for at most `deadline`. Returns a halt after that, and at
  /// once on an excluded rank and after an abort.
  StepVerdict agree(std::uint64_t step, const LossReport& report, Duration deadline);

  /// Agrees on a plan with the ranks that `what` names, all of which must call it. Blocks until
  /// `deadline` at most. The planner (shrink.h) waits for the others and calls `listen`, which
  /// returns the plan's address.
  /// Errors: timeout, naming the ranks that did not come; unavailable: an excluded rank shrinks;
  /// those of `listen`.
  Result<ShrinkPlan> plan(Regroup what, const std::function<Result<std::string>()>& listen,
                          Time deadline);

 private:
  Membership(std::shared_ptr<mesh::Hub> hub, std::unique_ptr<mesh::Part> part);
  Result<void> open_job(Time deadline, const std::function<bool()>& is_over);
  Result<void> open_line(Time deadline);
  std::string missing_text(std::uint64_t missing) const;

  const std::shared_ptr<mesh::Hub> hub_;
  const std::unique_ptr<mesh::Part> part_;
};

}  // namespace tarpon
