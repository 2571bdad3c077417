// What a stranger on the network can say over TCP, to a rank's door of the control mesh and to the
// rendezvous of rank 0, and the connections over which it says so.
//
// A new speech is one line in hostile_guests.cc.
#pragma once

#include <netinet/in.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "transport/rank.h"
#include "transport/time.h"
#include "xdp/base/file_descriptor.h"
#include "xdp/base/result.h"

namespace tarpon::hostile {

/// What a guest sends before it waits in silence.
struct Speech {
  std::string_view name;
  std::string bytes;
};

/// At the mesh door of rank `at` of a job of two ranks. The stranger knows the cookie `job`.
std::vector<Speech> mesh_speeches(std::uint32_t job, Rank at);

/// At the rendezvous of a job of two ranks, by tcp://.
std::vector<Speech> rendezvous_speeches();

/// How many of rendezvous_speeches() rank 0 refuses with a line of its own.
inline constexpr std::size_t kRefusedSpeeches = 5;

/// The connections of one stranger. One thread.
class Guests {
 public:
  /// Connects to `door` from the calling thread's network namespace, and says `speech`. Errors:
  /// those of rendezvous::connect_to().
  Result<void> visit(const sockaddr_in& door, const Speech& speech, Time deadline);

  /// Waits until the other side has closed every connection, at most until `deadline`. Returns the
  /// names of the speeches whose connections it has not closed.
  std::vector<std::string_view> wait_closed(Time deadline);

  /// Names of the speeches that got an answer, as wait_closed() has found.
  const std::vector<std::string_view>& answered() const { return answered_; }

 private:
  struct Visit {
    std::string_view name;
    FileDescriptor socket;
    bool heard = false;
  };
  bool is_closed(Visit& visit);

  std::vector<Visit> visits_;
  std::vector<std::string_view> answered_;
};

}  // namespace tarpon::hostile
