#include "tools/cli/confirmation.h"

#include <poll.h>

#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <string>

#include "transport/clock.h"
#include "xdp/base/file_descriptor.h"

namespace tarpon {
namespace {

constexpr std::size_t kLongestLine = 64;

/// Blocks the signals that end a wait; fd() becomes readable when one arrives.
class SignalWatch {
 public:
  SignalWatch() {
    sigset_t signals;
    ::sigemptyset(&signals);
    for (const int each : {SIGINT, SIGTERM, SIGHUP}) ::sigaddset(&signals, each);
    ::sigprocmask(SIG_BLOCK, &signals, &before_);
    fd_ = FileDescriptor(::signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK));
  }
  ~SignalWatch() {
    signalfd_siginfo taken{};
    while (::read(fd_.get(), &taken, sizeof taken) > 0) {
    }
    ::sigprocmask(SIG_SETMASK, &before_, nullptr);
  }
  SignalWatch(const SignalWatch&) = delete;
  SignalWatch& operator=(const SignalWatch&) = delete;
  int fd() const { return fd_.get(); }

 private:
  sigset_t before_{};
  FileDescriptor fd_;
};

}  // namespace

Confirmation wait_for_confirmation(Duration limit) {
  const SignalWatch signals;
  const Time until = after(monotonic_now(), limit);
  std::string line;
  for (;;) {
    const Time now = monotonic_now();
    if (now >= until) return Confirmation::time_passed;
    pollfd entries[] = {{STDIN_FILENO, POLLIN, 0}, {signals.fd(), POLLIN, 0}};
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - now).count();
    ::poll(entries, 2, static_cast<int>(std::min<std::int64_t>(left, 3'600'000)));
    if (entries[1].revents != 0) return Confirmation::signal;
    if (entries[0].revents == 0) continue;
    char byte = 0;
    if (::read(STDIN_FILENO, &byte, 1) != 1) return Confirmation::end_of_input;
    if (byte != '\n') {
      if (line.size() < kLongestLine) line += byte;
      continue;
    }
    if (line == "yes") return Confirmation::yes;
    line.clear();
  }
}

const char* reason(Confirmation confirmation) {
  switch (confirmation) {
    case Confirmation::yes:
      return "confirmed";
    case Confirmation::time_passed:
      return "the time passed";
    case Confirmation::end_of_input:
      return "standard input ended";
    case Confirmation::signal:
      return "interrupted";
  }
  return "?";
}

}  // namespace tarpon
