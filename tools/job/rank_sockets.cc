#include "tools/job/rank_sockets.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <set>
#include <sstream>
#include <tuple>

#include "collectives/flight/flight.h"
#include "tools/namespaces/network_namespace.h"
#include "transport/clock.h"
#include "xdp/base/file_descriptor.h"

namespace tarpon {
namespace {

constexpr const char* kSockets = "/proc/thread-self/net/unix";

constexpr std::size_t kLongestAnswer = 256 << 10;  // a dump has 128 KiB
constexpr std::size_t kMostRanks = 1024;
constexpr std::size_t kMostRanksOfUser = 512;
constexpr std::size_t kMostNamespaces = 512;

struct Asked {
  RankAnswer answer;
  FileDescriptor fd;
  bool over = false;
};

/// Removes the next number and a dot behind it from `text`.
std::optional<std::uint32_t> take_number(std::string_view& text, int base) {
  std::uint32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (error != std::errc()) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  if (!text.empty() && text.front() == '.') text.remove_prefix(1);
  return value;
}

/// "@tarpon.UID.JOB.RANK", or nothing.
std::optional<RankAnswer> parse_name(std::string_view name) {
  constexpr std::string_view kBeginning = "@tarpon.";
  if (!name.starts_with(kBeginning)) return std::nullopt;
  std::string_view rest = name.substr(kBeginning.size());
  RankAnswer answer;
  const auto user = take_number(rest, 10);
  const auto public_id = take_number(rest, 16);
  const auto rank = take_number(rest, 10);
  if (!user || !public_id || !rank || *rank > 0xffff) return std::nullopt;
  answer.user = *user;
  answer.public_id = *public_id;
  answer.rank = static_cast<Rank>(*rank);
  // Any other spelling of the numbers names another socket.
  if (name.substr(1) != status_socket_name(answer.user, answer.public_id, answer.rank)) {
    return std::nullopt;
  }
  return answer;
}

/// The ranks that listen in the calling thread's network namespace.
std::vector<RankAnswer> listening_ranks() {
  std::vector<RankAnswer> found;
  std::ifstream table(kSockets);
  std::string line;
  while (std::getline(table, line)) {
    std::istringstream fields(line);
    std::string number, references, protocol, flags, type, state, inode, name;
    fields >> number >> references >> protocol >> flags >> type >> state >> inode >> name;
    constexpr const char* kAccepts = "00010000";
    if (flags != kAccepts) continue;
    const auto answer = parse_name(name);
    if (answer && (answer->user == ::geteuid() || ::geteuid() == 0)) found.push_back(*answer);
  }
  return found;
}

FileDescriptor connect_to(const RankAnswer& rank) {
  FileDescriptor fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const std::string name = status_socket_name(rank.user, rank.public_id, rank.rank);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  name.copy(address.sun_path + 1, sizeof address.sun_path - 1);
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  if (!fd || ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0) {
    return {};
  }
  return fd;
}

bool is_full(const std::vector<Asked>& asked, std::uint32_t user) {
  const auto of_user = std::count_if(asked.begin(), asked.end(),
                                     [user](const Asked& one) { return one.answer.user == user; });
  return asked.size() >= kMostRanks || static_cast<std::size_t>(of_user) >= kMostRanksOfUser;
}

void ask_here(const std::string& request, std::vector<Asked>& asked) {
  for (const RankAnswer& rank : listening_ranks()) {
    if (is_full(asked, rank.user)) continue;
    Asked one;
    one.answer = rank;
    one.fd = connect_to(rank);
    if (!one.fd) {
      // The rank's queue of clients is full, or the rank has ended meanwhile.
      one.answer.error = fmt::format("no answer: {}", std::strerror(errno));
      one.over = true;
      asked.push_back(std::move(one));
      continue;
    }
    ucred owner{};
    socklen_t length = sizeof owner;
    if (::getsockopt(one.fd.get(), SOL_SOCKET, SO_PEERCRED, &owner, &length) != 0) continue;
    if (owner.uid != rank.user) continue;  // another user has taken the name
    one.answer.pid = owner.pid;
    const std::string line = request + "\n";
    ::send(one.fd.get(), line.data(), line.size(), MSG_NOSIGNAL);
    asked.push_back(std::move(one));
  }
}

/// The network namespaces of other processes, each once.
std::vector<FileDescriptor> other_namespaces() {
  std::set<std::string> known;
  std::error_code error;
  const auto name_of = [&error](const std::filesystem::path& process) {
    return std::filesystem::read_symlink(process / "ns/net", error).string();
  };
  known.insert(name_of("/proc/thread-self"));
  std::vector<FileDescriptor> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", error)) {
    const std::string pid = entry.path().filename().string();
    if (pid.find_first_not_of("0123456789") != std::string::npos) continue;
    const std::string name = name_of(entry.path());
    if (name.empty() || !known.insert(name).second) continue;
    FileDescriptor fd(::open((entry.path() / "ns/net").c_str(), O_RDONLY | O_CLOEXEC));
    if (fd) found.push_back(std::move(fd));
    if (found.size() == kMostNamespaces) break;
  }
  return found;
}

/// Reads what has arrived. Returns true once no more will come.
bool read_some(Asked& one) {
  std::array<char, 16384> piece;
  while (true) {
    const ssize_t got = ::recv(one.fd.get(), piece.data(), piece.size(), MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return false;
    if (got <= 0) return true;
    one.answer.bytes.append(piece.data(), static_cast<std::size_t>(got));
    if (one.answer.bytes.size() > kLongestAnswer) {
      one.answer.error = "its answer does not end";
      return true;
    }
  }
}

void collect(std::vector<Asked>& asked, Time until) {
  while (true) {
    std::vector<pollfd> waiting;
    std::vector<Asked*> whose;
    for (Asked& one : asked) {
      if (one.over) continue;
      waiting.push_back({.fd = one.fd.get(), .events = POLLIN, .revents = 0});
      whose.push_back(&one);
    }
    const Duration left = until - monotonic_now();
    if (waiting.empty() || left <= Duration::zero()) return;
    ::poll(waiting.data(), waiting.size(), static_cast<int>(left / 1ms) + 1);
    for (std::size_t i = 0; i < waiting.size(); ++i) {
      if (waiting[i].revents != 0) whose[i]->over = read_some(*whose[i]);
    }
  }
}

/// Why a process does not answer, as far as the kernel tells.
std::string silence_of(pid_t pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::string text;
  std::getline(file, text);
  const std::size_t name_end = text.rfind(')');
  const char state = name_end + 2 < text.size() ? text[name_end + 2] : '?';
  if (state == 'T' || state == 't') {
    return "no answer: the process is stopped (SIGSTOP or a debugger)";
  }
  return fmt::format("no answer: the process is in state {}", state);
}

}  // namespace

Result<std::vector<RankAnswer>> ask_ranks(const std::string& request, Duration patience) {
  if (::access(kSockets, R_OK) != 0) {
    return fail(Error::Code::unavailable,
                fmt::format("the running ranks cannot be found: {}: {}; mount /proc", kSockets,
                            std::strerror(errno)));
  }
  std::vector<Asked> asked;
  ask_here(request, asked);
  if (::geteuid() == 0) {
    for (const FileDescriptor& space : other_namespaces()) {
      // A namespace that cannot be entered has ended meanwhile.
      (void)in_network_namespace(space.get(), [&]() -> Result<void> {
        ask_here(request, asked);
        return {};
      });
    }
  }
  collect(asked, monotonic_now() + patience);
  std::vector<RankAnswer> answers;
  for (Asked& one : asked) {
    if (!one.over) one.answer.error = silence_of(one.answer.pid);
    answers.push_back(std::move(one.answer));
  }
  std::sort(answers.begin(), answers.end(), [](const RankAnswer& a, const RankAnswer& b) {
    return std::tie(a.public_id, a.rank, a.user) < std::tie(b.public_id, b.rank, b.user);
  });
  return answers;
}

}  // namespace tarpon
