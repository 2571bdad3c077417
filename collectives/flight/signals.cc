#include "collectives/flight/signals.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <ctime>
#include <mutex>
#include <utility>

namespace tarpon {
namespace {

// SIGTERM is one of them because launchers use it to end a rank that hangs. The dump then says what
// the rank was doing.
constexpr std::array kSignals{SIGUSR1, SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTERM};

// The handlers read all of this, since they get no argument of ours.
std::array<std::atomic<const DumpTarget*>, kMostSignalTargets> targets;
std::array<struct sigaction, kSignals.size()> earlier;
std::atomic<pid_t> installer = 0;  // the process that last added a target
std::atomic<int> running = 0;
std::atomic<bool> dying = false;

std::mutex table;  // held to add and to remove
std::size_t count = 0;
std::array<bool, kSignals.size()> installed{};

std::size_t index_of(int signal) {
  return static_cast<std::size_t>(std::find(kSignals.begin(), kSignals.end(), signal) -
                                  kSignals.begin());
}

void dump_all(int signal) {
  // A fault inside of a dump must not begin another one.
  if (signal != SIGUSR1 && dying.exchange(true)) return;
  ++running;
  const auto process = static_cast<std::uint32_t>(::getpid());
  for (const auto& slot : targets) {
    const DumpTarget* target = slot.load(std::memory_order_acquire);
    if (target == nullptr || target->header.pid != process) continue;
    write_dump(*target, signal == SIGUSR1 ? DumpReason::request : DumpReason::fatal, signal);
  }
  --running;
}

/// Does what would have happened without our handler.
void pass_on(int signal, siginfo_t* info, void* context) {
  const struct sigaction& before = earlier[index_of(signal)];
  if ((before.sa_flags & SA_SIGINFO) != 0) return before.sa_sigaction(signal, info, context);
  if (before.sa_handler == SIG_IGN) return;
  if (before.sa_handler != SIG_DFL) return before.sa_handler(signal);
  // To be asked for a dump is no reason to die; but a child has nothing to dump.
  if (signal == SIGUSR1 && installer == ::getpid()) return;
  ::sigaction(signal, &before, nullptr);
  // A signal that was sent is raised again; a fault repeats by itself, with the right place in a
  // core dump.
  if (info == nullptr || info->si_code <= 0) ::raise(signal);
}

void on_signal(int signal, siginfo_t* info, void* context) {
  const int saved = errno;
  dump_all(signal);
  // If the process survives a signal that should have ended it, the next one dumps again.
  pass_on(signal, info, context);
  if (signal != SIGUSR1) dying = false;
  errno = saved;
}

bool has_handler(const struct sigaction& action) {
  return (action.sa_flags & SA_SIGINFO) != 0 ||
         (action.sa_handler != SIG_DFL && action.sa_handler != SIG_IGN);
}

bool is_ignored(const struct sigaction& action) {
  return (action.sa_flags & SA_SIGINFO) == 0 && action.sa_handler == SIG_IGN;
}

void install(FlightSignals which) {
  for (std::size_t i = 0; i < kSignals.size(); ++i) {
    if (installed[i]) continue;
    ::sigaction(kSignals[i], nullptr, &earlier[i]);  // before ours can be called
    const bool handled = has_handler(earlier[i]);
    if (which == FlightSignals::unhandled && (handled || is_ignored(earlier[i]))) continue;
    struct sigaction ours = earlier[i];  // keeps the application's mask, and whether calls go on
    ours.sa_sigaction = on_signal;
    ours.sa_flags =
        SA_SIGINFO | SA_ONSTACK | (handled ? earlier[i].sa_flags & SA_RESTART : SA_RESTART);
    installed[i] = ::sigaction(kSignals[i], &ours, nullptr) == 0;
  }
}

void uninstall() {
  for (std::size_t i = 0; i < kSignals.size(); ++i) {
    if (!std::exchange(installed[i], false)) continue;
    struct sigaction now {};
    ::sigaction(kSignals[i], nullptr, &now);
    const bool still_ours = (now.sa_flags & SA_SIGINFO) != 0 && now.sa_sigaction == on_signal;
    if (still_ours) ::sigaction(kSignals[i], &earlier[i], nullptr);
  }
}

}  // namespace

bool add_signal_target(const DumpTarget& target, FlightSignals which) {
  const std::lock_guard lock(table);
  const auto free = std::find(targets.begin(), targets.end(), nullptr);
  if (free == targets.end()) return false;
  free->store(&target, std::memory_order_release);
  ++count;
  installer = ::getpid();
  install(which);
  return true;
}

void remove_signal_target(const DumpTarget& target) {
  const std::lock_guard lock(table);
  const auto found = std::find(targets.begin(), targets.end(), &target);
  if (found == targets.end()) return;
  found->store(nullptr);
  if (--count == 0) uninstall();
  constexpr timespec kPause{.tv_sec = 0, .tv_nsec = 1'000'000};
  for (int i = 0; i < 1000 && running > 0; ++i) ::nanosleep(&kPause, nullptr);
}

}  // namespace tarpon
