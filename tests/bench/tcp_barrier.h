// Where the ranks of a benchmark's program meet: a TCP connection from each rank to rank 0.
//
// Throws std::runtime_error where a system call fails, a rank has left, or one is silent for 30 s.
// One thread at a time.
#pragma once

#include <netinet/in.h>

#include <cstddef>
#include <cstring>
#include <vector>

#include "xdp/base/file_descriptor.h"

namespace tarpon::bench {

class TcpBarrier {
 public:
  /// Rank 0 listens at `root`; the others try to connect for 30 s. Returns when all are connected.
  TcpBarrier(int rank, int world, const sockaddr_in& root);

  /// Address of this rank on the network of these connections; its port has no meaning.
  sockaddr_in local() const;

  /// The values of all ranks in order of rank. Returns when every rank has called.
  template <class Value>
  std::vector<Value> gather(const Value& mine) {
    std::vector<Value> all(connections_.size());
    gather_bytes(&mine, sizeof mine, all.data());
    return all;
  }

  /// A barrier: true when `mine` is true on a rank.
  bool any(bool mine);

 private:
  void listen(const sockaddr_in& root);
  void connect(const sockaddr_in& root);
  void gather_bytes(const void* mine, std::size_t bytes, void* all);

  int rank_;
  std::vector<FileDescriptor> connections_;  // by rank; others than rank 0 have only that to rank 0
};

/// Throws std::system_error of errno.
[[noreturn]] void fail_system(const char* what);

}  // namespace tarpon::bench
