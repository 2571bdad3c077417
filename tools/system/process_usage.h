// What this process has used so far, as the kernel counts it.
#pragma once

#include <sys/resource.h>

#include <cstdint>

namespace tarpon {

/// User and system time of all threads, in seconds.
inline double process_cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

/// The most memory that was ever resident, in KiB.
inline std::uint64_t max_resident_kib() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<std::uint64_t>(usage.ru_maxrss);
}

/// What this process holds now, by /proc/self; zeros where that is not mounted.
struct ProcessHoldings {
  std::int64_t descriptors = 0;
  std::int64_t threads = 0;
  std::int64_t resident_bytes = 0;

  static ProcessHoldings read();
};

}  // namespace tarpon
