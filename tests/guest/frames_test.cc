// AF_XDP zero-copy on virtio-net by our library alone: what is granted, and that frames arrive.
#include <gtest/gtest.h>
#include <poll.h>

#include <cstring>
#include <optional>
#include <vector>

#include "tests/guest/guest.h"
#include "tests/support/frames.h"
#include "xdp/program.h"
#include "xdp/queue.h"

namespace tarpon::guest {
namespace {

using testing_support::Frame;
using xdp::AttachMode;
using xdp::CopyMode;

constexpr std::uint32_t kBatch = 64;
constexpr std::uint32_t kBatches = 20;
constexpr std::uint32_t kEmptyFrame = TARPON_FRAME_HEADER_BYTES - sizeof(ethhdr);  // of its MTU

/// Payload bytes that differ by host, frame and place.
std::vector<std::byte> frame_of(std::size_t host, std::uint32_t number, std::uint32_t payload) {
  std::vector<std::byte> bytes = Frame(payload).bytes();
  std::fill_n(bytes.begin(), ETH_ALEN, std::byte{0xff});  // the network floods these
  for (std::size_t i = TARPON_FRAME_HEADER_BYTES; i < bytes.size(); ++i) {
    bytes[i] = static_cast<std::byte>(i * 7 + number * 13 + host * 101);
  }
  return bytes;
}

/// Our program and a queue on one host's card.
class Station {
 public:
  Station(std::size_t host, CopyMode copy)
      : host_(host),
        interface_(enter(kHosts[host])),
        program_(xdp::Program::use(interface_, AttachMode::native)),
        queue_(xdp::Queue::open({.socket = {.interface = interface_, .copy = copy}})),
        attached_(xdp::attached_to(interface_)) {}

  void start() {
    ASSERT_TRUE(program_) << program_.error().message;
    ASSERT_TRUE(queue_) << queue_.error().message;
    const tarpon_port_key key{htonl(testing_support::kFrameAddress),
                              htons(testing_support::kFramePort), 0};
    tarpon_port_entry entry = testing_support::frame_entry();
    std::fill_n(entry.mac, ETH_ALEN, std::uint8_t{0xff});  // as frame_of() addresses them
    ASSERT_TRUE(program_->maps().open_port(key, entry));
    ASSERT_TRUE(program_->maps().insert_socket(0, queue_->fd()));
    ASSERT_TRUE(attached_) << attached_.error().message;
    ASSERT_TRUE(*attached_);
    EXPECT_TRUE((*attached_)->ours);
    EXPECT_EQ((*attached_)->mode, AttachMode::native);  // XDP_OPTIONS does not look at it
  }

  void send(std::uint32_t first, std::uint32_t count, std::uint32_t payload) {
    for (std::uint32_t i = 0; i < count; ++i) {
      const std::uint32_t frame = queue_->take();
      ASSERT_NE(frame, xdp::FramePool::kNone);
      const std::vector<std::byte> bytes = frame_of(host_, first + i, payload);
      std::memcpy(queue_->data(frame), bytes.data(), bytes.size());
      ASSERT_TRUE(queue_->send(frame, 0, static_cast<std::uint32_t>(bytes.size())));
    }
    kick();
  }

  /// The next `count` frames are those that the other host sent. Some seconds without any: missing.
  void expect(std::uint32_t first, std::uint32_t count, std::uint32_t payload) {
    std::vector<xdp::ReceivedChunk> chunks(kBatch);
    std::uint32_t taken = 0;
    for (int idle = 0; taken < count && idle < 100;) {
      const std::uint32_t arrived = queue_->receive(chunks);
      for (std::uint32_t i = 0; i < arrived; ++i, ++taken) {
        const std::vector<std::byte> wanted = frame_of(1 - host_, first + taken, payload);
        EXPECT_FALSE(chunks[i].continues);
        ASSERT_EQ(chunks[i].bytes.size(), wanted.size()) << "frame " << first + taken;
        ASSERT_EQ(std::memcmp(chunks[i].bytes.data(), wanted.data(), wanted.size()), 0)
            << "frame " << first + taken << " of " << payload << " payload bytes";
        queue_->give_back(chunks[i].frame);
      }
      queue_->refill();
      if (arrived > 0) continue;
      pollfd entry{queue_->fd(), POLLIN, 0};
      ::poll(&entry, 1, 50);
      ++idle;
    }
    ASSERT_EQ(taken, count) << "at " << kHosts[host_].name << ", " << payload << " payload bytes";
  }

  /// What was sent comes back from the driver, and nothing was lost or out of order on the way.
  void finish(std::uint64_t received) {
    for (int i = 0; queue_->in_flight() > 0 && i < 100; ++i) {
      kick();
      pollfd entry{queue_->fd(), POLLIN, 0};
      if (queue_->in_flight() > 0) ::poll(&entry, 1, 50);
    }
    EXPECT_EQ(queue_->in_flight(), 0u);
    EXPECT_EQ(queue_->violations(), 0u);
    const auto counted = queue_->statistics();
    ASSERT_TRUE(counted) << counted.error().message;
    EXPECT_EQ(counted->rx_dropped, 0u);
    EXPECT_EQ(counted->rx_ring_full, 0u);
    EXPECT_EQ(counted->rx_invalid_descriptors + counted->tx_invalid_descriptors, 0u);
    const auto verdicts = program_->maps().verdicts();
    ASSERT_TRUE(verdicts) << verdicts.error().message;
    EXPECT_EQ((*verdicts)[TARPON_VERDICT_RING], received);
  }

  const xdp::SocketGrant& grant() const { return queue_->grant(); }

 private:
  /// Copy mode takes as many frames at once as the socket's send buffer holds; the card gives them
  /// back by an interrupt.
  void kick() {
    for (int i = 0; i < 1000; ++i) {
      const xdp::Kick result = queue_->kick();
      ASSERT_NE(result, xdp::Kick::fatal) << std::strerror(queue_->error());
      queue_->reap();
      if (result == xdp::Kick::done) return;
      ::poll(nullptr, 0, 1);
    }
  }

  std::size_t host_;
  unsigned interface_;
  Result<xdp::Program> program_;
  Result<xdp::Queue> queue_;
  Result<std::optional<xdp::Attached>> attached_;
};

/// Frames in both directions at once, from the smallest to the largest for the MTU.
void exchange(Station& a, Station& b, int mtu) {
  std::uint64_t sent = 0;
  for (const std::uint32_t payload :
       {0u, 64u, 1000u, static_cast<std::uint32_t>(mtu) - kEmptyFrame}) {
    for (std::uint32_t batch = 0; batch < kBatches; ++batch) {
      const std::uint32_t first = batch * kBatch;
      ASSERT_NO_FATAL_FAILURE(a.send(first, kBatch, payload));
      ASSERT_NO_FATAL_FAILURE(b.send(first, kBatch, payload));
      ASSERT_NO_FATAL_FAILURE(a.expect(first, kBatch, payload));
      ASSERT_NO_FATAL_FAILURE(b.expect(first, kBatch, payload));
      sent += kBatch;
    }
  }
  a.finish(sent);
  b.finish(sent);
}

void exchange_by(CopyMode copy, bool zero_copy, int mtu) {
  ASSERT_NO_FATAL_FAILURE(set_mtu(mtu));
  Station a(0, copy), b(1, copy);
  ASSERT_NO_FATAL_FAILURE(a.start());
  ASSERT_NO_FATAL_FAILURE(b.start());
  EXPECT_EQ(a.grant().zero_copy, zero_copy);
  EXPECT_EQ(b.grant().zero_copy, zero_copy);
  exchange(a, b, mtu);
}

using ZeroCopyFramesTest = ZeroCopyTest;

TEST_F(ZeroCopyFramesTest, arrive_as_they_were_sent) {
  exchange_by(CopyMode::zero_copy, true, 1500);
}

TEST_F(ZeroCopyFramesTest, arrive_up_to_the_largest_of_one_buffer) {
  exchange_by(CopyMode::zero_copy, true, 3498);
}

TEST_F(ZeroCopyFramesTest, zero_copy_is_taken_where_it_is_offered_and_not_asked_for) {
  exchange_by(CopyMode::automatic, true, 1500);
}

TEST(FramesTest, arrive_in_copy_mode__which_the_grant_tells_apart) {
  exchange_by(CopyMode::copy, false, 1500);
}

}  // namespace
}  // namespace tarpon::guest
