// What ranks say when they meet: the hello of each rank, and rank 0's verdict.
//
// Hello, little-endian: u32 magic, u32 wire version, u32 rank, u32 world size, u64 nonce of the
// address file (0 for tcp://), agreed text. The fields up to the world size keep their places in
// all versions, so that versions can name each other. Verdict: u32 error code + 1 (0: all are
// here), u32 job, text of the error.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "xdp/result.h"

namespace tarpon::rendezvous {

struct Hello {
  std::uint32_t version = 0;
  std::uint32_t rank = 0;
  std::uint32_t world_size = 0;
  std::uint64_t nonce = 0;
  std::string agreed;
};

std::string encode(const Hello& hello);

/// Nothing for what is no hello of any version.
std::optional<Hello> decode_hello(std::string_view body);

/// Why `other` and `host` (rank 0) cannot be in one job, in one line; nothing when they can.
std::optional<Error> difference(const Hello& host, const Hello& other);

struct Verdict {
  std::optional<Error> error;
  std::uint32_t job = 0;
};

std::string encode(const Verdict& verdict);
std::optional<Verdict> decode_verdict(std::string_view body);

}  // namespace tarpon::rendezvous
