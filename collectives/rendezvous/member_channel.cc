// The end of the star of every rank but 0.
#include "collectives/rendezvous/channel.h"
#include "collectives/rendezvous/hello.h"
#include "transport/clock.h"

namespace tarpon::rendezvous {
namespace {

class MemberChannel final : public StarChannel {
 public:
  MemberChannel(Seat seat, Connection host)
      : StarChannel(std::move(seat)), host_(std::move(host)) {}

  Result<std::vector<std::string>> all_gather(const std::string& mine, Time deadline) override {
    if (auto error = begin_exchange(mine)) return fail(*std::move(error));
    if (auto error = send(FrameKind::all_gather, mine, deadline)) return fail(*std::move(error));
    std::vector<std::string> values;
    for (std::uint32_t rank = 0; rank < world_size(); ++rank) {
      Result<std::string> value = next(FrameKind::all_gather, deadline);
      if (!value) return fail(std::move(value).error());
      values.push_back(*std::move(value));
    }
    return values;
  }

  Result<std::vector<std::string>> gather(const std::string& mine, Time deadline,
                                          std::vector<Rank>& missing) override {
    missing.clear();
    if (auto error = begin_exchange(mine)) return fail(*std::move(error));
    if (auto error = send(FrameKind::gather, mine, deadline)) return fail(*std::move(error));
    if (!host_.is_open()) return fail(host_left());
    return std::vector<std::string>();
  }

  Result<std::string> broadcast(const std::string&, Time deadline) override {
    (void)begin_exchange({});
    return next(FrameKind::broadcast, deadline);
  }

  bool is_broken() override {
    host_.receive();
    while (host_.frame() != nullptr && host_.frame()->sequence <= sequence()) {
      host_.take();
      host_.receive();
    }
    return host_.frame() != nullptr || !host_.is_open();
  }

  Error give_up(const Error& error, Time deadline) override {
    (void)begin_exchange({});
    (void)send(FrameKind::failure, encode(Verdict{.error = error}), deadline);
    return error;
  }

  void close() override { host_.close(); }

 private:
  std::optional<Error> send(FrameKind kind, const std::string& message, Time deadline) {
    host_.send(std::make_shared<const std::string>(
        encode(Frame{kind, sequence(), wait_ms(deadline), message})));
    while (host_.sending() && monotonic_now() < deadline) {
      std::vector<pollfd> entries{host_.poll_entry_for_sending()};
      poll_until(entries, deadline);
      host_.flush();
    }
    // A closed connection is no reason to stop here: next() still reads what rank 0 sent before it
    // closed.
    if (!host_.sending()) return std::nullopt;
    host_.close();
    return Error::make(
        Error::Code::timeout,
        "rank 0 did not take this rank's message by the deadline: control connection "
        "closed");
  }

  static Error host_left() {
    return Error::make(Error::Code::unavailable,
                       "the control channel of rank 0 ended: its process has ended, and its own "
                       "output may say why");
  }

  /// The body of the next frame of this exchange.
  Result<std::string> next(FrameKind kind, Time deadline) {
    while (true) {
      const bool last_look = monotonic_now() >= deadline;
      host_.receive();
      if (host_.frame() != nullptr) {
        if (host_.frame()->sequence >= sequence()) return accept(kind);
        host_.take();  // late: this rank gave that exchange up
        continue;
      }
      if (!host_.is_open()) {
        return fail(host_left());
      }
      if (last_look) {
        return fail(Error::Code::timeout, "rank 0 did not answer by the deadline");
      }
      std::vector<pollfd> entries{host_.poll_entry()};
      poll_until(entries, deadline);
    }
  }

  /// REQUIRES: a frame of this exchange or a later one.
  Result<std::string> accept(FrameKind kind) {
    const Frame& waiting = *host_.frame();
    if (waiting.sequence == sequence() && waiting.kind == FrameKind::failure) {
      const std::optional<Verdict> verdict = decode_verdict(host_.take().body);
      if (verdict && verdict->error) return fail(*verdict->error);
      return fail(Error::Code::unavailable, "rank 0 gave the exchange up");
    }
    if (waiting.sequence != sequence() || waiting.kind != kind) {
      return fail(
          Error::Code::mismatch,
          fmt::format("rank 0 is in exchange {} ({}) where rank {} is in exchange {} ({}): "
                      "all ranks must make the same calls in the same order",
                      waiting.sequence, name(waiting.kind), rank(), sequence(), name(kind)));
    }
    return host_.take().body;
  }

  Connection host_;
};

}  // namespace

std::unique_ptr<ControlChannel> make_member_channel(Seat seat, Connection host) {
  return std::make_unique<MemberChannel>(std::move(seat), std::move(host));
}

}  // namespace tarpon::rendezvous
