// Rank 0's side of the rendezvous: hears everybody, judges once, tells everybody the same.
//
// Foreign, garbled and silent clients cost nothing but a place among a bounded number of strangers.
// A contradiction between ranks is announced only when all ranks are here or a second has passed,
// so that those who come in between hear the same reason. One thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "collectives/rendezvous/connection.h"
#include "collectives/rendezvous/hello.h"
#include "transport/time.h"
#include "xdp/result.h"

namespace tarpon::rendezvous {

class Meeting {
 public:
  struct Plan {
    Hello own;               // what rank 0 says of itself
    std::string place;       // for messages: "tcp://10.0.0.1:29500"
    std::uint16_t port = 0;  // for messages
    Duration timeout{};      // for messages
    std::uint32_t job = 0;   // told to everybody
  };

  Meeting(Plan plan, FileDescriptor listener);

  /// Connections to ranks 1.. by rank ([0] is closed) once all are here. Errors, told to every rank
  /// that is here: mismatch, invalid_argument, timeout, io.
  Result<std::vector<Connection>> hold(Time deadline);

 private:
  struct Guest {
    Hello hello;
    Connection connection;
    Time answer_by{};  // it gives up a moment later
  };

  std::optional<Error> let_in();
  void hear_strangers();
  void greet(Connection connection, const Frame& frame);
  void forget_leavers();
  void sleep(Time until);
  Time verdict_due() const;

  std::optional<Error> contradiction() const;
  std::vector<std::uint32_t> missing() const;
  Error missing_error() const;
  Error announce(Error error);
  std::vector<Connection> seat();

  Plan plan_;
  FileDescriptor listener_;
  Time deadline_{};
  std::vector<Connection> strangers_;  // have yet to say hello, oldest first
  std::vector<Guest> guests_;          // kept sorted by rank
  std::uint64_t dropped_ = 0;          // strangers who spoke something else
};

}  // namespace tarpon::rendezvous
