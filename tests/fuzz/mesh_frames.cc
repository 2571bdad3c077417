// What ranks and strangers send over the control mesh: the whole state machine of one rank, which
// is in the job and in a communicator that was split from it, from bytes to decisions. Input: a
// script of connections, bytes, frames of that communicator, ends and time.
#include <map>

#include "bpf/wire.h"
#include "collectives/membership/member.h"
#include "collectives/membership/mesh.h"
#include "collectives/rendezvous/control_frame.h"
#include "tests/fuzz/fuzz.h"

using namespace tarpon;
using fuzz::require;

namespace {

constexpr std::uint32_t kRanks = 4;
constexpr Rank kOwn = 1;
constexpr std::uint32_t kJob = 0x5eed;
constexpr std::uint16_t kPart = 9;
constexpr std::uint32_t kPartRanks = 3;
constexpr std::uint32_t kMeshMagic = 0x4d505454;

/// Streams that the machine may use, and those that it has closed.
class FakeNetwork : public mesh::Network {
 public:
  mesh::StreamId connect(Rank peer) override {
    require(peer < kRanks && peer != kOwn, "it connects to other ranks");
    return open();
  }
  std::size_t write(mesh::StreamId stream, std::string_view bytes) override {
    require(is_open(stream), "it writes to an open stream");
    return blocked ? bytes.size() / 2 : bytes.size();
  }
  void close(mesh::StreamId stream) override {
    require(is_open(stream), "it closes an open stream");
    open_.erase(stream);
  }

  mesh::StreamId open() {
    open_[++last_] = true;
    return last_;
  }
  bool is_open(mesh::StreamId stream) const { return open_.contains(stream); }
  void end(mesh::StreamId stream) { open_.erase(stream); }
  /// Some open stream; 0: there is none.
  mesh::StreamId pick(std::uint32_t number) const {
    if (open_.empty()) return 0;
    return std::next(open_.begin(), number % open_.size())->first;
  }
  bool blocked = false;

 private:
  std::map<mesh::StreamId, bool> open_;
  mesh::StreamId last_ = 0;
};

std::string hello_of(Rank rank) {
  std::string bytes;
  for (const std::uint32_t word : {kMeshMagic, TARPON_WIRE_VERSION, kJob, std::uint32_t{rank}}) {
    rendezvous::append_u32(bytes, word);
  }
  return bytes;
}

class Script {
 public:
  explicit Script(fuzz::Input input)
      : input_(input),
        mesh_(kOwn, kRanks, kJob, network_),
        member_({.rank = kOwn, .world_size = kRanks, .job = kJob, .codec_adapts = true},
                mesh_.job_line()) {
    member_.plans(Regroup::shrink).enter();
    line_.open();
    advance();
  }

  void run() {
    while (!input_.empty()) {
      step();
      advance();
      check();
    }
  }

 private:
  void advance() {
    mesh_.tick(now_);
    member_.advance(now_);
    part_.advance(now_);
  }

  void step() {
    const std::uint32_t what = input_.below(16);
    const mesh::StreamId stream = network_.pick(input_.byte());
    if (what == 0) {
      now_ += std::chrono::milliseconds(input_.byte()) * 8;
    } else if (what == 1) {
      network_.blocked = !network_.blocked;
    } else if (what <= 3) {
      const mesh::StreamId fresh = network_.open();
      mesh_.streams().accepted(fresh, now_);
      // A higher rank, or a stranger.
      if (what == 2 && network_.is_open(fresh)) {
        mesh_.streams().received(fresh, hello_of(static_cast<Rank>(2 + fresh % 2)), now_);
      }
    } else if (stream == 0) {
      return;
    } else if (what == 4) {
      network_.end(stream);
      mesh_.streams().ended(stream, "ended by the script", input_.below(2) == 1, now_);
    } else if (what == 5) {
      mesh_.streams().connected(stream, now_);
      if (network_.is_open(stream)) mesh_.streams().received(stream, hello_of(0), now_);
    } else if (what == 6) {
      mesh_.streams().writable(stream);
    } else if (what == 7) {
      const auto kind = static_cast<mesh::FrameKind>(1 + input_.below(16));
      const auto body = input_.bytes(input_.below(24));
      std::string frame;
      mesh::append_frames(frame, kind, fuzz::text_of(body.data(), body.size()), kPart);
      mesh_.streams().received(stream, frame, now_);
    } else {
      const auto bytes = input_.bytes(1 + input_.byte());
      mesh_.streams().received(stream, fuzz::text_of(bytes.data(), bytes.size()), now_);
    }
  }

  void check() {
    constexpr std::size_t kMost =
        kRanks * (mesh::Streams::kMaxUnsent + mesh::kMaxBody + 2 * mesh::kMaxFrameBody) + (1 << 20);
    require(mesh_.streams().buffered() <= kMost, "what is held for peers has a limit");
    while (const auto news = member_.next_news()) {
      require(news->rank < kRanks, "news of a rank of the job");
    }
    for (Rank rank = 0; rank < kRanks; ++rank) {
      const Standing standing = member_.facts().standing(rank);
      require(standing >= last_[rank], "no row falls");
      last_[rank] = standing;
    }
    if (member_.numbers_wanted()) member_.answer_numbers({{0, 1}, {7, 9}}, now_);
    static_cast<void>(member_.plans(Regroup::shrink).take_plan());
    while (const auto news = part_.next_news()) {
      require(news->rank < kPartRanks, "news of a rank of the communicator");
    }
    if (part_.numbers_wanted()) part_.answer_numbers({{0, 1}}, now_);
    require((line_.up() >> kPartRanks) == 0, "the line is up to its ranks");
  }

  fuzz::Input input_;
  FakeNetwork network_;
  Time now_{1s};
  mesh::Mesh mesh_;
  mesh::Member member_;
  mesh::PartLine& line_ = *mesh_.add(kPart, {3, kOwn, 0});
  mesh::Member part_{{.rank = 1,
                      .world_size = kPartRanks,
                      .job = kJob,
                      .communicator = kPart,
                      .codec_adapts = true},
                     line_};
  std::array<Standing, kRanks> last_{};
};

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Script(fuzz::Input(data, size)).run();
  return 0;
}
