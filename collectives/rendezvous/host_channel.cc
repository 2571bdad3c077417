// Rank 0's end of the star: collects from all, delivers to all.
#include <algorithm>

#include "collectives/rank_list.h"
#include "collectives/rendezvous/channel.h"
#include "collectives/rendezvous/hello.h"
#include "transport/clock.h"

namespace tarpon::rendezvous {
namespace {

class HostChannel final : public StarChannel {
 public:
  HostChannel(Seat seat, std::vector<Connection> peers)
      : StarChannel(std::move(seat)), peers_(std::move(peers)) {}

  Result<std::vector<std::string>> all_gather(const std::string& mine, Time deadline) override {
    if (auto error = begin_exchange(mine)) return fail(tell_all(*std::move(error)));
    Collection collection = collect(FrameKind::all_gather, mine, deadline, true);
    if (auto error = lack(collection)) return fail(tell_all(*std::move(error)));
    std::string bytes;
    for (const std::string& value : collection.values) {
      bytes += encode(Frame{FrameKind::all_gather, sequence(), UINT32_MAX, value});
    }
    if (auto error = deliver(std::move(bytes), deadline)) return fail(*std::move(error));
    return std::move(collection.values);
  }

  Result<std::vector<std::string>> gather(const std::string& mine, Time deadline,
                                          std::vector<Rank>& missing) override {
    missing.clear();
    if (auto error = begin_exchange(mine)) return fail(*std::move(error));
    Collection collection = collect(FrameKind::gather, mine, deadline, false);
    for (std::size_t rank = 1; rank < peers_.size(); ++rank) {
      if (collection.answers[rank] != Answer::given) missing.push_back(static_cast<Rank>(rank));
    }
    return std::move(collection.values);
  }

  Result<std::string> broadcast(const std::string& message, Time deadline) override {
    if (auto error = begin_exchange(message)) return fail(tell_all(*std::move(error)));
    auto bytes = encode(Frame{FrameKind::broadcast, sequence(), UINT32_MAX, message});
    if (auto error = deliver(std::move(bytes), deadline)) return fail(*std::move(error));
    return message;
  }

  bool is_broken() override {
    bool broken = false;
    for (std::size_t rank = 1; rank < peers_.size(); ++rank) {
      const Frame* const frame = next_frame(peers_[rank], sequence() + 1);
      broken = broken ||
               (frame == nullptr ? !peers_[rank].is_open() : frame->kind == FrameKind::failure);
    }
    return broken;
  }

  Error give_up(const Error& error, Time) override {
    (void)begin_exchange({});
    return tell_all(error);
  }

  void close() override {
    for (Connection& peer : peers_) peer.close();
  }

 private:
  enum class Answer {
    awaited,
    given,
    failed,     // the rank has given the exchange up
    left,       // the connection is closed
    elsewhere,  // the rank is in another exchange
  };

  /// What has been collected so far, by rank.
  struct Collection {
    std::vector<std::string> values;
    std::vector<Answer> answers;
    std::optional<Error> failure;  // of the last such rank
    std::string elsewhere;         // in words, of the last such rank
    Time deadline{};
  };

  /// Collects the messages of all ranks in this exchange until `deadline`. An exchange that needs
  /// all of them ends with the first one that cannot come, and early enough for the answer to reach
  /// the ranks that wait.
  Collection collect(FrameKind kind, const std::string& mine, Time deadline, bool needs_all) {
    Collection collection;
    collection.values.resize(peers_.size());
    collection.values[0] = mine;
    collection.answers.resize(peers_.size(), Answer::awaited);
    collection.answers[0] = Answer::given;
    collection.deadline = deadline;
    while (true) {
      const bool last_look = monotonic_now() >= collection.deadline;
      std::vector<pollfd> entries;
      bool lost = false;
      for (std::size_t rank = 1; rank < peers_.size(); ++rank) {
        Answer& answer = collection.answers[rank];
        if (answer == Answer::awaited) answer = hear(rank, kind, needs_all, collection);
        if (answer == Answer::awaited) entries.push_back(peers_[rank].poll_entry());
        lost = lost || (answer != Answer::awaited && answer != Answer::given);
      }
      if (entries.empty() || last_look || (needs_all && lost)) return collection;
      poll_until(entries, collection.deadline);
    }
  }

  /// The next frame of exchange `from` or a later one, if it has come. Earlier ones are late.
  static const Frame* next_frame(Connection& peer, std::uint32_t from) {
    peer.receive();
    while (peer.frame() != nullptr && peer.frame()->sequence < from) {
      peer.take();
      peer.receive();
    }
    return peer.frame();
  }

  Answer hear(std::size_t rank, FrameKind kind, bool needs_all, Collection& collection) {
    Connection& peer = peers_[rank];
    if (next_frame(peer, sequence()) == nullptr) {
      return peer.is_open() ? Answer::awaited : Answer::left;
    }
    if (peer.frame()->sequence == sequence() && peer.frame()->kind == FrameKind::failure) {
      const std::optional<Verdict> verdict = decode_verdict(peer.take().body);
      if (verdict) collection.failure = verdict->error;
      return Answer::failed;
    }
    if (peer.frame()->sequence > sequence() || peer.frame()->kind != kind) {
      collection.elsewhere = fmt::format(
          "rank {} calls {} as exchange {} where rank 0 calls {} as exchange {}: all ranks must "
          "make "
          "the same calls in the same order",
          rank, name(peer.frame()->kind), peer.frame()->sequence, name(kind), sequence());
      return Answer::elsewhere;
    }
    Frame frame = peer.take();
    if (needs_all) collection.deadline = std::min(collection.deadline, answer_by(frame.wait_ms));
    collection.values[rank] = std::move(frame.body);
    return Answer::given;
  }

  static std::optional<Error> lack(const Collection& collection) {
    const auto with = [&](Answer answer) {
      std::vector<std::size_t> ranks;
      for (std::size_t rank = 1; rank < collection.answers.size(); ++rank) {
        if (collection.answers[rank] == answer) ranks.push_back(rank);
      }
      return ranks;
    };
    if (collection.failure) return collection.failure;
    if (const auto ranks = with(Answer::failed); !ranks.empty()) {
      return Error::make(Error::Code::unavailable,
                         fmt::format("{} gave the exchange up", rank_list(ranks)));
    }
    if (const auto ranks = with(Answer::left); !ranks.empty()) return left(ranks);
    if (!collection.elsewhere.empty()) {
      return Error::make(Error::Code::mismatch, collection.elsewhere);
    }
    if (const auto ranks = with(Answer::awaited); !ranks.empty()) {
      return Error::make(Error::Code::timeout,
                         fmt::format("{} did not answer rank 0 by the deadline", rank_list(ranks)));
    }
    return std::nullopt;
  }

  static Error left(const std::vector<std::size_t>& ranks) {
    return Error::make(
        Error::Code::unavailable,
        fmt::format("the control channel of {} ended: {} has ended, and its own "
                    "output may say why",
                    rank_list(ranks), ranks.size() == 1 ? "its process" : "each process"));
  }

  /// Sends `bytes` to every rank that is connected; the error names those that did not get them.
  std::optional<Error> deliver(std::string bytes, Time deadline) {
    const auto shared = std::make_shared<const std::string>(std::move(bytes));
    for (Connection& peer : peers_) peer.send(shared);
    while (true) {
      std::vector<pollfd> entries;
      for (Connection& peer : peers_) {
        peer.flush();
        if (peer.sending()) entries.push_back(peer.poll_entry_for_sending());
      }
      if (entries.empty() || monotonic_now() >= deadline) break;
      poll_until(entries, deadline);
    }
    std::vector<std::size_t> gone, slow;
    for (std::size_t rank = 1; rank < peers_.size(); ++rank) {
      if (!peers_[rank].is_open()) gone.push_back(rank);
      if (peers_[rank].sending()) {
        slow.push_back(rank);
        peers_[rank].close();
      }
    }
    if (!gone.empty()) return left(gone);
    if (slow.empty()) return std::nullopt;
    return Error::make(
        Error::Code::timeout,
        fmt::format("{} did not take the message by the deadline: control connection "
                    "closed",
                    rank_list(slow)));
  }

  /// Tells the others why this exchange fails, if their sockets take it at once; returns `error`.
  Error tell_all(Error error) {
    (void)deliver(
        encode(Frame{FrameKind::failure, sequence(), UINT32_MAX, encode(Verdict{.error = error})}),
        monotonic_now());
    return error;
  }

  std::vector<Connection> peers_;  // by rank; [0] is never open
};

}  // namespace

std::unique_ptr<ControlChannel> make_host_channel(Seat seat, std::vector<Connection> peers) {
  return std::make_unique<HostChannel>(std::move(seat), std::move(peers));
}

}  // namespace tarpon::rendezvous
