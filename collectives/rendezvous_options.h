// Where and how the ranks of a job meet.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "collectives/port_range.h"
#include "transport/rank.h"
#include "transport/time.h"

namespace tarpon {

class FileDescriptor;
class JobSecret;  // collectives/job_secret.h

/// Is told what happens while the ranks meet.
class RendezvousObserver {
 public:
  virtual ~RendezvousObserver() = default;
  /// `line` names the process, the difference and both values. Called at most 16 times, never twice
  /// with the same line.
  virtual void on_refusal(const std::string& line) = 0;
  /// `line` says what this rank waits for: "waiting for ranks 1, 3 at tcp://10.0.0.1:29500". Called
  /// after 3 s of waiting, and then at growing intervals of up to a minute. `known_to_rank_0`: this
  /// rank has reached rank 0, which knows the ranks that are missing.
  virtual void on_wait(const std::string& line, bool known_to_rank_0) = 0;
};

struct RendezvousOptions {
  Rank rank = 0;
  std::uint32_t world_size = 1;
  /// "tcp://HOST:PORT" (rank 0 listens there, HOST is an IPv4 address or a name) or "file://PATH"
  /// (a path all ranks see; rank 0 listens on `listen_address`, any free port, and writes it
  /// there).
  std::string address;
  /// For file://. Empty: 127.0.0.1, which ranks of one host reach; Communicator::connect() takes
  /// the address of the interface, where one is named.
  std::string listen_address = {};
  PortRange listen_ports = {};  // for file://
  /// Rank 0, tcp://: a socket that listens at `address` already; join() takes it over.
  std::shared_ptr<FileDescriptor> listener;
  Duration timeout = 30s;
  /// Alike on all ranks. Null: connections are plain, and packets carry no tags.
  std::shared_ptr<const JobSecret> secret = {};
  /// Version and options that must be the same on all ranks, as "name=value" lines.
  std::string agreed;
  /// Is told in join() what the rank waits for; on rank 0, tcp://, also of each process that rank 0
  /// refuses. Outlives join(), and the join() of communicators made by shrink() and rejoin(). Null:
  /// none.
  RendezvousObserver* observer = nullptr;
};

}  // namespace tarpon
