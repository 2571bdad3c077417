// The key from which a job's keys come, and the derivation of keys (HKDF-SHA256, RFC 5869).
#pragma once

#if __cplusplus < 202002L
#error "Tarpon needs C++20: compile with -std=c++20"
#endif

#include <array>
#include <cstddef>
#include <span>
#include <string_view>

#include "transport/wipe.h"

namespace tarpon {

/// A key. The destructor wipes it out.
template <std::size_t Size>
struct KeyBytes : std::array<std::byte, Size> {
  KeyBytes() : std::array<std::byte, Size>{} {}
  KeyBytes(const KeyBytes&) = default;
  KeyBytes& operator=(const KeyBytes&) = default;
  ~KeyBytes() { wipe(*this); }
};

/// Random, alike on all ranks of a job, known to no process beside them.
using JobKey = KeyBytes<32>;

/// Fills `out`, at most 8160 bytes, by HKDF without salt. `purpose`: the info. Takes a few
/// microseconds. Throws std::bad_alloc.
void derive_key(std::span<const std::byte> secret, std::string_view purpose,
                std::span<std::byte> out);

}  // namespace tarpon
