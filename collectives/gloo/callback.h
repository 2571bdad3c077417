// Which of Tarpon's reductions a callback of Gloo computes.
//
// Gloo's options hold the size of an element and a function pointer; type and function are not
// there. The callback is called on bit patterns that every candidate type reads as plain numbers,
// and its results are compared with those of each candidate.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>

namespace tarpon::gloo_shim {

/// f(out, a, b, n): out[i] = a[i] op b[i] for n elements.
using Combine = std::function<void(void*, const void*, const void*, std::size_t)>;

/// Numbers of collectives/tarpon.h.
struct Reduction {
  std::uint32_t type;      // tarpon_data_type
  std::uint32_t function;  // tarpon_function
  bool operator==(const Reduction&) const = default;
};

/// What `combine` computes on elements of `size` bytes; nullopt where it is none of Tarpon's
/// reductions. The same function gives the same answer on every rank: where several candidates fit
/// (sums of signed and unsigned integers), the lowest numbers count. Calls `combine` up to six
/// times, with up to 256 elements; one that throws is none of Tarpon's. Errors: std::bad_alloc.
std::optional<Reduction> classify(const Combine& combine, std::size_t size);

/// The same, remembered by the address of the function. Only a plain function, which has no state,
/// is called: a lambda may do more than combine, and is nullopt. Any thread.
std::optional<Reduction> classify_function(const Combine& combine, std::size_t size);

}  // namespace tarpon::gloo_shim
