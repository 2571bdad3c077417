// Runs programs as a user would, for the end-to-end tests: output, exit code, and never a hang.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "transport/time.h"
#include "xdp/base/file_descriptor.h"

namespace tarpon::test {

/// Far beyond what any command here needs: reached only by a hang.
constexpr Duration kHang = 40s;

struct Command {
  std::vector<std::string> arguments;              // the program first
  std::map<std::string, std::string> environment;  // beside PATH, HOME and sanitizer options
  std::string directory = ".";
};

/// `tarpon ARGUMENTS`, the tool of this build.
Command tool(std::vector<std::string> arguments);

/// `tarpon-sim ARGUMENTS`, of this build.
Command simulator(std::vector<std::string> arguments);

/// How a command ended.
struct Ended {
  int exit_code = -1;  // -1: ended by a signal
  int signal = 0;
  bool hung = false;  // killed after its limit
  std::string out;
  std::string error;
};

/// A started command in a process group of its own, which is killed with this object.
class Process {
 public:
  explicit Process(const Command& command);
  Process(Process&& other) noexcept;
  Process& operator=(Process&&) = delete;
  ~Process();

  pid_t pid() const { return pid_; }
  /// The children of its worker (tools/job/guarded_run.h), oldest first: the ranks of
  /// `--local-ranks`.
  std::vector<pid_t> children() const;
  /// The worker itself; -1 when there is none.
  pid_t worker() const;

  /// Whether its standard output came to contain `text`.
  bool says(std::string_view text, Duration limit = kHang) const;

  Ended wait(Duration limit = kHang);

  /// After wait(): whether every process of its group has ended, as seen for at most `limit`.
  bool left_nothing(Duration limit = 5s) const;

 private:
  pid_t pid_ = -1;
  bool running_ = false;
  FileDescriptor out_, error_;
};

Ended run(const Command& command, Duration limit = kHang);

/// Whether `process`, a child or not, has ended within `limit`. A process that was killed ends when
/// it next gets a core.
bool process_ends(pid_t process, Duration limit = kHang);

/// Starts all of them, then waits for each.
std::vector<Ended> run_together(const std::vector<Command>& commands);

/// `tarpon allreduce ARGUMENTS` once per rank, each in a process of its own that meets the others
/// at `rendezvous` on loopback.
std::vector<Command> ranks_by_hand(std::uint32_t world, const std::string& rendezvous,
                                   const std::vector<std::string>& arguments);

/// "tcp://127.0.0.1:PORT" with a port that was free a moment ago.
std::string free_meeting_point();

/// A directory that goes with its owner.
class ScratchDirectory {
 public:
  ScratchDirectory();
  ScratchDirectory(const ScratchDirectory&) = delete;
  ~ScratchDirectory();

  std::string operator/(const std::string& name) const { return (path_ / name).string(); }
  std::string path() const { return path_.string(); }
  /// The names in it, sorted.
  std::vector<std::string> names() const;

 private:
  std::filesystem::path path_;
};

std::vector<std::string> lines_of(const std::string& text);

/// The options in the help of `command`, by their long names, each with its text in one line:
/// "smallest size (default 32M) *".
std::map<std::string, std::string> options_in_help(const std::vector<std::string>& command);

/// Lines of a report that hold figures, cut at blanks.
std::vector<std::vector<std::string>> rows_of(const std::string& report);

/// `text` with lines that were broken to fit a terminal (tools/cli/wrapped_text.h) in one piece.
std::string unwrapped(const std::string& text);

/// The whole file, "" when there is none.
std::string content_of(const std::string& path);

}  // namespace tarpon::test
