// Which sanitizer this build has: what is only a matter of quantity is cut down there.
#pragma once

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

}  // namespace tarpon::testing_support
