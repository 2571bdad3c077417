// Shows from outside what a communicator does: the flight recorder's dumps and the status socket.
//
// A thread of its own sleeps until a request comes or something goes wrong. It takes no lock that
// the driver of the communicator takes, so that it answers while operations are stuck, whichever
// thread holds a lock.
//
// Dumps (collectives/flight/file.h) go to `directory`/JOB.RANK.flight, one file for each rank and
// job, which each dump replaces as a whole. JOB is the job's public id. Without a directory there
// are no dumps: a file for each failure is litter where the owner of the machine did not ask for
// it, and the ring can be read through the socket as well.
//
// The socket is a UNIX stream socket, named @tarpon.UID.JOB.RANK in the abstract name space of the
// process's network namespace (JOB as 8 hex digits). It answers processes of the same user and
// root: "status\n" with one line of JSON, "flight\n" with a dump. `tarpon status` and `tarpon
// flight` are the clients.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "collectives/flight_options.h"
#include "transport/recorder.h"
#include "transport/snapshot.h"
#include "xdp/base/result.h"

namespace tarpon {

struct FlightIdentity {
  std::uint32_t public_id = 0;  // of the job: the cookie stays out of names, dumps and answers
  Rank rank = 0;
  std::uint16_t world_size = 1;
  std::uint32_t slot_bytes = 0;
};

/// What a rank is doing.
struct FlightSnapshot {
  Time taken{};
  std::uint32_t outstanding = 0;  // calls that are not done
  EndpointSnapshot endpoint;
};

class Flight {
 public:
  /// Makes the directory, and checks that this process may make files in it. Errors: io,
  /// permission, invalid_argument.
  static Result<void> check(const FlightOptions& options);

  /// Starts watching. It does without a part that cannot be set up (the socket's name is taken, no
  /// thread can be started): a job does not fail for it.
  Flight(const FlightOptions& options, const FlightIdentity& identity);

  /// Dumps once more if something went wrong since the last dump. REQUIRES: no thread writes to the
  /// recorder any more.
  ~Flight();
  Flight(const Flight&) = delete;
  Flight& operator=(const Flight&) = delete;

  /// For the endpoint and the engine; lives as long as this.
  Recorder& recorder();

  /// Sets what the socket answers from now on. One thread at a time; costs a few hundred
  /// nanoseconds.
  void publish(const FlightSnapshot& snapshot);

  /// Whether the driver should publish now: when it is about to sleep, and now and then while it is
  /// busy. One thread at a time.
  bool wants_snapshot(bool busy);

  /// Requests a dump, which follows soon, at most one a second. No effect without a directory. Any
  /// thread.
  void request();

  /// Requests a dump, which follows soon, if something went wrong since the last call. Costs a
  /// comparison otherwise. Any thread.
  void look();

 private:
  class Watch;
  std::unique_ptr<Watch> watch_;
};

/// "@tarpon.UID.JOB.RANK" without the "@": the name of a rank's socket.
std::string status_socket_name(std::uint32_t user, std::uint32_t public_id, Rank rank);

/// Returns the line of JSON that answers "status": `snapshot` as of `now`, and from `recorder` how
/// the last call ended.
std::string status_line(const FlightIdentity& identity, const FlightSnapshot& snapshot,
                        const Recorder& recorder, Time now);

}  // namespace tarpon
