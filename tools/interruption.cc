#include "tools/interruption.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <utility>

namespace tarpon {
namespace {

// A handler has no other way to its object. -1: nobody watches.
std::atomic<int> notify{-1};
static_assert(std::atomic<int>::is_always_lock_free);

std::atomic<bool> interrupted{false};

constexpr char kInterrupted = 'i';
constexpr char kOver = 'o';

extern "C" void on_interrupt(int /*signal*/) {
  const int error = errno;
  interrupted = true;
  // A full or closed pipe changes nothing: the next SIGINT ends the process.
  [[maybe_unused]] const ssize_t put = ::write(notify.load(), &kInterrupted, 1);
  errno = error;
}

void set_handler(void (*handler)(int), int flags) {
  struct sigaction action {};
  action.sa_handler = handler;
  action.sa_flags = flags;
  ::sigaction(SIGINT, &action, nullptr);
}

}  // namespace

Interruption::Interruption(std::function<void()> last_words) : last_words_(std::move(last_words)) {
  std::array<int, 2> pipe{};
  if (::pipe2(pipe.data(), O_CLOEXEC) != 0) return;
  read_end_ = FileDescriptor(pipe[0]);
  write_end_ = FileDescriptor(pipe[1]);
  notify = write_end_.get();
  thread_ = std::thread([this] { watch(); });
  set_handler(on_interrupt, SA_RESTART | static_cast<int>(SA_RESETHAND));
}

Interruption::~Interruption() {
  if (!thread_.joinable()) return;
  yield();
  set_handler(SIG_DFL, 0);
  [[maybe_unused]] const ssize_t put = ::write(write_end_.get(), &kOver, 1);
  thread_.join();
  notify = -1;
}

void Interruption::yield() const {
  while (interrupted && thread_.joinable()) ::pause();
}

void Interruption::watch() {
  char what = kOver;
  while (::read(read_end_.get(), &what, 1) < 0 && errno == EINTR) {
  }
  if (what != kInterrupted) return;
  last_words_();
  std::fflush(nullptr);
  ::raise(SIGINT);             // the handler was reset
  ::kill(::getpid(), SIGINT);  // where this thread blocks it
}

}  // namespace tarpon
