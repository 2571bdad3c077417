// One rank of `tarpon xdp serve`: what it has proved, and what the helper holds for it.
//
// The helper keeps a descriptor of the rank's UDP socket, so that nobody else gets the port
// meanwhile, and of its AF_XDP sockets, so that the queues are surely the rank's until their
// entries are removed. One thread at a time.
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

#include "xdp/base/file_descriptor.h"
#include "xdp/helper_messages.h"
#include "xdp/port_proof.h"
#include "xdp/program.h"

namespace tarpon::xdp {

/// What the clients of a helper share. Outlives them.
struct ServedInterface {
  Program program;
  PortPlace place;
  bool copies = false;                   // the program is attached in skb mode
  std::uint64_t queues = 0;              // bit q: a client has queue q
  std::vector<tarpon_port_key> ports{};  // of the clients
};

class HelperClient {
 public:
  using Clock = std::chrono::steady_clock;
  /// A rank answers much faster. It registers its memory meanwhile.
  static constexpr std::chrono::seconds kStepTime{5};
  static constexpr std::uint32_t kMostRequests = 8192;  // of one connection

  /// `user`: that connected.
  HelperClient(FileDescriptor connection, uid_t user, ServedInterface& served);
  /// Removes its port and its sockets from the program, unless abandon() was called.
  ~HelperClient();
  HelperClient(const HelperClient&) = delete;
  HelperClient& operator=(const HelperClient&) = delete;

  int fd() const { return connection_.get(); }

  /// Answers one request if there is one. Returns whether the connection goes on.
  bool answer();

  /// When the connection ends unless a request comes; never once the port is open.
  Clock::time_point deadline() const { return open_ ? Clock::time_point::max() : deadline_; }
  /// Tells the rank why the connection ends.
  void refuse(const std::string& why);

  /// Leaves port and sockets in the program: the helper ends, and the rank goes on.
  void abandon() { abandoned_ = true; }

 private:
  struct Held {
    std::uint32_t queue = 0;
    FileDescriptor socket;
    bool bound = false;
  };
  struct Answer {
    HelperReply reply;
    FileDescriptor descriptor;
  };

  Result<Answer> take(const HelperRequest& request, FileDescriptor descriptor);
  Result<Answer> look(int socket) const;
  Result<Answer> claim(const HelperRequest& request, FileDescriptor socket);
  Result<Answer> make_socket(const HelperRequest& request);
  Result<Answer> bind_socket(const HelperRequest& request);
  Result<Answer> open_port();
  void drop_unbound();

  FileDescriptor connection_;
  const uid_t user_;
  ServedInterface& served_;
  FileDescriptor port_socket_;  // empty: nothing is claimed
  tarpon_port_key port_{};
  std::uint32_t job_ = 0;
  std::vector<Held> held_;  // at most one is not bound
  bool open_ = false;
  bool abandoned_ = false;
  std::uint32_t requests_ = 0;
  Clock::time_point deadline_;
};

}  // namespace tarpon::xdp
