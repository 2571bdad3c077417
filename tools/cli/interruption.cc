#include "tools/cli/interruption.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <exception>
#include <system_error>
#include <utility>

#include "tools/cli/voice.h"
#include "tools/system/signal_queue.h"
#include "transport/clock.h"

namespace tarpon {
namespace {

// The write end of the object's pipe, for the signal handler. -1: no object.
std::atomic<int> notify{-1};
static_assert(std::atomic<int>::is_always_lock_free);

std::atomic<Duration::rep> interrupted_at{0};  // time of the first signal; 0: none
static_assert(std::atomic<Duration::rep>::is_always_lock_free);

constexpr char kOver = 0;  // in place of a signal's number: the object ends

extern "C" void on_signal(int signal) {
  const int error = errno;
  const Duration::rep now = monotonic_now().time_since_epoch().count();
  Duration::rep first = 0;
  if (!interrupted_at.compare_exchange_strong(first, now)) {
    if (now - first < kSameRequest.count()) return;
    std::signal(signal, SIG_DFL);  // on the second request the work of the first is given up
    ::raise(signal);
  }
  const char which = static_cast<char>(signal);
  // A failed write (full or closed pipe) is harmless: the next signal ends the process.
  [[maybe_unused]] const ssize_t put = ::write(notify.load(), &which, 1);
  errno = error;
}

}  // namespace

Interruption::Interruption(std::function<void()> last_words)
    : Interruption(std::move(last_words), {SIGINT, SIGTERM}) {}

Interruption Interruption::of_keyboard(std::function<void()> last_words) {
  return {std::move(last_words), {SIGINT}};
}

Interruption::Interruption(std::function<void()> last_words, std::initializer_list<int> signals)
    : last_words_(std::move(last_words)) {
  for (const int signal : signals) watched_.push_back({.signal = signal});
  std::array<int, 2> pipe{};
  if (::pipe2(pipe.data(), O_CLOEXEC) != 0) return;
  read_end_ = FileDescriptor(pipe[0]);
  write_end_ = FileDescriptor(pipe[1]);
  notify = write_end_.get();
  try {
    thread_ = std::thread([this] { watch(); });
  } catch (const std::system_error&) {  // no more threads are allowed: signals keep their effect
    notify = -1;
    return;
  }
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  for (Watched& one : watched_) {
    ::sigaction(one.signal, nullptr, &one.earlier);
    one.ignored = (one.earlier.sa_flags & SA_SIGINFO) == 0 && one.earlier.sa_handler == SIG_IGN;
    if (!one.ignored) ::sigaction(one.signal, &action, nullptr);
  }
}

Interruption::~Interruption() {
  if (!thread_.joinable()) return;
  yield();
  restore();
  [[maybe_unused]] const ssize_t put = ::write(write_end_.get(), &kOver, 1);
  thread_.join();
  notify = -1;
}

void Interruption::yield() const {
  while (interrupted_at != 0 && thread_.joinable()) ::pause();
}

void Interruption::restore() {
  for (const Watched& one : watched_) {
    if (!one.ignored) ::sigaction(one.signal, &one.earlier, nullptr);
  }
}

void Interruption::watch() {
  char which = kOver;
  while (::read(read_end_.get(), &which, 1) < 0 && errno == EINTR) {
  }
  if (which == kOver) return;
  try {
    last_words_();
  } catch (const std::exception& error) {  // standard output on a full disk; no memory
    Voice().error(error.what());
  }
  std::fflush(nullptr);
  restore();
  ::raise(which);
  ::kill(::getpid(), which);  // if this thread blocks it
}

}  // namespace tarpon
