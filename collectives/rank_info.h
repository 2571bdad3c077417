// What each rank tells the others about itself at rendezvous.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "transport/rank.h"
#include "xdp/base/result.h"

namespace tarpon {

struct RankInfo {
  std::string host;
  std::uint32_t user = 0;  // effective user id
  std::string network;     // names its network namespace: equal when two ranks share it
  std::string address;     // IPv4, of its UDP socket
  std::uint16_t port = 0;  // UDP
  std::vector<std::uint16_t> flow_ports = {};  // further UDP ports that it sends from
  std::uint16_t control_port = 0;              // TCP, where higher ranks connect
  std::string interface;                       // the one that carries its traffic
  std::string driver;
  std::uint32_t mtu = 0;            // bytes, of that interface
  std::string datapath;             // name of the port in use
  std::string datapath_reason;      // why that one
  std::uint32_t lanes = 1;          // threads that work for it
  std::uint32_t queues = 0;         // receive queues of its interface; with AF_XDP
  std::uint32_t max_payload = 0;    // bytes that its port carries behind a header
  std::uint64_t receive_bytes = 0;  // of its UDP socket's receive buffer
  bool checksums = false;           // its kernel verifies what arrives
  std::string door;                 // abstract UNIX socket for ranks of its host; empty: none
  std::string shares_nothing;       // why it shares no memory with ranks of its host; empty: it may
  std::string wants_network;        // the same if all ranks of the job are on that host
  std::string error;                // set when this rank cannot take part: why
  Error::Code error_code = Error::Code::unavailable;  // of that error

  /// Sets the error, with the limit of open files where that is the cause.
  void refuse(const Error& why);

  bool operator==(const RankInfo&) const = default;
};

/// Returns the ranks whose interfaces have the smallest and the largest MTU; of several, the lowest
/// rank. REQUIRES: not empty.
std::pair<Rank, Rank> extreme_mtus(const std::vector<RankInfo>& ranks);

/// A warning about a job without a secret at addresses that are neither loopback nor private: names
/// the first rank that has one. Empty: there is none, or all ranks have the same address. An empty
/// address is not known, and does not count.
std::string exposed_text(const std::vector<RankInfo>& ranks);

/// Encodes `info` with one line for each field, "name value"; values hold no newline.
/// decode_rank_info() inverts it and refuses a text with a field missing.
std::string encode(const RankInfo& info);
Result<RankInfo> decode_rank_info(const std::string& text);

}  // namespace tarpon
