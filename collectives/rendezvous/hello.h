// What ranks say when they meet: the hello of each rank, and rank 0's verdict.
//
// Hello, little-endian: u32 magic, u32 wire version, u32 rank, u32 world size, u64 nonce of the
// address file (0 for tcp://), agreed text. The fields up to the nonce keep their places in all
// versions, so that versions can name each other and each checks the nonce of the other. Verdict:
// u32 error code + 1 (0: all are here), u32 cookie of the job, u32 public id of the job, then the
// text of the error, or, in a job with a secret, 32 bytes from which keys of packets come. The
// code permission: one of both has a secret; rank 0 has looked at nothing else.
//
// The functions here are pure. The decoders accept any bytes, and allocate no more than the bytes
// that they get; text that they return for messages is printable and bounded.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "transport/job_key.h"
#include "xdp/base/result.h"

namespace tarpon::rendezvous {

struct Hello {
  std::uint32_t version = 0;
  std::uint32_t rank = 0;
  std::uint32_t world_size = 0;
  std::uint64_t nonce = 0;
  std::string agreed;
};

std::string encode(const Hello& hello);

/// Nothing if `body` is not a hello of any version.
std::optional<Hello> decode_hello(std::string_view body);

/// Why a guest cannot be in the job of rank 0; one line each.
struct Difference {
  Error for_host;   // with the values of both
  Error for_guest;  // with values that the guest has sent itself, and none of rank 0's
};

/// Nothing when `guest` can be in the job of `host` (rank 0).
std::optional<Difference> difference(const Hello& host, const Hello& guest);

struct Verdict {
  std::optional<Error> error = {};
  std::uint32_t job = 0;  // cookie: on the wire, never shown
  std::uint32_t public_id = 0;
  std::optional<JobKey> packet_key = {};  // travels in TLS only; never shown
};

std::string encode(const Verdict& verdict);
std::optional<Verdict> decode_verdict(std::string_view body);

}  // namespace tarpon::rendezvous
