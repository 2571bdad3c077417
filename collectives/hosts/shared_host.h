// The memory that the ranks of a job on this host share, and the bells between them. A rank that is
// alone on its host has memory of its own.
//
// The lowest of these ranks makes the memory, a sealed memfd, so that nobody can shorten it, and no
// file system is needed. It hands the memory over by an abstract UNIX socket, its door, together
// with the names of all bells. The memory belongs to no file: the kernel frees it when the last
// process that has it is gone, however that process ended.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "collectives/hosts/host_group.h"
#include "transport/port.h"
#include "transport/rank.h"
#include "transport/time.h"
#include "xdp/base/file_descriptor.h"
#include "xdp/base/result.h"

namespace tarpon::hosts {

inline constexpr std::size_t kMostLocalRanks = 64;
using BellNames = std::array<BellName, kMostLocalRanks>;  // by local rank

/// Where a rank hands memory over: a socket that listens.
struct Door {
  FileDescriptor socket;
  std::string name;
};

/// Opens a door. Empty `name`: a random one. Errors: unavailable: this process may not have
/// abstract UNIX sockets, or another one has the name.
Result<Door> open_door(const std::string& name = {});

class SharedHost {
 public:
  struct Options {
    HostLayout layout;  // of the communicator
    Rank self = 0;
    std::uint32_t job = 0;         // cookie: a process without it gets nothing
    std::string lowest_door = {};  // name of the door of the lowest rank
    /// Of this rank; outlives the SharedHost. Null, or without a bell: no rank shares.
    Port* port = nullptr;
    /// Whether another rank has failed meanwhile: no rank waits any longer. Asked every 50 ms.
    std::function<bool()> is_broken = nullptr;
  };

  /// All ranks of the host call it. Takes no longer than until `deadline`. Errors, on each rank
  /// with a reason of its own: unavailable: no memory, another user, a rank that has none or does
  /// not come.
  static Result<std::unique_ptr<SharedHost>> share(Door door, const Options& options,
                                                   Time deadline);
  ~SharedHost();
  SharedHost(const SharedHost&) = delete;
  SharedHost& operator=(const SharedHost&) = delete;

  const HostGroup& group() const { return group_; }

 private:
  class Ringer;
  SharedHost(const Options& options, const HostShape& shape, std::byte* base,
             const BellNames& bells);

  std::byte* const base_;
  const std::uint64_t bytes_;
  const std::unique_ptr<Bells> bells_;
  const HostGroup group_;
};

}  // namespace tarpon::hosts
