// From options and environment to a connected communicator.
#pragma once

#include <memory>
#include <string>

#include "collectives/communicator.h"
#include "collectives/driver/connect.h"
#include "tools/cli/debug_log.h"
#include "tools/cli/interruption.h"
#include "tools/job/connect_cost.h"
#include "tools/job/options/job_options.h"
#include "tools/job/options/launch_place.h"
#include "xdp/base/result.h"

namespace tarpon {

/// One rank of a job, connected.
struct Session {
  LaunchPlace place;
  std::string interface_reason;
  DebugLog log;
  ConnectCost cost;    // of the communicator
  std::string flight;  // where this rank leaves recordings; may be empty
  std::unique_ptr<Communicator> communicator;
};

/// Converts the options to those of the library, with rendezvous and interface found by their
/// rules. `reason` (optional) is set to why this interface was chosen.
Result<CommunicatorOptions> session_options(const JobOptions& options, const LaunchPlace& place,
                                            const std::string& agreed,
                                            std::string* reason = nullptr);

/// connect_ranks() with the options of session_options(), for a command that examines the paths
/// itself: slots have the size that the interfaces allow.
Result<Connection> connect_session(const CommunicatorOptions& options, const LaunchPlace& place);

/// Finds rendezvous and interface by their rules and connects. `agreed` holds the command's own
/// options that all ranks must have alike, "name=value" lines.
Result<Session> open_session(const JobOptions& options, const LaunchPlace& place,
                             const std::string& agreed);

/// Until the ranks are connected, Ctrl-C makes this rank print a message before it ends, and rank 0
/// write `json`, without results. For local ranks their parent prints the message.
Interruption watch_connecting(const JobOptions& options, const LaunchPlace& place,
                              const std::string& json);

/// What carries the job, in words: "loopback", "network namespaces (veth)", "interface eth0".
std::string carrier(const JobOptions& options, const Session& session);

/// Runs `body` as this rank, or as each of --local-ranks in a process of its own, on loopback or on
/// the testbed. Returns the exit code; prints each error once. `foreign`: the body is a user's
/// program, whose exit code has no meaning to us and is printed.
int run_job(const JobOptions& options, const std::function<int(const LaunchPlace&)>& body,
            bool foreign = false);

}  // namespace tarpon
