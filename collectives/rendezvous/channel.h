// What both ends of the star share: identity, numbering of exchanges, limits.
//
// The star: a TCP connection from every rank to rank 0. Exchanges are numbered alike on all ranks;
// what arrives for an earlier one is late and discarded. A connection that stops in the middle of a
// frame is closed, because it could not be understood any more.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "collectives/rendezvous/connection.h"
#include "collectives/rendezvous/control.h"

namespace tarpon::rendezvous {

/// One rank's place in the job.
struct Seat {
  Rank rank = 0;
  std::uint32_t world_size = 1;
  std::uint32_t job = 0;
  std::uint32_t public_id = 0;
  std::string local_address;
  std::optional<JobKey> packet_key = {};
};

class StarChannel : public ControlChannel {
 public:
  explicit StarChannel(Seat seat) : seat_(std::move(seat)) {}

  Rank rank() const override { return seat_.rank; }
  std::uint32_t world_size() const override { return seat_.world_size; }
  std::uint32_t job() const override { return seat_.job; }
  std::uint32_t public_id() const override { return seat_.public_id; }
  const std::optional<JobKey>& packet_key() const override { return seat_.packet_key; }
  std::string local_address() const override { return seat_.local_address; }

 protected:
  /// Counts the exchange, even when this rank then cannot take part in it.
  std::optional<Error> begin_exchange(const std::string& message) {
    ++sequence_;
    if (message.size() <= kLargestBody) return std::nullopt;
    return Error::make(Error::Code::invalid_argument,
                       fmt::format("control message of {} bytes exceeds the limit of {}",
                                   message.size(), kLargestBody));
  }
  std::uint32_t sequence() const { return sequence_; }

 private:
  Seat seat_;
  std::uint32_t sequence_ = 0;
};

/// For messages. failure and verdicts are no exchanges.
constexpr const char* name(FrameKind kind) {
  switch (kind) {
    case FrameKind::all_gather:
      return "all_gather";
    case FrameKind::gather:
      return "gather";
    case FrameKind::broadcast:
      return "broadcast";
    case FrameKind::hello:
    case FrameKind::verdict:
    case FrameKind::failure:
      break;
  }
  return "no exchange";
}

/// The end at rank 0. `peers`: connections by rank; [0] is closed, and the only one in a job of one
/// rank.
std::unique_ptr<ControlChannel> make_host_channel(Seat seat, std::vector<Connection> peers);

/// The end at every other rank. `host` leads to rank 0.
std::unique_ptr<ControlChannel> make_member_channel(Seat seat, Connection host);

}  // namespace tarpon::rendezvous
