#include "tools/job/process_group.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <exception>
#include <iostream>
#include <memory>

#include "tools/cli/exit_code.h"
#include "tools/job/line_merger.h"
#include "tools/job/rank_names.h"
#include "tools/system/signal_queue.h"
#include "tools/system/subreaper.h"
#include "transport/clock.h"
#include "xdp/base/file_descriptor.h"
#include "xdp/base/system_limits.h"

namespace tarpon {
namespace {

struct Child {
  pid_t pid = -1;
  FileDescriptor pidfd;
  FileDescriptor error_pipe;  // empty once it is at its end
  bool running = false;
  bool asked_to_end = false;
};

int run_body(const std::function<int(Rank)>& body, Rank rank) {
  try {
    return body(rank);
  } catch (const std::exception& error) {
    if (std::ferror(stdout) == 0) std::fprintf(stderr, "tarpon: %s\n", error.what());
  } catch (...) {
    std::fprintf(stderr, "tarpon: unknown exception\n");
  }
  return 1;
}

void write_to_standard_error(std::string_view line, bool /*is_error*/) {
  const std::string text = fmt::format("{}\n", line);
  // A failure cannot be reported anywhere.
  [[maybe_unused]] const ssize_t put = ::write(2, text.data(), text.size());
}

class Group {
 public:
  Group(std::uint32_t ranks, const ProcessGroupOptions& options)
      : options_(options),
        children_(ranks),
        output_(options.on_error_line ? options.on_error_line : write_to_standard_error),
        lines_(ranks, output_) {
    result_.ranks.resize(ranks);
  }
  Group(const Group&) = delete;

  /// Leaves no child behind when starting the others failed.
  ~Group() {
    for (Child& child : children_) {
      if (!child.running) continue;
      ::kill(child.pid, SIGKILL);
      while (::waitpid(child.pid, nullptr, 0) < 0 && errno == EINTR) {
      }
    }
    subreaper_.kill_all();
  }

  Result<void> start(const std::function<int(Rank)>& body) {
    if (signals_.fd() < 0) return failed("cannot watch for signals");
    // Text that waits in a buffer now would be printed by every child as well.
    std::fflush(nullptr);
    std::cout.flush();
    for (std::size_t rank = 0; rank < children_.size(); ++rank) {
      if (auto done = start_one(body, static_cast<Rank>(rank)); !done) return done;
    }
    return options_.started ? options_.started() : Result<void>();
  }

  ProcessGroupResult run() {
    while (any_running()) {
      wait();
      take_signals();
      read_errors();
      reap();
      escalate(monotonic_now());
      lines_.release(monotonic_now());
    }
    subreaper_.kill_all();
    // A process that inherited the pipe may hold it open, so we do not wait for its end.
    read_errors();
    const Time now = monotonic_now();
    for (std::uint32_t rank = 0; rank < children_.size(); ++rank)
      lines_.finish(static_cast<Rank>(rank), now);
    return std::move(result_);
  }

 private:
  enum class Phase { running, grace, ending, killing };

  static Result<void> failed(const std::string& what) {
    return fail(with_limit(Error::system(errno, what)));
  }

  Result<void> start_one(const std::function<int(Rank)>& body, Rank rank) {
    std::array<int, 2> pipe{};
    if (::pipe2(pipe.data(), O_CLOEXEC | O_NONBLOCK) != 0) return failed("cannot make a pipe");
    FileDescriptor from_child(pipe[0]);
    FileDescriptor to_parent(pipe[1]);
    // Only our end must not block: a child's write has to wait for us.
    ::fcntl(to_parent.get(), F_SETFL, ::fcntl(to_parent.get(), F_GETFL) & ~O_NONBLOCK);
    const pid_t parent = ::getpid();
    const pid_t pid = ::fork();
    if (pid < 0) return fail(start_error(errno, fmt::format("cannot start rank {}", rank)));
    if (pid == 0) become(body, rank, parent, to_parent.get());
    Child& child = children_[rank];
    child.pid = pid;
    child.running = true;
    child.error_pipe = std::move(from_child);
    child.pidfd = FileDescriptor(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
    if (!child.pidfd) return failed(fmt::format("cannot watch rank {}", rank));
    return {};
  }

  [[noreturn]] void become(const std::function<int(Rank)>& body, Rank rank, pid_t parent,
                           int error) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(1);
    ::dup2(error, 2);
    for (Child& child : children_) child = Child{};
    signals_.restore();
    const int code = with_output_written(run_body(body, rank));
    std::cout.flush();
    std::fflush(nullptr);
    ::_exit(code);
  }

  bool any_running() const {
    return std::any_of(children_.begin(), children_.end(),
                       [](const Child& c) { return c.running; });
  }

  void wait() {
    std::vector<pollfd> ready{{signals_.fd(), POLLIN, 0}};
    for (const Child& child : children_) {
      if (child.running) ready.push_back({child.pidfd.get(), POLLIN, 0});
      if (child.error_pipe) ready.push_back({child.error_pipe.get(), POLLIN, 0});
    }
    int timeout_ms = -1;
    if (const Time next = std::min(deadline_, lines_.due()); next != kNever) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(next - monotonic_now());
      timeout_ms = static_cast<int>(std::max<std::int64_t>(left.count(), 0));
    }
    // A failure is ignored: poll() only tells when to look, and the calls below show it again.
    ::poll(ready.data(), ready.size(), timeout_ms);
  }

  void take_signals() {
    while (const auto info = signals_.next()) {
      const bool again = result_.interrupted_by != 0;
      result_.interrupted_by = static_cast<int>(info->ssi_signo);
      const bool from_terminal = SignalQueue::is_from_terminal(*info);
      ask_to_end(again ? SIGKILL : from_terminal ? 0 : result_.interrupted_by);
      lines_.hold();
      enter(again ? Phase::killing : Phase::ending, options_.last_words);
    }
  }

  void read_errors() {
    const Time now = monotonic_now();
    std::array<char, 16 << 10> buffer{};
    for (std::uint32_t rank = 0; rank < children_.size(); ++rank) {
      FileDescriptor& pipe = children_[rank].error_pipe;
      // Bounded, so that one rank that never stops talking cannot keep us from the others.
      for (int round = 0; round < 64 && pipe; ++round) {
        const ssize_t got = ::read(pipe.get(), buffer.data(), buffer.size());
        if (got > 0)
          lines_.add(static_cast<Rank>(rank), {buffer.data(), static_cast<std::size_t>(got)}, now);
        if (got < 0) break;
        if (got > 0) continue;
        pipe.reset();
        lines_.finish(static_cast<Rank>(rank), now);
      }
    }
  }

  void reap() {
    std::optional<Rank>& failed = result_.first_failure;
    for (std::size_t rank = 0; rank < children_.size(); ++rank) {
      Child& child = children_[rank];
      if (!child.running) continue;
      int status = 0;
      const pid_t found = ::waitpid(child.pid, &status, WNOHANG);
      if (found == 0) continue;
      child.running = false;
      RankStatus& mine = result_.ranks[rank];
      // A negative result (ECHILD) leaves the status unknown.
      if (found > 0 && WIFEXITED(status)) mine.exit_code = WEXITSTATUS(status);
      if (found > 0 && WIFSIGNALED(status)) mine.signal = WTERMSIG(status);
      mine.ended_by_group = child.asked_to_end;
      if (mine.ok() || mine.ended_by_group) continue;
      const bool clearer = failed && result_.ranks[*failed].signal == 0 && mine.signal != 0;
      if (!failed || clearer) failed = static_cast<Rank>(rank);
    }
    if (!failed) return;
    if (phase_ != Phase::running) return;
    lines_.hold();  // ranks notice a failure at different times
    enter(Phase::grace, options_.grace);
  }

  /// Sends `signal` to all running children and marks them; signal 0 only marks them.
  void ask_to_end(int signal) {
    for (Child& child : children_) {
      if (!child.running) continue;
      child.asked_to_end = true;
      ::kill(child.pid, signal);
    }
  }

  /// Killing needs no time limit, because the kernel ends a killed process.
  void enter(Phase phase, Duration limit) {
    phase_ = phase;
    deadline_ = phase == Phase::killing ? kNever : monotonic_now() + limit;
  }

  void escalate(Time now) {
    if (now < deadline_) return;
    lines_.resume();
    lines_.release(now);
    if (phase_ == Phase::grace) {
      ask_to_end(SIGTERM);
      return enter(Phase::ending, options_.kill_after);
    }
    tell_killed();
    ask_to_end(SIGKILL);
    enter(Phase::killing, {});
  }

  /// Names the ranks that still run.
  void tell_killed() const {
    std::vector<Rank> ranks;
    for (std::size_t rank = 0; rank < children_.size(); ++rank) {
      if (children_[rank].running) ranks.push_back(static_cast<Rank>(rank));
    }
    if (ranks.empty()) return;
    output_(fmt::format("{} did not end and {} killed", rank_names(ranks),
                        ranks.size() == 1 ? "was" : "were"),
            true);
  }

  const ProcessGroupOptions& options_;
  Subreaper subreaper_;
  SignalQueue signals_;
  std::vector<Child> children_;
  const LineMerger::Output output_;
  LineMerger lines_;
  ProcessGroupResult result_;
  Phase phase_ = Phase::running;
  Time deadline_ = kNever;
};

}  // namespace

std::string ProcessGroupResult::summary() const {
  if (first_failure) {
    const RankStatus& status = ranks[*first_failure];
    if (status.signal != 0) {
      return fmt::format("rank {} was killed by signal {} ({})", *first_failure, status.signal,
                         ::strsignal(status.signal));
    }
    if (status.exit_code < 0) {
      return fmt::format(
          "rank {} ended, and its exit code was lost: SIGCHLD is ignored, or "
          "another part of this process waited for it",
          *first_failure);
    }
    std::vector<Rank> alike;
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      if (ranks[rank].exit_code == status.exit_code) alike.push_back(static_cast<Rank>(rank));
    }
    return fmt::format("{} exited with code {}", rank_names(alike), status.exit_code);
  }
  if (interrupted_by != 0) {
    return fmt::format("interrupted by signal {} ({})", interrupted_by,
                       ::strsignal(interrupted_by));
  }
  return "all ranks ended well";
}

Result<ProcessGroupResult> run_process_group(std::uint32_t ranks,
                                             const std::function<int(Rank)>& body,
                                             const ProcessGroupOptions& options) {
  Group group(ranks, options);
  if (auto started = group.start(body); !started) return fail(started.error());
  return group.run();
}

}  // namespace tarpon
