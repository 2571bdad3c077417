// The parts of a live communicator, and how news of the mesh reaches its engine.
//
// Communicators that are split from another one share its Job.
#pragma once

#include <unistd.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "collectives/driver/call_keeper.h"
#include "collectives/driver/call_runner.h"
#include "collectives/driver/connect.h"
#include "collectives/driver/driven.h"
#include "collectives/driver/driver.h"
#include "collectives/driver/split_line.h"
#include "collectives/engine/engine.h"
#include "collectives/flight/flight.h"
#include "collectives/hosts/shared_host.h"
#include "collectives/membership/membership.h"
#include "transport/ports/port_lines.h"

namespace tarpon {

/// What the communicators of a job share: sockets, threads, and the job's settings.
class Job {
 public:
  Job(Connection& connection, std::unique_ptr<Flight> flight);

  /// The options as given to connect(), with the network that was found.
  const CommunicatorOptions& given() const { return given_; }
  const std::string& shrunk_slots() const { return shrunk_slots_; }
  const std::string& multicast() const { return multicast_; }
  ControlChannel& control() { return *control_; }
  PortLines& lines() { return lines_; }
  Driver& driver() { return driver_; }
  Flight& flight() { return *flight_; }

 private:
  const CommunicatorOptions given_;
  const std::unique_ptr<Flight> flight_;  // outlives the engine, which writes to its recorder
  std::unique_ptr<ControlChannel> control_;
  const std::string shrunk_slots_;
  const std::string multicast_;
  PortLines lines_;
  Driver driver_;
};

class CommunicatorState final : public CallKeeper {
 public:
  /// Owner of a state. A forked child has no threads of it, and its mutexes may be locked for ever:
  /// there the owner leaks it.
  static std::shared_ptr<CommunicatorState> own(CommunicatorState* made) {
    return {made, [](CommunicatorState* state) {
              if (!state->is_forked()) delete state;
            }};
  }

  /// Of a new job.
  CommunicatorState(Connection connection, std::unique_ptr<Flight> flight);
  /// Of a communicator that is split from `parent`, with its ranks `members`. The membership is not
  /// open yet. Null if the job had a communicator of this number before. REQUIRES: `parent` is that
  /// of a job. Any thread.
  static std::shared_ptr<CommunicatorState> split(CommunicatorState& parent,
                                                  std::uint16_t communicator,
                                                  const std::vector<Rank>& members);

  ~CommunicatorState() override { stop(); }

  /// Opens the membership of a communicator that is split, and shares the memory of its hosts where
  /// the job does. Errors: Membership::open(); unavailable: a rank is lost meanwhile.
  Result<void> open(Time deadline);

  /// Ends outstanding calls and tells the peers. That of a job ends its threads.
  void stop();

  /// Says goodbye, and returns when every live rank has passed this rank's operations or left.
  Result<void> leave(Time deadline);

  /// Makes stop() say goodbye, because the next communicator has been made: the peers then do not
  /// take the end of this one for a death.
  void leave_when_stopped() { regrouped_ = true; }

  /// Ends outstanding and later calls. `peers_too`: those of the other ranks too, over the mesh.
  void abort(const std::string& reason, bool peers_too);
  /// Whether a rank has aborted it, and the first that did. Any thread.
  bool is_aborted() const { return aborted_; }
  std::optional<Abort> aborted() const;
  /// Membership::leave_at_once().
  void leave_at_once() { membership_->leave_at_once(); }

  /// The call with the algorithm that is to run it, and what else follows from the job.
  CallArguments chosen(CallArguments arguments) const;

  /// Whether this process is a child, made by fork(), of the one that connected.
  bool is_forked() const { return ::getpid() != process_; }
  /// Error: unavailable, in such a child.
  Result<void> check_process() const override;

  void wait(const std::shared_ptr<PendingCall>& call) override { driver().wait(call); }

  bool is_split() const { return options_.endpoint.communicator != 0; }
  Job& job() { return *job_; }
  Driver& driver() { return job_->driver(); }
  Driven& driven() { return driven_; }
  Membership& membership() { return *membership_; }
  const std::vector<RankInfo>& ranks() const { return ranks_; }
  const EngineOptions& options() const { return options_; }
  /// Communicator::hosts().
  const std::string& hosts() const { return hosts_; }
  bool shares_hosts() const { return host_ != nullptr; }

 private:
  /// The offer of a communicator that is split, until its ranks have taken it.
  struct Sharing {
    Result<hosts::Door> door;  // of the lowest rank of a host
    hosts::SharedHost::Options options;
  };

  CommunicatorState(CommunicatorState& parent, const EngineOptions& options,
                    std::unique_ptr<Membership> membership, const std::vector<Rank>& members);
  void offer_memory(const CommunicatorState& parent);
  Result<void> share_memory(Time deadline);
  void start();
  void learn(const Fact& fact);
  void note_abort(Rank rank, const std::string& reason);

  const pid_t process_ = ::getpid();
  const std::shared_ptr<Job> job_;
  const std::vector<RankInfo> ranks_;
  const EngineOptions options_;
  std::string hosts_;
  std::unique_ptr<hosts::SharedHost> host_;  // outlives the engine
  std::optional<Sharing> sharing_;
  std::optional<SplitLine> split_line_;  // empty: the line is the job's own
  Engine engine_;
  const std::unique_ptr<Membership> membership_;
  Driven driven_;  // stop() ends it and the membership's handlers before anything is destroyed
  std::atomic<bool> regrouped_ = false;
  std::atomic<bool> aborted_ = false;
  mutable std::mutex abort_mutex_;
  std::optional<Abort> abort_;  // the first one
};

}  // namespace tarpon
