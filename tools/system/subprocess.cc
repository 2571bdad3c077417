#include "tools/system/subprocess.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <sched.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <cerrno>
#include <csignal>

#include "tools/system/memory_file.h"
#include "xdp/base/file_descriptor.h"

namespace tarpon {
namespace {

constexpr int kCannotExecute = 127;
constexpr int kCannotEnter = 126;

/// Standard input, output and error of the child, as files: no pipe can fill up.
struct Files {
  FileDescriptor in, out, error;
};

/// Runs in the child. Makes only calls that are safe after fork() in a process with threads.
[[noreturn]] void execute(const Subprocess& subprocess, const std::vector<char*>& argv,
                          const std::vector<std::string>& paths, const Files& files) {
  if (subprocess.network_namespace >= 0 &&
      ::setns(subprocess.network_namespace, CLONE_NEWNET) != 0) {
    ::_exit(kCannotEnter);
  }
  ::dup2(files.in.get(), 0);
  ::dup2(files.out.get(), 1);
  ::dup2(files.error.get(), 2);
  ::execvp(argv[0], argv.data());
  for (const std::string& path : paths) ::execv(path.c_str(), argv.data());
  ::_exit(kCannotExecute);
}

/// The wait status. Errors: timeout (killed), io (its status was lost).
Result<int> wait_for(pid_t child, const Subprocess& subprocess) {
  const FileDescriptor pidfd(static_cast<int>(::syscall(SYS_pidfd_open, child, 0)));
  pollfd ready{pidfd.get(), POLLIN, 0};
  const auto limit = std::chrono::duration_cast<std::chrono::milliseconds>(subprocess.limit);
  // EINTR ends the wait early: a signal asks this process to end, and the child must not outlive
  // it.
  const bool ended = pidfd && ::poll(&ready, 1, static_cast<int>(limit.count())) == 1;
  if (!ended) ::kill(child, SIGKILL);
  int status = 0;
  pid_t found = -1;
  do {
    found = ::waitpid(child, &status, 0);
  } while (found < 0 && errno == EINTR);
  const int error = errno;
  if (!ended) {
    return fail(Error::Code::timeout, fmt::format("{}: killed, it did not end within {} ms",
                                                  subprocess.arguments[0], limit.count()));
  }
  if (found < 0) return fail_system(error, "cannot wait for " + subprocess.arguments[0]);
  return status;
}

}  // namespace

Result<std::string> run_subprocess(const Subprocess& subprocess) {
  Files files{make_memory_file(), make_memory_file(), make_memory_file()};
  const std::string& input = subprocess.input;
  if (!files.in || !files.out || !files.error ||
      ::pwrite(files.in.get(), input.data(), input.size(), 0) !=
          static_cast<ssize_t>(input.size())) {
    return fail_system(errno, "cannot make files for " + subprocess.arguments[0]);
  }
  std::vector<std::string> arguments = subprocess.arguments;
  std::vector<char*> argv;
  argv.reserve(arguments.size() + 1);
  for (std::string& each : arguments) argv.push_back(each.data());
  argv.push_back(nullptr);
  const std::vector<std::string> paths = {"/usr/sbin/" + arguments[0], "/sbin/" + arguments[0]};

  const pid_t child = ::fork();
  if (child < 0) return fail_system(errno, "cannot start " + subprocess.arguments[0]);
  if (child == 0) execute(subprocess, argv, paths, files);
  const auto status = wait_for(child, subprocess);
  if (!status) return fail(status.error());
  if (WIFEXITED(*status) && WEXITSTATUS(*status) == 0) return memory_file_content(files.out);
  if (WIFEXITED(*status) && WEXITSTATUS(*status) == kCannotExecute) {
    return fail(Error::Code::unavailable,
                fmt::format("{}: not found; on Debian `ip` and `tc` are in the package iproute2",
                            subprocess.arguments[0]));
  }
  const auto said = memory_file_content(files.error);
  const std::string line = said ? said->substr(0, said->find('\n')) : "";
  const std::string what = fmt::format("{}", fmt::join(subprocess.arguments, " "));
  return fail(Error::Code::io, fmt::format("`{}` failed: {}", what, line));
}

}  // namespace tarpon
