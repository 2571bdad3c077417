// The control channel of a job: who takes part, and small messages beside the data path.
//
// Every rank connects to rank 0 over TCP (tcp://HOST:PORT, or an address that rank 0 leaves in
// file://PATH). All exchanges are collective: every rank calls the same one in the same order. One
// thread at a time uses a channel. Each call ends by its deadline and names the ranks it lacks.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "collectives/rendezvous_options.h"
#include "transport/job_key.h"
#include "transport/rank.h"
#include "transport/time.h"
#include "xdp/base/result.h"

namespace tarpon {

class ControlChannel {
 public:
  /// Joins the job and blocks until all ranks have, at most `options.timeout`. Errors: timeout
  /// (names the ranks that never arrived), mismatch (names the option), invalid_argument (rank out
  /// of range, rank taken twice, bad address), io (port in use); mismatch: one of two ranks has a
  /// secret, or another one.
  ///
  /// file://: the nonce in the file proves that a guest belongs to the job. A guest that
  /// contradicts rank 0 ends the join on all ranks, with the same error that names both values.
  /// tcp://: nothing tells a rank from a stranger. A guest that contradicts rank 0 is refused and
  /// the others go on waiting for the right one: the guest fails at once with an error that names
  /// its own value; rank 0 calls on_refusal and names the refusals in its timeout error.
  static Result<std::unique_ptr<ControlChannel>> join(const RendezvousOptions& options);

  virtual ~ControlChannel() = default;

  virtual Rank rank() const = 0;
  virtual std::uint32_t world_size() const = 0;

  /// Cookie of the job, chosen by rank 0, the same on all ranks. It stands in every packet, and
  /// packets without it are dropped: never show it in a name, a log, a report or an error.
  virtual std::uint32_t job() const = 0;

  /// Random id under which the job is shown, the same on all ranks, independent of the cookie.
  virtual std::uint32_t public_id() const = 0;

  /// From which the keys of packets come: alike on all ranks, and new in each job. Nullopt: the job
  /// has no secret. Never show it.
  virtual const std::optional<JobKey>& packet_key() const = 0;

  /// Local address (IPv4, dotted) that routes to rank 0; on rank 0 the address it listens on, which
  /// may be 0.0.0.0 when that was asked for.
  virtual std::string local_address() const = 0;

  /// Returns the `mine` of every rank, by rank, on every rank.
  virtual Result<std::vector<std::string>> all_gather(const std::string& mine, Time deadline) = 0;

  /// Returns the `mine` of every rank, by rank, on rank 0; an empty vector elsewhere. Ranks that do
  /// not answer by the deadline are listed in `missing` and leave an empty string: gathering
  /// results never fails for one lost rank.
  virtual Result<std::vector<std::string>> gather(const std::string& mine, Time deadline,
                                                  std::vector<Rank>& missing) = 0;

  /// Returns rank 0's `message` on every rank.
  virtual Result<std::string> broadcast(const std::string& message, Time deadline) = 0;

  /// Whether a rank has ended, or has failed to take part, so that the next all_gather() fails at
  /// once. For ranks that wait for something else between two exchanges. Never blocks; costs one
  /// system call for each connection.
  virtual bool is_broken() = 0;

  /// Takes the place of this rank's next all_gather(), and ends it on all ranks, at once, with
  /// `error`, which it returns. For a rank that cannot take part. Waits until `deadline` at most.
  virtual Error give_up(const Error& error, Time deadline) = 0;

  /// Closes the connections, for ranks that exchange nothing any more: rank 0 has one for each
  /// other rank. Later exchanges fail; the functions above that identify the rank and its job still
  /// work. Calls of the communicator need no control channel.
  virtual void close() = 0;
};

}  // namespace tarpon
