#include "collectives/flight/flight.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <fstream>
#include <system_error>
#include <thread>

#include "collectives/flight/board.h"
#include "collectives/flight/dump.h"
#include "collectives/flight/signals.h"
#include "collectives/flight/status_socket.h"
#include "transport/clock.h"
#include "xdp/base/file_descriptor.h"
#include "xdp/base/output_place.h"
#include "xdp/base/private_descriptor.h"
#include "xdp/base/quiet_thread.h"

namespace tarpon {
namespace {

constexpr Duration kDumpPause = 1s;  // at least, between two dumps of one rank

FlightHeader header_of(const FlightIdentity& identity) {
  FlightHeader header;
  header.header_bytes = sizeof header;
  header.job = identity.public_id;
  header.rank = identity.rank;
  header.world_size = identity.world_size;
  header.slot_bytes = identity.slot_bytes;
  header.pid = static_cast<std::uint32_t>(::getpid());
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  boot.copy(header.boot_id.data(), header.boot_id.size() - 1);
  struct stat clock {};
  if (::stat("/proc/self/ns/time", &clock) == 0) {
    header.time_namespace = static_cast<std::uint32_t>(clock.st_ino);
  }
  ::gethostname(header.host.data(), header.host.size() - 1);
  return header;
}

/// A quiet thread; not joinable if none can be started.
template <typename Body>
std::thread quiet_thread_if_any(Body body) {
  try {
    return quiet_thread(std::move(body));
  } catch (const std::system_error&) {  // the limit of threads: goes on without one
    return {};
  }
}

}  // namespace

class Flight::Watch {
 public:
  Watch(const FlightOptions& options, const FlightIdentity& identity) : identity_(identity) {
    target_.recorder = &recorder_;
    target_.header = header_of(identity);
    dumps_ = !options.directory.empty() && prepare_files(options.directory);
    if (dumps_ && options.signals != FlightSignals::none) {
      signals_ = add_signal_target(target_, options.signals);
    }
    if (options.socket) {
      listener_ =
          listen_abstract(status_socket_name(::geteuid(), identity.public_id, identity.rank));
    }
    wake_ = FileDescriptor(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (wake_ && (dumps_ || listener_)) thread_ = quiet_thread_if_any([this] { run(); });
  }

  ~Watch() {
    stopping_ = true;
    wake();
    if (thread_.joinable()) thread_.join();
    if (signals_) remove_signal_target(target_);
    if (dumps_ && dumped_ != recorder_.incidents()) write_dump(target_, DumpReason::status, 0);
  }

  void look() {
    if (dumps_ && seen_.exchange(recorder_.incidents()) != recorder_.incidents()) wake();
  }

  void request() {
    requested_ = true;
    wake();
  }

  Recorder& recorder() { return recorder_; }
  Board<FlightSnapshot>& board() { return board_; }

  bool wants_snapshot(bool busy) {
    constexpr std::uint32_t kBusyRounds = 256;
    return listener_ && (!busy || ++rounds_ % kBusyRounds == 0);
  }

 private:
  bool prepare_files(const std::string& directory) {
    auto opened = open_output_directory(directory);
    if (!opened) return false;
    target_.directory = std::move(*opened);
    const std::string name = flight_file_name(identity_.public_id, identity_.rank);
    name.copy(target_.name.data(), target_.name.size() - 1);
    (name + ".new").copy(target_.by_thread.data(), target_.by_thread.size() - 1);
    (name + ".signal").copy(target_.by_signal.data(), target_.by_signal.size() - 1);
    return true;
  }

  void wake() {
    const std::uint64_t one = 1;
    // The counter is full only if the thread has been woken already.
    [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &one, sizeof one);
  }

  void run() {
    while (!stopping_) {
      std::array<pollfd, 2> sources{pollfd{.fd = wake_.get(), .events = POLLIN, .revents = 0},
                                    pollfd{.fd = listener_.get(), .events = POLLIN, .revents = 0}};
      ::poll(sources.data(), sources.size(), patience());
      std::uint64_t drained = 0;
      [[maybe_unused]] const ssize_t got = ::read(wake_.get(), &drained, sizeof drained);
      if (stopping_) return;
      dump_if_due();
      if ((sources[1].revents & POLLIN) != 0) {
        serve_client(
            listener_.descriptor(),
            [this](const std::string& request, const Reply& reply) { answer(request, reply); });
      }
    }
  }

  /// How long to sleep, in milliseconds.
  int patience() const {
    if (!dumps_ || (dumped_ == recorder_.incidents() && !requested_)) return -1;
    const auto left = next_dump_ - monotonic_now();
    return left <= Duration::zero() ? 0 : static_cast<int>(left / 1ms) + 1;
  }

  void dump_if_due() {
    const std::uint32_t incidents = recorder_.incidents();
    const Time now = monotonic_now();
    if (!dumps_ || (dumped_ == incidents && !requested_) || now < next_dump_) return;
    requested_ = false;
    write_dump(target_, dumped_ == incidents ? DumpReason::request : DumpReason::status, 0);
    dumped_ = incidents;
    next_dump_ = now + kDumpPause;
  }

  void answer(const std::string& request, const Reply& reply) {
    if (request == "flight") {
      const FlightHeader header = at_this_moment(target_, DumpReason::request, 0);
      emit_dump(recorder_, header, reply);
      return;
    }
    FlightSnapshot snapshot;
    const Time now = monotonic_now();
    if (!board_.read(snapshot)) snapshot.taken = now;
    const std::string line = status_line(identity_, snapshot, recorder_, now);
    reply(line.data(), line.size());
  }

  const FlightIdentity identity_;
  Recorder recorder_;
  Board<FlightSnapshot> board_;
  DumpTarget target_;
  bool dumps_ = false;
  bool signals_ = false;
  PrivateDescriptor listener_;
  PrivateDescriptor wake_;
  std::uint32_t rounds_ = 0;  // busy ones of the driver
  std::atomic<bool> requested_ = false;
  std::atomic<std::uint32_t> seen_ = 0;  // incidents that the thread was woken for
  std::uint32_t dumped_ = 0;             // incidents that are in the file; the thread's
  Time next_dump_{};
  std::atomic<bool> stopping_ = false;
  std::thread thread_;
};

Result<void> Flight::check(const FlightOptions& options) {
  if (options.directory.empty()) return {};
  const std::string what = "flight directory " + options.directory;
  std::string bare = options.directory;  // without "/" at its end, which names what is inside
  while (bare.size() > 1 && bare.ends_with('/')) bare.pop_back();
  const auto place = find_output_place(bare);
  if (!place) return fail(place.error().code, "flight directory " + place.error().message);
  if (::mkdirat(place->directory.get(), place->name.c_str(), 0700) != 0 && errno != EEXIST) {
    return fail_system(errno, what);
  }
  const auto directory = open_output_directory(options.directory);
  if (!directory && directory.error().system_errno == ENOTDIR) {
    return fail(Error::Code::invalid_argument, what + ": is not a directory, name another one");
  }
  if (!directory)
    return fail(directory.error().code, "flight directory " + directory.error().message);
  if (::faccessat(directory->get(), ".", W_OK | X_OK, 0) != 0) return fail_system(errno, what);
  return {};
}

Flight::Flight(const FlightOptions& options, const FlightIdentity& identity)
    : watch_(std::make_unique<Watch>(options, identity)) {}

Flight::~Flight() = default;

Recorder& Flight::recorder() {
  return watch_->recorder();
}

void Flight::publish(const FlightSnapshot& snapshot) {
  watch_->board().publish(snapshot);
}

bool Flight::wants_snapshot(bool busy) {
  return watch_->wants_snapshot(busy);
}

void Flight::request() {
  watch_->request();
}

void Flight::look() {
  watch_->look();
}

std::string status_socket_name(std::uint32_t user, std::uint32_t public_id, Rank rank) {
  return fmt::format("tarpon.{}.{:08x}.{}", user, public_id, rank);
}

}  // namespace tarpon
