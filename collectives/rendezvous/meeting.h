// Rank 0's side of the rendezvous: accepts connections, judges each hello, seats all ranks.
//
// Only a guest with the nonce of the address file can end or shorten a meeting from outside:
// 1. Foreign, garbled and silent clients ("strangers") take one of a bounded number of places. A
//    new connection displaces the stranger that has been silent longest, after a last check for its
//    hello: a rank whose hello has arrived is never displaced. A displaced rank tries again.
// 2. tcp://: a guest that contradicts rank 0 (version, world size, rank, options), or names a rank
//    that is taken, is told why (Difference::for_guest) and disconnected. The meeting goes on.
// 3. file://: the nonce proves that such a guest belongs to the job. The contradiction is announced
//    to all and ends the meeting when all ranks are here or a second has passed, so that ranks
//    that arrive meanwhile hear the same reason.
// 4. A guest proves that it knows the secret of the job, if there is one, before its hello counts.
//    One that cannot is refused as in 2.
// 5. A guest whose own timeout comes is told which ranks are missing and leaves; the others stay.
//
// One thread.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "collectives/rendezvous/connection.h"
#include "collectives/rendezvous/hello.h"
#include "collectives/rendezvous/waiting_notice.h"
#include "collectives/rendezvous_options.h"
#include "transport/time.h"
#include "xdp/base/private_descriptor.h"
#include "xdp/base/result.h"

namespace tarpon::rendezvous {

class Meeting {
 public:
  struct Plan {
    Hello own;                    // rank 0's; its nonce is 0 for tcp://
    std::string place;            // for messages: "tcp://10.0.0.1:29500"
    std::uint16_t port = 0;       // for messages
    bool loopback = false;        // for messages: no other host reaches `place`
    Duration timeout{};           // for messages
    std::uint32_t job = 0;        // cookie, told to the ranks that are seated
    std::uint32_t public_id = 0;  // as job
    RendezvousObserver* observer = nullptr;
    std::shared_ptr<const TlsContext> tls = {};  // null: the job has no secret
    std::optional<JobKey> packet_key = {};       // told with the cookie; with `tls` only
  };

  Meeting(Plan plan, FileDescriptor listener);

  /// Returns the connections to ranks 1.. by rank ([0] is closed) once all are here. Errors, told
  /// to every rank that is here: mismatch and invalid_argument (file:// only), timeout, io.
  Result<std::vector<Connection>> hold(Time deadline);

 private:
  struct Guest {
    Hello hello;
    Connection connection;
    Time dismiss_at{};  // a moment before the guest gives up
  };

  std::optional<Error> let_in();
  Error announce_shortage(const Error& error);
  void hear_strangers();
  void make_room();
  void greet(Connection connection, const Frame& frame);
  bool is_taken(std::uint32_t rank);
  void refuse(Connection connection, const Difference& why);
  void drop(const Connection& stranger);
  void note_refusal(const Connection& connection, const std::string& why);
  void forget_leavers();
  void dismiss_impatient(const std::optional<Error>& error);
  void sleep(Time until);
  Time next_dismissal() const;

  std::optional<Error> contradiction() const;
  std::vector<std::uint32_t> missing() const;
  bool is_missing_refused() const;
  std::string missing_text(const std::string& when) const;
  Error missing_error() const;
  Error announce(Error error);
  std::vector<Connection> seat();

  Plan plan_;
  PrivateDescriptor listener_;
  Time deadline_{};
  WaitingNotice notice_;
  std::vector<Connection> strangers_;  // have yet to say hello, oldest first
  std::vector<Guest> guests_;          // kept sorted by rank
  std::set<std::uint32_t> left_;       // ranks that were guests and have left
  std::vector<std::string> refusals_;  // one line each, bounded
  std::uint64_t refused_ = 0;          // guests
  std::uint64_t dropped_ = 0;          // strangers without a valid hello
};

}  // namespace tarpon::rendezvous
