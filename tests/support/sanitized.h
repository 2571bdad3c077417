// Which sanitizer this build has: what is only a matter of quantity is cut down there.
#pragma once

#include <cstddef>
#include <vector>

namespace tarpon::testing_support {

#if defined(__SANITIZE_THREAD__)
#define TARPON_THREAD_SANITIZER 1
#elif defined(__SANITIZE_ADDRESS__)
#define TARPON_ADDRESS_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define TARPON_THREAD_SANITIZER 1
#elif __has_feature(address_sanitizer)
#define TARPON_ADDRESS_SANITIZER 1
#endif
#endif

#if defined(TARPON_THREAD_SANITIZER)
inline constexpr bool kThreadSanitizer = true;
#else
inline constexpr bool kThreadSanitizer = false;
#endif
#if defined(TARPON_ADDRESS_SANITIZER)
inline constexpr bool kSanitizer = true;
#else
inline constexpr bool kSanitizer = kThreadSanitizer;
#endif

/// The first `few` of `values` under a sanitizer, which makes each ten times as long; else all.
template <typename T>
std::vector<T> first_if_sanitized(std::size_t few, std::vector<T> values) {
  if (kSanitizer && values.size() > few) values.resize(few);
  return values;
}

}  // namespace tarpon::testing_support
