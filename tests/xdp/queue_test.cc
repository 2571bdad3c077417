// AF_XDP queues over a veth pair: frames of all sizes, ownership, life cycle.
#include "xdp/queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <cstring>
#include <vector>

#include "tests/support/frames.h"
#include "tests/support/private_network.h"
#include "xdp/program.h"

namespace tarpon::xdp::queue_test {
namespace {

using testing_support::Frame;
using testing_support::frame_entry;
using testing_support::kFrameAddress;
using testing_support::kFramePort;
using testing_support::VethPair;

QueueOptions options_for(unsigned interface, std::uint32_t frame_bytes = kFrameBytes) {
  QueueOptions options;
  options.socket.interface = interface;
  options.transmit_bytes = frame_bytes;
  return options;
}

std::vector<std::byte> packet(std::uint32_t payload_bytes, std::uint32_t number) {
  return Frame(payload_bytes).bytes(static_cast<std::uint8_t>(number));
}

class Receiver {
 public:
  Receiver(unsigned interface, std::uint32_t frame_bytes = kFrameBytes)
      : program_(Program::use(interface, AttachMode::native)),
        queue_(Queue::open(options_for(interface, frame_bytes))) {}

  void check() {
    ASSERT_TRUE(program_) << program_.error().message;
    ASSERT_TRUE(queue_) << queue_.error().message;
    ASSERT_TRUE(program_->maps().insert_socket(0, queue_->fd()));
    const tarpon_port_key key{htonl(kFrameAddress), htons(kFramePort), 0};
    auto windows = program_->maps().open_port(key, frame_entry());
    ASSERT_TRUE(windows) << windows.error().message;
    windows_ = std::move(*windows);
  }

  Program& program() { return *program_; }
  Queue& queue() { return *queue_; }
  PortWindows& windows() { return windows_; }

  /// Whole frames, put together; what does not come within a second is missing.
  std::vector<std::vector<std::byte>> take(std::size_t wanted) {
    std::vector<std::vector<std::byte>> frames;
    std::vector<std::byte> part;
    std::vector<ReceivedChunk> chunks(64);
    for (int idle = 0; frames.size() < wanted && idle < 20;) {
      const std::uint32_t count = queue_->receive(chunks);
      if (count == 0) {
        pollfd entry{queue_->fd(), POLLIN, 0};
        ::poll(&entry, 1, 50);
        ++idle;
      }
      for (std::uint32_t i = 0; i < count; ++i) {
        part.insert(part.end(), chunks[i].bytes.begin(), chunks[i].bytes.end());
        queue_->give_back(chunks[i].frame);
        if (!chunks[i].continues) frames.push_back(std::exchange(part, {}));
      }
      queue_->refill();
    }
    return frames;
  }

 private:
  Result<Program> program_;
  Result<Queue> queue_;
  PortWindows windows_;
};

void send_all(Queue& queue, std::uint32_t count, std::uint32_t payload_bytes) {
  for (std::uint32_t sent = 0; sent < count;) {
    const std::uint32_t frame = queue.take();
    if (frame == FramePool::kNone) {
      queue.kick();
      queue.reap();
      continue;
    }
    const std::vector<std::byte> bytes = packet(payload_bytes, sent);
    std::memcpy(queue.data(frame) + 6, bytes.data(), bytes.size());
    ASSERT_TRUE(queue.send(frame, 6, static_cast<std::uint32_t>(bytes.size())));
    if (++sent % 32 == 0) queue.kick();
  }
  for (int i = 0; queue.in_flight() > 0 && i < 1000; ++i) {
    ASSERT_NE(queue.kick(), Kick::fatal);
    queue.reap();
  }
}

TEST(QueueTest, frames_of_every_size_arrive_as_they_were_sent) {
  SKIP_WITHOUT_PRIVATE_NETWORK();
  const VethPair pair;
  Receiver receiver(pair.b());
  receiver.check();
  Result<Program> peer = Program::use(pair.a(), AttachMode::native);
  ASSERT_TRUE(peer) << peer.error().message;
  auto sender = Queue::open(options_for(pair.a()));
  ASSERT_TRUE(sender) << sender.error().message;
  EXPECT_FALSE(sender->grant().zero_copy);
  for (const std::uint32_t payload : {0u, 1u, 64u, 1000u, 1408u}) {
    send_all(*sender, 100, payload);
    const auto frames = receiver.take(100);
    ASSERT_EQ(frames.size(), 100u) << payload;
    for (std::uint32_t i = 0; i < frames.size(); ++i) {
      ASSERT_EQ(frames[i], packet(payload, i)) << "frame " << i << " of " << payload;
    }
  }
  EXPECT_EQ(sender->violations() + receiver.queue().violations(), 0u);
  EXPECT_EQ(sender->free_frames(), 512u);
  const auto verdicts = receiver.program().maps().verdicts();
  ASSERT_TRUE(verdicts);
  EXPECT_EQ((*verdicts)[TARPON_VERDICT_RING], 500u);
}

TEST(QueueTest, frames_of_several_chunks_arrive_as_they_were_sent) {
  SKIP_WITHOUT_PRIVATE_NETWORK();
  const VethPair pair(9000);
  Receiver receiver(pair.b(), 9216);
  receiver.check();
  auto peer = Program::use(pair.a(), AttachMode::native);
  ASSERT_TRUE(peer) << peer.error().message;
  auto sender = Queue::open(options_for(pair.a(), 9216));
  ASSERT_TRUE(sender) << sender.error().message;
  for (const std::uint32_t payload : {1408u, 4096u, 8896u}) {
    send_all(*sender, 50, payload);
    const auto frames = receiver.take(50);
    ASSERT_EQ(frames.size(), 50u) << payload;
    for (std::uint32_t i = 0; i < frames.size(); ++i) {
      ASSERT_EQ(frames[i], packet(payload, i)) << "frame " << i << " of " << payload;
    }
  }
  EXPECT_EQ(sender->violations() + receiver.queue().violations(), 0u);
}

TEST(QueueTest, closed_operations_die_in_the_driver_and_are_counted_by_sender) {
  SKIP_WITHOUT_PRIVATE_NETWORK();
  const VethPair pair;
  Receiver receiver(pair.b());
  receiver.check();
  auto peer = Program::use(pair.a(), AttachMode::native);
  ASSERT_TRUE(peer);
  auto sender = Queue::open(options_for(pair.a()));
  ASSERT_TRUE(sender) << sender.error().message;
  receiver.windows().publish(0, 1);  // operation 0 of tag 0 is over
  send_all(*sender, 10, 64);
  EXPECT_EQ(receiver.take(1).size(), 0u);
  const auto late = receiver.program().maps().late(0);
  ASSERT_TRUE(late);
  EXPECT_EQ((*late)[0], 10u);
  receiver.windows().publish(0, 0);
  send_all(*sender, 10, 64);
  EXPECT_EQ(receiver.take(10).size(), 10u);
}

TEST(QueueTest, nothing_invalid_reaches_the_kernel) {
  SKIP_WITHOUT_PRIVATE_NETWORK();
  const VethPair pair;
  auto queue = Queue::open(options_for(pair.a()));
  ASSERT_TRUE(queue) << queue.error().message;
  struct Case {
    std::uint32_t offset;
    std::uint32_t bytes;
  };
  for (const Case& one : {Case{0, 0}, Case{0, kFrameBytes + 1}, Case{kFrameBytes - 32, 64},
                          Case{kFrameBytes, 64}, Case{0xffffffff, 64}, Case{64, 0xffffffff}}) {
    const std::uint32_t frame = queue->take();
    EXPECT_FALSE(queue->send(frame, one.offset, one.bytes)) << one.offset << " " << one.bytes;
  }
  EXPECT_EQ(queue->free_frames(), 512u);
  EXPECT_FALSE(queue->send(0, 0, 64)) << "a frame to receive into";
  EXPECT_FALSE(queue->send(0xfffffff0, 0, 64)) << "beyond the memory";
  EXPECT_FALSE(queue->send(2100, 0, 64)) << "not taken";
  EXPECT_EQ(queue->violations(), 3u);
  queue->kick();
  EXPECT_EQ(queue->in_flight(), 0u);
  EXPECT_EQ(queue->statistics()->tx_invalid_descriptors, 0u);
}

TEST(QueueTest, a_queue_has_one_owner_and_is_free_after_it) {
  SKIP_WITHOUT_PRIVATE_NETWORK();
  const VethPair pair;
  for (int i = 0; i < 3; ++i) {
    auto first = Queue::open(options_for(pair.a()));
    ASSERT_TRUE(first) << first.error().message;
    auto second = Queue::open(options_for(pair.a()));
    ASSERT_FALSE(second);
    EXPECT_EQ(second.error().code, Error::Code::unavailable);
    EXPECT_THAT(second.error().message, testing::HasSubstr("another AF_XDP socket"));
  }
}

TEST(QueueTest, zero_copy_on_veth_is_refused_by_name) {
  SKIP_WITHOUT_PRIVATE_NETWORK();
  const VethPair pair;
  QueueOptions options = options_for(pair.a());
  options.socket.copy = CopyMode::zero_copy;
  auto queue = Queue::open(options);
  ASSERT_FALSE(queue);
  EXPECT_THAT(queue.error().message, testing::HasSubstr("zero-copy"));
}

}  // namespace
}  // namespace tarpon::xdp::queue_test
