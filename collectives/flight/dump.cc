#include "collectives/flight/dump.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <ctime>

namespace tarpon {
namespace {

std::int64_t nanoseconds(clockid_t clock) {
  timespec now{};
  ::clock_gettime(clock, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

bool write_all(int fd, const void* data, std::size_t bytes) {
  const char* at = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t done = ::write(fd, at, bytes);
    if (done < 0 && errno == EINTR) continue;
    if (done <= 0) return false;
    at += done;
    bytes -= static_cast<std::size_t>(done);
  }
  return true;
}

}  // namespace

FlightHeader at_this_moment(const DumpTarget& target, DumpReason reason, int signal) {
  FlightHeader header = target.header;
  header.reason = reason;
  header.signal = static_cast<std::uint32_t>(signal);
  header.written = target.recorder->written();
  header.dumped_monotonic = nanoseconds(CLOCK_MONOTONIC);
  header.dumped_realtime = nanoseconds(CLOCK_REALTIME);
  return header;
}

bool write_dump(const DumpTarget& target, DumpReason reason, int signal) {
  const char* beside = signal == 0 ? target.by_thread.data() : target.by_signal.data();
  const int directory = target.directory.get();
  ::unlinkat(directory, beside, 0);  // left by a process that died while it wrote
  const int fd = ::openat(directory, beside, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) return false;
  const FlightHeader header = at_this_moment(target, reason, signal);
  bool good = emit_dump(*target.recorder, header, [fd](const void* data, std::size_t bytes) {
    return write_all(fd, data, bytes);
  });
  good = ::close(fd) == 0 && good;
  good = good && ::renameat(directory, beside, directory, target.name.data()) == 0;
  if (!good) ::unlinkat(directory, beside, 0);
  return good;
}

}  // namespace tarpon
