#include "tests/support/child_program.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <regex>
#include <sstream>
#include <stdexcept>
#include <thread>

#include "tools/system/memory_file.h"
#include "transport/clock.h"

namespace tarpon::test {
namespace {

std::string content(const FileDescriptor& file) {
  return memory_file_content(file).value();
}

/// Nothing of a launcher that may have started the tests.
std::vector<std::string> environment_of(const Command& command) {
  std::vector<std::string> out;
  for (const char* name : {"PATH", "HOME", "TMPDIR", "LD_LIBRARY_PATH", "ASAN_OPTIONS",
                           "UBSAN_OPTIONS", "TSAN_OPTIONS"}) {
    const char* value = std::getenv(name);
    if (value != nullptr && !command.environment.contains(name))
      out.push_back(fmt::format("{}={}", name, value));
  }
  for (const auto& [name, value] : command.environment) out.push_back(name + "=" + value);
  return out;
}

std::vector<char*> pointers(std::vector<std::string>& words) {
  std::vector<char*> out;
  for (std::string& word : words) out.push_back(word.data());
  out.push_back(nullptr);
  return out;
}

}  // namespace

Command tool(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), TARPON_TOOL);
  return {std::move(arguments), {}, "."};
}

Command simulator(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), TARPON_SIM);
  return {std::move(arguments), {}, "."};
}

Process::Process(const Command& command) : out_(make_memory_file()), error_(make_memory_file()) {
  ::prctl(PR_SET_CHILD_SUBREAPER,
          1);  // so that left_nothing() can tell dead orphans from live ones
  std::vector<std::string> arguments = command.arguments;
  std::vector<std::string> environment = environment_of(command);
  const std::vector<char*> argv = pointers(arguments);
  const std::vector<char*> envp = pointers(environment);
  const pid_t parent = ::getpid();
  pid_ = ::fork();
  if (pid_ < 0) throw std::runtime_error("cannot fork");
  if (pid_ == 0) {
    ::setpgid(0, 0);
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(126);
    ::dup2(::open("/dev/null", O_RDONLY), 0);
    ::dup2(out_.get(), 1);
    ::dup2(error_.get(), 2);
    if (::chdir(command.directory.c_str()) == 0) ::execvpe(argv[0], argv.data(), envp.data());
    ::_exit(127);
  }
  ::setpgid(pid_, pid_);  // whoever comes first: the group exists when this returns
  running_ = true;
}

Process::Process(Process&& other) noexcept
    : pid_(other.pid_),
      running_(std::exchange(other.running_, false)),
      out_(std::move(other.out_)),
      error_(std::move(other.error_)) {}

Process::~Process() {
  if (running_) wait(Duration::zero());
}

namespace {

std::vector<pid_t> children_of(pid_t parent) {
  std::ifstream file(fmt::format("/proc/{0}/task/{0}/children", parent));
  return {std::istream_iterator<pid_t>(file), {}};
}

}  // namespace

pid_t Process::worker() const {
  const std::vector<pid_t> workers = children_of(pid_);
  return workers.size() == 1 ? workers[0] : -1;
}

std::vector<pid_t> Process::children() const {
  return children_of(worker());
}

bool Process::says(std::string_view text, Duration limit) const {
  for (const Time until = monotonic_now() + limit; monotonic_now() < until;) {
    if (content(out_).find(text) != std::string::npos) return true;
    std::this_thread::sleep_for(5ms);
  }
  return false;
}

bool process_ends(pid_t process, Duration limit) {
  const FileDescriptor pidfd(static_cast<int>(::syscall(SYS_pidfd_open, process, 0)));
  if (!pidfd) return errno == ESRCH;
  pollfd ready{pidfd.get(), POLLIN, 0};
  const auto limit_ms = std::chrono::duration_cast<std::chrono::milliseconds>(limit).count();
  return ::poll(&ready, 1, static_cast<int>(limit_ms)) == 1;
}

Ended Process::wait(Duration limit) {
  Ended ended;
  ended.hung = !process_ends(pid_, limit);
  if (ended.hung) ::kill(-pid_, SIGKILL);
  int status = 0;
  const bool known = ::waitpid(pid_, &status, 0) == pid_;
  running_ = false;
  if (known && WIFEXITED(status)) ended.exit_code = WEXITSTATUS(status);
  if (known && WIFSIGNALED(status)) ended.signal = WTERMSIG(status);
  ended.out = content(out_);
  ended.error = content(error_);
  return ended;
}

bool Process::left_nothing(Duration limit) const {
  for (const Time until = monotonic_now() + limit; monotonic_now() < until;) {
    while (::waitpid(-pid_, nullptr, WNOHANG) > 0) {
    }
    if (::kill(-pid_, 0) != 0 && errno == ESRCH) return true;
    std::this_thread::sleep_for(5ms);
  }
  return false;
}

Ended run(const Command& command, Duration limit) {
  return Process(command).wait(limit);
}

std::vector<Ended> run_together(const std::vector<Command>& commands) {
  std::vector<Process> processes;
  processes.reserve(commands.size());
  for (const Command& command : commands) processes.emplace_back(command);
  std::vector<Ended> ended;
  for (Process& process : processes) ended.push_back(process.wait());
  return ended;
}

std::vector<Command> ranks_by_hand(std::uint32_t world, const std::string& rendezvous,
                                   const std::vector<std::string>& arguments) {
  std::vector<Command> commands;
  for (std::uint32_t rank = 0; rank < world; ++rank) {
    Command command =
        tool({"allreduce", "--rank", std::to_string(rank), "--world-size", std::to_string(world),
              "--rendezvous", rendezvous, "--interface", "lo"});
    command.arguments.insert(command.arguments.end(), arguments.begin(), arguments.end());
    commands.push_back(std::move(command));
  }
  return commands;
}

std::string free_meeting_point() {
  const FileDescriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  auto* general = reinterpret_cast<sockaddr*>(&address);
  if (::bind(socket.get(), general, length) != 0 ||
      ::getsockname(socket.get(), general, &length) != 0) {
    throw std::runtime_error("no free TCP port on loopback");
  }
  return fmt::format("tcp://127.0.0.1:{}", ntohs(address.sin_port));
}

ScratchDirectory::ScratchDirectory() {
  std::string path = (std::filesystem::temp_directory_path() / "tarpon-test-XXXXXX").string();
  if (::mkdtemp(path.data()) == nullptr) throw std::runtime_error("cannot create " + path);
  path_ = path;
}

ScratchDirectory::~ScratchDirectory() {
  std::error_code ignored;  // what cannot be removed is for the system's own clean-up
  std::filesystem::remove_all(path_, ignored);
}

std::vector<std::string> ScratchDirectory::names() const {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(path_)) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

std::map<std::string, std::string> options_in_help(const std::vector<std::string>& command) {
  std::vector<std::string> words = command;
  words.push_back("--help");
  std::map<std::string, std::string> options;
  std::string* text = nullptr;  // of the option whose lines these are
  for (const std::string& line : lines_of(run(tool(words)).out)) {
    const std::size_t first = line.find_first_not_of(' ');
    const bool name = first != std::string::npos && first > 0 && first < 8 && line[first] == '-';
    if (name) {
      const std::size_t at = line.find("--");
      const std::size_t end = line.find_first_of(" \n", at);
      text = &options[line.substr(at, end - at)];
      const std::size_t beside = line.find("  ", at);
      if (beside != std::string::npos) *text = line.substr(line.find_first_not_of(' ', beside));
    } else if (text != nullptr && first != std::string::npos && first >= 8) {
      *text += (text->empty() ? "" : " ") + line.substr(first);
    } else {
      text = nullptr;
    }
  }
  return options;
}

std::vector<std::vector<std::string>> rows_of(const std::string& report) {
  std::vector<std::vector<std::string>> rows;
  for (const std::string& line : lines_of(report)) {
    if (line.empty() || line.front() == '#') continue;
    std::istringstream words(line);
    rows.push_back({std::istream_iterator<std::string>(words), {}});
  }
  return rows;
}

std::string unwrapped(const std::string& text) {
  return std::regex_replace(text, std::regex("\n#? {2,}"), " ");
}

std::string content_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace tarpon::test
