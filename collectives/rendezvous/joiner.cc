// Connecting to rank 0 until it answers.
#include "collectives/rendezvous/joiner.h"

#include <arpa/inet.h>
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>

#include "collectives/rank_list.h"
#include "collectives/rendezvous/waiting_notice.h"
#include "transport/clock.h"
#include "transport/wipe.h"
#include "xdp/base/printable.h"
#include "xdp/base/system_limits.h"

namespace tarpon::rendezvous {
namespace {

constexpr Duration kFirstPause = 10ms;
constexpr Duration kLongestPause = 250ms;
constexpr const char* kForeign = "another service answers there, not rank 0 of a Tarpon job";
constexpr std::size_t kLongestBeginning = 16;  // of its answer, in a message
constexpr Duration kFileCheck = 100ms;         // between checks whether the file has been replaced

class Joiner {
 public:
  Joiner(const Address& address, Hello hello, Time deadline, Duration timeout,
         RendezvousObserver* observer, std::shared_ptr<const TlsContext> tls)
      : address_(address),
        hello_(std::move(hello)),
        deadline_(deadline),
        timeout_(timeout),
        notice_(observer),
        tls_(std::move(tls)) {}

  Result<Joined> run() {
    Duration pause = kFirstPause;
    while (true) {
      const Result<AddressFile> target = find();
      if (!target && target.error().code == Error::Code::invalid_argument) {
        return fail(target.error());
      }
      if (target) {
        if (std::optional<Result<Joined>> answer = try_at(*target)) return *std::move(answer);
      } else {
        reason_ = target.error().message;
      }
      notice_.look(
          [&] { return fmt::format("waiting for rank 0 at {}: {}", address_.text, reason_); });
      sleep_until(std::min(deadline_, monotonic_now() + pause));
      if (monotonic_now() >= deadline_) return fail(unreachable());
      pause = std::min(pause * 2, kLongestPause);
    }
  }

 private:
  /// Finds the address at which rank 0 should be now.
  Result<AddressFile> find() const {
    if (address_.is_file()) {
      if (auto content = read_address_file(address_.path)) return *content;
      return fail(Error::Code::unavailable, "rank 0 has left no address in that file");
    }
    const auto resolved = resolve(address_.host, address_.port);
    if (!resolved) return fail(resolved.error());
    return AddressFile{*resolved, 0};
  }

  /// Tries to join at `target`. Nothing when another try is worthwhile: `reason_` says what failed.
  std::optional<Result<Joined>> try_at(const AddressFile& target) {
    port_ = ntohs(target.address.sin_port);
    loopback_ = (ntohl(target.address.sin_addr.s_addr) >> 24) == 127;
    Result<FileDescriptor> socket = connect_to(target.address, deadline_);
    if (!socket) {
      if (lacks_resources(socket.error().system_errno)) {
        return Result<Joined>(fail(with_limit(socket.error())));
      }
      // An attempt that the deadline cut short says less than the one before it.
      const bool cut = socket.error().code == Error::Code::timeout && monotonic_now() >= deadline_;
      if (!cut || reason_.empty()) reason_ = socket.error().message;
      return std::nullopt;
    }
    Connection connection(SecureSocket(*std::move(socket), tls_, SecureSocket::End::client),
                          kLargestHello);
    hello_.nonce = target.nonce;
    connection.send(std::make_shared<const std::string>(
        encode(Frame{FrameKind::hello, 0, wait_ms(deadline_), encode(hello_)})));
    if (!await_verdict(connection, target)) {
      if (auto text = secret_text(connection)) return refused(*std::move(text));
      return std::nullopt;
    }

    Frame frame = connection.take();
    const WipeAtEnd wipe(frame.body);  // it has the key
    const std::optional<Verdict> verdict =
        frame.kind == FrameKind::verdict ? decode_verdict(frame.body) : std::nullopt;
    if (!verdict) {
      reason_ = kForeign;
      return std::nullopt;
    }
    if (verdict->error && verdict->error->code == Error::Code::permission) {
      return refused(verdict->error->message);
    }
    if (verdict->error) return Result<Joined>(fail(*verdict->error));
    connection.allow(kLargestBody);
    if ((tls_ != nullptr) != verdict->packet_key.has_value()) {
      reason_ = kForeign;
      return std::nullopt;
    }
    return Joined{std::move(connection), verdict->job, verdict->public_id, verdict->packet_key};
  }

  /// Waits for the verdict. Returns whether a whole frame has come.
  bool await_verdict(Connection& connection, const AddressFile& target) {
    while (true) {
      const bool last_look = monotonic_now() >= deadline_;
      connection.receive();  // first: it ends the handshake that sending waits for
      connection.flush();
      if (connection.frame() != nullptr) return true;
      if (!connection.is_open()) {
        reason_ = closed_reason(connection);
        return false;
      }
      reason_ = "connected, and no answer";
      if (last_look || is_stale(target)) return false;
      notice_.look(
          [&] {
            return fmt::format("connected to {}: waiting for rank 0 to meet the other ranks",
                               address_.text);
          },
          true);
      std::vector<pollfd> entries{connection.poll_entry()};
      const Time until = std::min(deadline_, notice_.due());
      poll_until(entries,
                 address_.is_file() ? std::min(until, monotonic_now() + kFileCheck) : until);
    }
  }

  /// Why the other end of `connection`, which is closed, is not rank 0.
  static std::string closed_reason(const Connection& connection) {
    const std::string words = printable(connection.beginning(), kLongestBeginning);
    if (connection.state() == Connection::State::malformed) {
      return fmt::format("{}: it says \"{}\"", kForeign, words);
    }
    return "the connection was closed without an answer";
  }

  /// Rank 0 and this rank have not the same secret. With a file it may be another rank 0.
  std::optional<Result<Joined>> refused(std::string text) {
    refusal_ = std::move(text);
    if (!address_.is_file()) return Result<Joined>(fail(Error::Code::mismatch, refusal_));
    reason_ = refusal_;
    return std::nullopt;
  }

  /// The refusal, if rank 0 lacks the secret of this rank; nullopt: it does not.
  std::optional<std::string> secret_text(const Connection& connection) const {
    constexpr const char* kSecretRemedy =
        "give all ranks the same --secret-file (TARPON_SECRET_FILE)";
    const SecureSocket::Trouble trouble = connection.trouble();
    if (trouble == SecureSocket::Trouble::plain) {
      return fmt::format("this rank has a secret, and rank 0 at {} has none: {}", address_.text,
                         kSecretRemedy);
    }
    if (trouble == SecureSocket::Trouble::other_secret) {
      return fmt::format("rank 0 at {} has another secret than this rank: {}", address_.text,
                         kSecretRemedy);
    }
    return std::nullopt;
  }

  /// Whether the file has been replaced: a silent stranger may have got the port that it named
  /// before.
  bool is_stale(const AddressFile& target) const {
    if (!address_.is_file()) return false;
    const auto content = read_address_file(address_.path);
    return content && content->nonce != target.nonce;
  }

  Error unreachable() const {
    if (!refusal_.empty()) return Error::make(Error::Code::mismatch, refusal_);
    std::string text = fmt::format("cannot reach rank 0 at {} within {}: {}", address_.text,
                                   duration_text(timeout_), reason_);
    if (reason_.starts_with(kForeign)) {
      text += ": choose another port, or stop that service";
      return Error::make(Error::Code::timeout, std::move(text));
    }
    text += ": is rank 0 running";
    if (port_ != 0) {
      text += fmt::format(", and is TCP port {} open from this host to it?", port_);
      if (loopback_) {
        text +=
            " That loopback address is on this host: if rank 0 runs on another one, give an "
            "address of that host.";
      }
    } else {
      text += address_.is_file() ? ", and does it see the same file?" : "?";
    }
    return Error::make(Error::Code::timeout, std::move(text));
  }

  const Address& address_;
  Hello hello_;
  Time deadline_;
  Duration timeout_;
  std::string reason_;
  std::string refusal_;     // the latest, for want of the same secret
  std::uint16_t port_ = 0;  // tried last; 0: none found
  bool loopback_ = false;   // that address is on this host
  WaitingNotice notice_;
  const std::shared_ptr<const TlsContext> tls_;
};

}  // namespace

Result<Joined> join_rank_0(const Address& address, Hello hello, Time deadline, Duration timeout,
                           RendezvousObserver* observer, std::shared_ptr<const TlsContext> tls) {
  return Joiner(address, std::move(hello), deadline, timeout, observer, std::move(tls)).run();
}

}  // namespace tarpon::rendezvous
