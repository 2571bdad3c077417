// The side of the rendezvous of every rank but 0: find rank 0, say hello, wait for the verdict.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "collectives/rendezvous/address.h"
#include "collectives/rendezvous/connection.h"
#include "collectives/rendezvous/hello.h"
#include "collectives/rendezvous_options.h"
#include "transport/job_key.h"
#include "transport/time.h"
#include "xdp/base/result.h"

namespace tarpon::rendezvous {

struct Joined {
  Connection connection;  // to rank 0
  std::uint32_t job = 0;  // cookie
  std::uint32_t public_id = 0;
  std::optional<JobKey> packet_key = {};  // with a secret
};

/// Tries until `deadline`, because rank 0 may come later and a file may be left from an earlier
/// start, because the host's name may not be known yet, and because rank 0 closes connections when
/// it has too many. `timeout` is for messages. `observer` may be null. Errors: what rank 0 says,
/// invalid_argument (the host has no IPv4 address), io (this process can open no more sockets),
/// timeout with the last reason; mismatch: one of
/// both has a secret, or another one. A file may be left from an earlier start, and name the port
/// of another service: with a file the search goes on until `deadline`. `tls`: null without a
/// secret.
Result<Joined> join_rank_0(const Address& address, Hello hello, Time deadline, Duration timeout,
                           RendezvousObserver* observer,
                           std::shared_ptr<const TlsContext> tls = {});

}  // namespace tarpon::rendezvous
