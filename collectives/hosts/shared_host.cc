#include "collectives/hosts/shared_host.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <utility>

#include "transport/clock.h"
#include "xdp/base/private_descriptor.h"
#include "xdp/base/system_limits.h"

namespace tarpon::hosts {
namespace {

constexpr std::uint32_t kMagic = 0x74726873;
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

/// What a rank says at the door of the lowest one, and the answer.
struct Message {
  std::uint32_t magic = kMagic;
  std::uint32_t job = 0;
  std::uint32_t rank = 0;  // local rank
  std::uint32_t good = 0;  // 0: the sender cannot share memory
  BellNames bells{};       // of an answer: all; else the sender's own
};

struct Received {
  Message message;
  FileDescriptor memory;
};

Error unavailable(std::string text) {
  return Error::make(Error::Code::unavailable, std::move(text));
}

Error failed(const char* what) {
  return unavailable(fmt::format("{}: {}", what, std::strerror(errno)));
}

/// The address of an abstract socket, and its length.
std::pair<sockaddr_un, socklen_t> abstract_address(const std::string& name) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::size_t length = std::min(name.size(), sizeof address.sun_path - 1);
  std::memcpy(address.sun_path + 1, name.data(), length);
  return {address, static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + length)};
}

FileDescriptor unix_socket() {
  return FileDescriptor(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

/// Waits until one of the sockets can be read, or has ended.
bool wait_for(std::vector<pollfd> entries, const SharedHost::Options& options, Time deadline) {
  constexpr Duration kLook = 50ms;  // at the other ranks
  while (true) {
    const Duration left = std::min(kLook, deadline - monotonic_now());
    if (left <= Duration::zero() || (options.is_broken && options.is_broken())) return false;
    if (::poll(entries.data(), entries.size(), static_cast<int>(left / 1ms) + 1) > 0) return true;
  }
}

Result<void> check_user(int socket) {
  ucred peer{};
  socklen_t length = sizeof peer;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) {
    return fail(failed("the user of another rank"));
  }
  if (peer.uid == ::geteuid()) return {};
  return fail(unavailable(fmt::format("ranks of users {} and {}", ::geteuid(), peer.uid)));
}

/// `memory`: a descriptor to send along; -1: none.
Result<void> send(int socket, const Message& message, int memory = -1) {
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(sizeof(int))> control{};
  iovec part{.iov_base = const_cast<Message*>(&message), .iov_len = sizeof message};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  if (memory >= 0) {
    header.msg_control = control.data();
    header.msg_controllen = control.size();
    cmsghdr* const rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof memory);
    std::memcpy(CMSG_DATA(rights), &memory, sizeof memory);
  }
  if (::sendmsg(socket, &header, MSG_NOSIGNAL) == sizeof message) return {};
  return fail(failed("cannot hand memory over"));
}

Error cannot_share(Rank rank) {
  return unavailable(fmt::format("rank {} cannot share memory", rank));
}

/// Reads a message that is there.
Result<Received> receive(int socket) {
  alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(sizeof(int))> control{};
  Received received;
  iovec part{.iov_base = &received.message, .iov_len = sizeof received.message};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = control.data();
  // Room for one descriptor: the kernel closes further ones. CMSG_SPACE() has room for two.
  header.msg_controllen = CMSG_LEN(sizeof(int));
  const ssize_t got = ::recvmsg(socket, &header, MSG_CMSG_CLOEXEC);
  const cmsghdr* const rights = got < 0 ? nullptr : CMSG_FIRSTHDR(&header);
  if (rights != nullptr && rights->cmsg_level == SOL_SOCKET && rights->cmsg_type == SCM_RIGHTS &&
      rights->cmsg_len >= CMSG_LEN(sizeof(int))) {
    int descriptor = -1;
    std::memcpy(&descriptor, CMSG_DATA(rights), sizeof descriptor);
    received.memory = FileDescriptor(descriptor);
  }
  if (got != sizeof received.message || received.message.magic != kMagic) {
    return fail(unavailable("a rank of the host has ended"));
  }
  return received;
}

Result<FileDescriptor> make_memory(std::uint64_t bytes) {
  // A memory file beyond this limit would end the process, by SIGXFSZ.
  rlimit files{};
  if (::getrlimit(RLIMIT_FSIZE, &files) == 0 && files.rlim_cur < bytes) {
    return fail(
        unavailable(fmt::format("RLIMIT_FSIZE is {} bytes, and the memory needs {}: raise "
                                "`ulimit -f`",
                                files.rlim_cur, bytes)));
  }
  FileDescriptor memory(::memfd_create("tarpon-host", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!memory) return fail(failed("memfd_create"));
  if (::ftruncate(memory.get(), static_cast<off_t>(bytes)) != 0) {
    return fail(failed("the size of the shared memory"));
  }
  if (::fcntl(memory.get(), F_ADD_SEALS, kSeals) != 0) return fail(failed("F_ADD_SEALS"));
  return memory;
}

/// `memory`: empty: memory of this process alone.
Result<std::byte*> map_memory(const FileDescriptor& memory, std::uint64_t bytes) {
  struct stat status {};
  const bool is_private = !memory;
  const bool good = is_private || (::fstat(memory.get(), &status) == 0 &&
                                   static_cast<std::uint64_t>(status.st_size) == bytes &&
                                   (::fcntl(memory.get(), F_GET_SEALS) & kSeals) == kSeals);
  if (!good) return fail(unavailable("the memory of the host has another size, or no seals"));
  const int kind = is_private ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
  void* const base =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, kind | MAP_NORESERVE, memory.get(), 0);
  if (base == MAP_FAILED) return fail(failed("mapping the memory of the host"));
  keep_from_children(base, bytes);
  return static_cast<std::byte*>(base);
}

/// The ranks of this host.
const std::vector<Rank>& ranks_of(const SharedHost::Options& options) {
  return options.layout.hosts[options.layout.host_of(options.self)];
}

std::uint32_t local_rank(const SharedHost::Options& options) {
  const std::vector<Rank>& ranks = ranks_of(options);
  return static_cast<std::uint32_t>(std::find(ranks.begin(), ranks.end(), options.self) -
                                    ranks.begin());
}

struct Handover {
  FileDescriptor memory;
  BellNames bells{};
};

BellName bell_of(const SharedHost::Options& options) {
  return options.port == nullptr ? BellName{} : options.port->bell();
}

/// The other ranks of the host, at the door of the lowest one. A process that is none of them, or
/// says nothing, keeps nobody waiting.
class Guests {
 public:
  Guests(const Door& door, const SharedHost::Options& options)
      : door_(door),
        options_(options),
        sockets_(ranks_of(options).size()),
        missing_(ranks_of(options).size() - 1) {
    bells_[0] = bell_of(options);
  }

  /// Returns when all have come. Errors: unavailable: one does not come, or cannot share memory.
  Result<void> meet(Time deadline) {
    while (missing_ > 0) {
      if (!wait(deadline)) {
        return fail(unavailable("a rank of the host does not come for the shared memory"));
      }
      if (!accept_some()) return fail(failed("a connection of a rank of the host"));
      std::vector<FileDescriptor> silent;
      for (FileDescriptor& socket : unknown_) {
        pollfd entry{.fd = socket.get(), .events = POLLIN, .revents = 0};
        if (::poll(&entry, 1, 0) <= 0) {
          silent.push_back(std::move(socket));
        } else if (auto good = greet(std::move(socket)); !good) {
          return good;
        }
      }
      unknown_ = std::move(silent);
    }
    return {};
  }

  /// Gives the memory and all bells to all guests; -1: tells them that there is none.
  Result<void> answer(int memory) const {
    const Message message{.job = options_.job, .good = memory >= 0, .bells = bells_};
    Result<void> result;
    for (const FileDescriptor& socket : sockets_) {
      if (!socket) continue;
      if (auto sent = send(socket.get(), message, memory); !sent) result = sent;
    }
    return result;
  }

  const BellNames& bells() const { return bells_; }

 private:
  static constexpr std::size_t kMostUnknown = 128;

  bool wait(Time deadline) const {
    std::vector<pollfd> entries{{door_.socket.get(), POLLIN, 0}};
    for (const FileDescriptor& socket : unknown_) entries.push_back({socket.get(), POLLIN, 0});
    return wait_for(std::move(entries), options_, deadline);
  }

  /// Returns false where this process gets no descriptor for a guest.
  bool accept_some() {
    constexpr int kAtOnce = 64;
    for (int i = 0; i < kAtOnce; ++i) {
      FileDescriptor guest(
          ::accept4(door_.socket.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (!guest) return errno == EAGAIN || errno == EINTR || errno == ECONNABORTED;
      if (unknown_.size() == kMostUnknown) unknown_.erase(unknown_.begin());
      unknown_.push_back(std::move(guest));
    }
    return true;
  }

  /// A process has said something. Only one that knows the cookie is a rank.
  Result<void> greet(FileDescriptor socket) {
    auto hello = receive(socket.get());
    if (!hello || hello->message.job != options_.job) return {};
    if (auto user = check_user(socket.get()); !user) return user;
    const std::uint32_t rank = hello->message.rank;
    if (rank == 0 || rank >= sockets_.size() || sockets_[rank]) return {};
    sockets_[rank] = std::move(socket);
    if (hello->message.good == 0) return fail(cannot_share(ranks_of(options_)[rank]));
    bells_[rank] = hello->message.bells[rank];
    --missing_;
    return {};
  }

  const Door& door_;
  const SharedHost::Options& options_;
  std::vector<FileDescriptor> unknown_;
  std::vector<FileDescriptor> sockets_;  // by local rank
  BellNames bells_{};
  std::size_t missing_;
};

/// At the lowest rank: meets the others, and gives all of them the memory and the bells.
Result<Handover> hand_out(const Door& door, const SharedHost::Options& options, std::uint64_t bytes,
                          Time deadline) {
  Guests guests(door, options);
  const auto met = guests.meet(deadline);
  auto memory = met ? make_memory(bytes) : Result<FileDescriptor>(fail(met.error()));
  auto answered = guests.answer(memory ? memory->get() : -1);
  if (!memory) return fail(memory.error());
  if (!answered) return fail(answered.error());
  return Handover{.memory = *std::move(memory), .bells = guests.bells()};
}

/// At the other ranks.
Result<Handover> take(const SharedHost::Options& options, Time deadline) {
  const FileDescriptor socket = unix_socket();
  const auto [address, length] = abstract_address(options.lowest_door);
  if (!socket ||
      ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0) {
    return fail(failed("the door of the lowest rank of the host"));
  }
  if (auto good = check_user(socket.get()); !good) return fail(good.error());
  const BellName bell = bell_of(options);
  const bool willing = bell != BellName{};
  const std::uint32_t self = local_rank(options);
  Message hello{.job = options.job, .rank = self, .good = willing};
  hello.bells[self] = bell;
  if (auto sent = send(socket.get(), hello); !sent) return fail(sent.error());
  if (!willing) return fail(unavailable("this rank has no port that others can wake"));
  if (!wait_for({{socket.get(), POLLIN, 0}}, options, deadline)) {
    return fail(unavailable(fmt::format("rank {} does not answer", ranks_of(options)[0])));
  }
  auto answer = receive(socket.get());
  if (!answer) return fail(answer.error());
  if (answer->message.good == 0) return fail(unavailable("a rank of the host shares no memory"));
  if (!answer->memory) {
    return fail(unavailable("the lowest rank of the host handed no memory over"));
  }
  return Handover{.memory = std::move(answer->memory), .bells = answer->message.bells};
}

}  // namespace

Result<Door> open_door(const std::string& name) {
  std::uint64_t random = 0;
  if (::getrandom(&random, sizeof random, 0) != sizeof random) return fail(failed("getrandom"));
  Door door{.socket = unix_socket(),
            .name = name.empty() ? fmt::format("tarpon-host-{:016x}", random) : name};
  const auto [address, length] = abstract_address(door.name);
  constexpr int kBacklog = 64;
  if (!door.socket ||
      ::bind(door.socket.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0 ||
      ::listen(door.socket.get(), kBacklog) != 0) {
    return fail(failed("an abstract UNIX socket"));
  }
  return door;
}

class SharedHost::Ringer : public Bells {
 public:
  Ringer(Port& port, const BellNames& bells) : port_(port), bells_(bells) {}
  void ring(std::uint32_t rank) override { port_.ring(bells_[rank]); }

 private:
  Port& port_;
  const BellNames bells_;
};

Result<std::unique_ptr<SharedHost>> SharedHost::share(Door door, const Options& options,
                                                      Time deadline) {
  const std::vector<Rank>& ranks = ranks_of(options);
  const HostShape shape{.ranks = static_cast<std::uint32_t>(ranks.size())};
  const std::uint64_t bytes = HostMemory::bytes(shape);
  const bool lowest = options.self == ranks.front();
  if (lowest && bell_of(options) == BellName{}) {
    door.socket.reset();
    return fail(unavailable("this rank has no port that others can wake"));
  }
  const bool alone = ranks.size() == 1;
  auto handover = alone    ? Result<Handover>(Handover())
                  : lowest ? hand_out(door, options, bytes, deadline)
                           : take(options, deadline);
  if (!handover) return fail(handover.error());
  auto base = map_memory(handover->memory, bytes);
  if (!base) return fail(base.error());
  return std::unique_ptr<SharedHost>(new SharedHost(options, shape, *base, handover->bells));
}

SharedHost::SharedHost(const Options& options, const HostShape& shape, std::byte* base,
                       const BellNames& bells)
    : base_(base),
      bytes_(HostMemory::bytes(shape)),
      bells_(std::make_unique<Ringer>(*options.port, bells)),
      group_{.memory = HostMemory(base, shape),
             .layout = options.layout,
             .host = options.layout.host_of(options.self),
             .self = local_rank(options),
             .bells = bells_.get()} {}

SharedHost::~SharedHost() {
  ::munmap(base_, bytes_);
}

}  // namespace tarpon::hosts
