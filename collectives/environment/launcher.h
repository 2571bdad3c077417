// The place of this process in its job, and the place where the ranks meet.
//
// The rank comes from explicit flags or from the launcher's variables; the first complete set wins:
// torchrun, Open MPI, PMI, PMIx, Slurm. find_rendezvous() has the rule for the meeting point.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "collectives/environment/environment.h"
#include "collectives/rendezvous_options.h"
#include "transport/port.h"
#include "xdp/base/result.h"

namespace tarpon {

/// Settings that the user may give.
struct LaunchFlags {
  std::optional<std::int64_t> rank;
  std::optional<std::int64_t> world_size;
  std::optional<std::string> rendezvous;  // "tcp://HOST:PORT", "HOST:PORT" or "file://PATH"
  // For messages.
  std::string place_named_by = "--rank and --world-size";
  std::string rendezvous_named_by = "--rendezvous ";  // stands before its value
  /// For messages, the program's alternative to TARPON_RENDEZVOUS: " or give --rendezvous
  /// HOST:PORT".
  std::string rendezvous_remedy = {};
  std::optional<Duration> rendezvous_timeout = std::nullopt;
};

/// The place of a rank in its job.
struct JobPlace {
  Rank rank = 0;
  std::uint32_t world_size = 1;
  int local_size = -1;   // ranks on this host; -1: not known
  std::string launcher;  // "flags", "torchrun", "Open MPI", "PMI", "PMIx", "Slurm"
  /// Given, or from TARPON_RENDEZVOUS or MASTER_ADDR; nullopt: find_rendezvous() decides.
  std::optional<std::string> rendezvous = std::nullopt;
  std::string named_by = {};           // for messages: "RANK and WORLD_SIZE"
  std::string rendezvous_remedy = {};  // LaunchFlags::rendezvous_remedy
  /// How long the ranks wait for each other, if it was given; else TARPON_RENDEZVOUS_TIMEOUT, or
  /// usual_rendezvous_timeout().
  std::optional<Duration> rendezvous_timeout = std::nullopt;
  RendezvousObserver* observer = nullptr;  // RendezvousOptions::observer
  std::string job_id = {};  // alike on the ranks of a job, differs between jobs of a user; or empty

  bool all_local() const {
    return world_size == 1 ||
           (local_size > 0 && static_cast<std::uint32_t>(local_size) == world_size);
  }
};

/// How long to wait for all ranks, if nobody says: 30 s. If a launcher has started ranks on several
/// hosts, 5 minutes: hosts that fetch a container's image, or load their programs from a shared
/// file system, may start their ranks minutes apart, and nobody sits there who would start them
/// again. The ranks that wait say for whom, and an error of any rank that has come ends the wait of
/// all.
Duration usual_rendezvous_timeout(const JobPlace& place);

/// "HOST:PORT" as "tcp://HOST:PORT"; any other address as it is.
std::string with_scheme(const std::string& address);

/// Returns nullopt when neither flags nor a launcher say which rank this process is. Errors
/// (invalid_argument) name the variable or flag, its value and what is allowed; so they do in an
/// allocation of Slurm whose tasks srun has not started.
Result<std::optional<JobPlace>> find_job_place(const LaunchFlags& flags,
                                               const Environment& environment);

/// Says that Slurm has reserved tasks which srun has not started, and how to start them: this
/// process is a shell's, in an allocation of Slurm. Empty where that is not so.
std::string outside_srun(const Environment& environment);

/// Returns outside_srun(), else names the first launcher with only one of its two variables set:
/// "RANK=0 is set, WORLD_SIZE is not". Empty if there is none. For the message after
/// find_job_place() has found nothing.
std::string half_set_launcher(const Environment& environment);

/// Returns the address where the job meets: place.rendezvous. Without it: "" for a job of one rank;
/// when all ranks are local by the launcher's count, "file://DIR/rendezvous", where DIR is named by
/// user and job, lies below $XDG_RUNTIME_DIR or /tmp, and is made by make_rendezvous(); otherwise
/// an error that asks for an address.
Result<std::string> find_rendezvous(const JobPlace& place, const Environment& environment);

/// Returns the parent of the private directories of find_rendezvous(): $XDG_RUNTIME_DIR if that is
/// a directory which this user may write to, else /tmp.
std::string runtime_directory(const Environment& environment);

/// Makes the private directory of find_rendezvous(), with mode 0700, if it is missing, and checks
/// that it belongs to this user (error: permission). A job that connects a second time at the same
/// address needs it again. Does nothing for other addresses.
Result<void> make_rendezvous(const std::string& address);

/// Removes the private directory of find_rendezvous() unless it holds a file; called when rank 0
/// has met the others, or this rank has failed to. Does nothing for other addresses.
void remove_rendezvous(const std::string& address);

}  // namespace tarpon
