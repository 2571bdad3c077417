// The answer of a status socket as a value.
//
// The answer comes from the owner of the socket, who may be a stranger if root asks. parse_status()
// is a pure function that accepts any bytes; what it returns is bounded and safe to print.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "xdp/base/result.h"

namespace tarpon {

/// All strings are printable ASCII of at most 80 characters, all ranks below 64, all times finite.
struct StatusReply {
  struct Operation {
    std::uint32_t tag = 0;
    std::uint32_t number = 0;
    std::string stage;
    double age_ms = 0;
    std::vector<std::uint32_t> waiting_for;  // ranks whose data it lacks
    std::vector<std::uint32_t> silent;       // ranks that sent nothing in it
    std::optional<double> deadline_in_ms;
  };
  struct Ended {
    std::uint32_t tag = 0;
    std::uint32_t number = 0;
    std::string status;
    std::vector<std::uint32_t> named;
  };
  struct Peer {
    std::uint32_t rank = 0;
    std::optional<double> last_heard_ms;  // nothing: never
  };
  using Counters = std::vector<std::pair<std::string, std::uint64_t>>;

  std::string job;  // public id, 8 hex digits
  std::uint32_t rank = 0;
  std::uint32_t world_size = 0;
  std::uint32_t pid = 0;
  double snapshot_age_ms = 0;
  std::uint32_t outstanding = 0;
  std::uint32_t open = 0;
  std::vector<Operation> operations;  // at most 64, oldest first
  std::optional<Ended> last_end;
  std::vector<Peer> peers;
  Counters counters;
  Counters dropped;
  std::uint64_t events = 0;
};

/// The longest answer that is read; a real one has about 10 KiB.
inline constexpr std::size_t kLongestStatus = 64 << 10;

/// Errors: invalid_argument, one line without any text of the answer.
Result<StatusReply> parse_status(std::string_view answer);

/// The object that parse_status() reads.
nlohmann::json to_json(const StatusReply& reply);

}  // namespace tarpon
