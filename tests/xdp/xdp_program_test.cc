// bpf/tarpon.bpf.c in the kernel against the same parser in user space, by BPF_PROG_TEST_RUN.
#include <bpf/bpf.h>
#include <gtest/gtest.h>
#include <linux/bpf.h>

#include <array>
#include <functional>
#include <string>

#include "tests/support/frames.h"
#include "tests/support/private_network.h"
#include "transport/random.h"
#include "xdp/program.h"

namespace tarpon::xdp::xdp_program_test {
namespace {

using testing_support::Frame;
using testing_support::frame_entry;
using testing_support::kFrameAddress;
using testing_support::kFrameJob;
using testing_support::kFramePort;
using testing_support::VethPair;

constexpr std::uint32_t kTag = 9;
constexpr std::uint32_t kLowest = 100;

/// The program in the kernel, with one port that owns queue 0. With index 0 that queue's packets
/// find the port in the array, with another one in the hash.
class Kernel {
 public:
  explicit Kernel(std::uint32_t index)
      : index_(index), program_(Program::use(pair_.a(), AttachMode::native)) {}

  void open(std::uint64_t queues = 1) {
    ASSERT_TRUE(program_) << program_.error().message;
    const tarpon_port_key key{htonl(kFrameAddress), htons(kFramePort), 0};
    auto windows = program_->maps().open_port(key, frame_entry(queues, index_));
    ASSERT_TRUE(windows) << windows.error().message;
    windows_ = std::move(*windows);
    windows_.publish(kTag, kLowest);
  }

  /// XDP_PASS or XDP_DROP; -1 when the kernel does not run it at all.
  int run(const std::vector<std::byte>& frame) {
    bpf_test_run_opts options{};
    options.sz = sizeof options;
    options.data_in = frame.data();
    options.data_size_in = static_cast<std::uint32_t>(frame.size());
    options.repeat = 1;
    if (::bpf_prog_test_run_opts(program_->fd(), &options) != 0) return -1;
    return static_cast<int>(options.retval);
  }

  Verdicts verdicts() { return program_->maps().verdicts().value(); }
  Program& program() { return *program_; }
  PortWindows& windows() { return windows_; }

 private:
  const std::uint32_t index_;
  VethPair pair_;
  Result<Program> program_;
  PortWindows windows_;
};

/// What user space makes of the same frame.
tarpon_verdict judge(const std::vector<std::byte>& frame, std::uint64_t queues = 1) {
  tarpon_port_key key{};
  const tarpon_header* at = nullptr;
  __s32 payload_bytes = 0;
  const auto size = static_cast<std::uint32_t>(frame.size());
  tarpon_verdict verdict = tarpon_parse_frame(frame.data(), frame.data() + frame.size(), size, &key,
                                              &at, &payload_bytes);
  if (verdict != TARPON_VERDICT_RING) return verdict;
  if (key.address != htonl(kFrameAddress) || key.port != htons(kFramePort)) {
    return TARPON_VERDICT_NO_PORT;
  }
  verdict = tarpon_check_lower(frame.data(), testing_support::kFrameMac.data());
  if (verdict != TARPON_VERDICT_RING) return verdict;
  if (payload_bytes < 0) return TARPON_VERDICT_LENGTH;
  tarpon_header header;
  std::memcpy(&header, at, sizeof header);
  verdict = tarpon_verdict_of(
      tarpon_check_header(&header, kFrameJob, static_cast<std::uint32_t>(payload_bytes)));
  if (verdict != TARPON_VERDICT_RING) return verdict;
  if (tarpon_may_drop(&header) && tarpon_is_closed(tarpon_window(kTag, kLowest), &header)) {
    return TARPON_VERDICT_CLOSED;
  }
  return (queues & 1) == 0 ? TARPON_VERDICT_QUEUE : TARPON_VERDICT_RING;
}

int action_of(tarpon_verdict verdict) {
  return verdict == TARPON_VERDICT_CLOSED ? XDP_DROP : XDP_PASS;
}

struct Case {
  tarpon_verdict verdict;
  std::function<void(Frame&)> change;
};

class XdpProgramByIndexTest : public testing::TestWithParam<std::uint32_t> {};
INSTANTIATE_TEST_SUITE_P(FoundBy, XdpProgramByIndexTest, testing::Values(0u, 3u),
                         [](const auto& info) { return info.param == 0 ? "array" : "hash"; });

TEST_P(XdpProgramByIndexTest, every_verdict_is_reached_and_counted_once) {
  SKIP_WITHOUT_PRIVATE_NETWORK();
  Kernel kernel(GetParam());
  kernel.open();
  const std::vector<Case> cases{
      {TARPON_VERDICT_RING, [](Frame&) {}},
      {TARPON_VERDICT_NOT_IPV4, [](Frame& f) { f.ethernet.h_proto = htons(ETH_P_IPV6); }},
      {TARPON_VERDICT_NOT_IPV4, [](Frame& f) { f.ethernet.h_proto = htons(ETH_P_ARP); }},
      {TARPON_VERDICT_NOT_IPV4, [](Frame& f) { f.ip.version = 6; }},
      {TARPON_VERDICT_NOT_IPV4, [](Frame& f) { f.ip.ihl = 6; }},
      {TARPON_VERDICT_FRAGMENT, [](Frame& f) { f.ip.frag_off = htons(0x2000); }},
      {TARPON_VERDICT_FRAGMENT, [](Frame& f) { f.ip.frag_off = htons(1); }},
      {TARPON_VERDICT_RING, [](Frame& f) { f.ip.frag_off = htons(0x4000); }},
      {TARPON_VERDICT_NOT_UDP, [](Frame& f) { f.ip.protocol = IPPROTO_TCP; }},
      {TARPON_VERDICT_NO_PORT, [](Frame& f) { f.udp.dest = htons(7001); }},
      {TARPON_VERDICT_NO_PORT, [](Frame& f) { f.ip.daddr = htonl(kFrameAddress + 1); }},
      {TARPON_VERDICT_MAC, [](Frame& f) { f.ethernet.h_dest[0] ^= 1; }},
      {TARPON_VERDICT_MAC, [](Frame& f) { f.ethernet.h_dest[5] ^= 0x80; }},
      {TARPON_VERDICT_MAC, [](Frame& f) { std::memset(f.ethernet.h_dest, 0xff, ETH_ALEN); }},
      {TARPON_VERDICT_MAC,
       [](Frame& f) { std::memcpy(f.ethernet.h_dest, "\x01\x00\x5e\x00\x00\x05", ETH_ALEN); }},
      {TARPON_VERDICT_CHECKSUM, [](Frame& f) { f.checksum_error = 1; }},
      {TARPON_VERDICT_CHECKSUM, [](Frame& f) { f.checksum_error = 0x0100; }},
      {TARPON_VERDICT_LENGTH, [](Frame& f) { f.ip.tot_len = htons(60); }},
      {TARPON_VERDICT_LENGTH, [](Frame& f) { f.udp.len = htons(9); }},
      {TARPON_VERDICT_LENGTH, [](Frame& f) { f.ip.tot_len = htons(1400); }},
      {TARPON_VERDICT_MAGIC, [](Frame& f) { f.header.magic = 1; }},
      {TARPON_VERDICT_VERSION, [](Frame& f) { f.header.version = 9; }},
      {TARPON_VERDICT_JOB, [](Frame& f) { f.header.job = 6; }},
      {TARPON_VERDICT_TYPE, [](Frame& f) { f.header.type = TARPON_TYPE_END; }},
      {TARPON_VERDICT_FIELDS, [](Frame& f) { f.header.flags = 0x80; }},
      {TARPON_VERDICT_FIELDS, [](Frame& f) { f.header.stage = TARPON_MAX_STAGES; }},
      {TARPON_VERDICT_CLOSED,
       [](Frame& f) { f.header.tag = kTag, f.header.operation = kLowest - 1; }},
      {TARPON_VERDICT_RING, [](Frame& f) { f.header.tag = kTag, f.header.operation = kLowest; }},
      {TARPON_VERDICT_RING,
       [](Frame& f) { f.header.tag = kTag + 1, f.header.operation = kLowest - 1; }},
  };
  for (std::size_t i = 0; i < cases.size(); ++i) {
    Frame frame(64);
    cases[i].change(frame);
    const Verdicts before = kernel.verdicts();
    EXPECT_EQ(judge(frame.bytes()), cases[i].verdict) << "case " << i;
    EXPECT_EQ(kernel.run(frame.bytes()), action_of(cases[i].verdict)) << "case " << i;
    const Verdicts after = kernel.verdicts();
    for (std::size_t one = 0; one < after.size(); ++one) {
      EXPECT_EQ(after[one] - before[one], one == cases[i].verdict ? 1u : 0u)
          << "case " << i << ": " << name(static_cast<tarpon_verdict>(one));
    }
  }
  EXPECT_EQ(kernel.program().maps().late(GetParam()).value()[0], 1u);
}

TEST_P(XdpProgramByIndexTest, only_first_time_data_before_the_tail_is_dropped) {
  SKIP_WITHOUT_PRIVATE_NETWORK();
  Kernel kernel(GetParam());
  kernel.open();
  for (std::uint8_t type = TARPON_READY; type < TARPON_TYPE_END; ++type) {
    for (const int flags : {0, int{TARPON_FLAG_TAIL}, int{TARPON_FLAG_REPAIR}}) {
      Frame frame(64);
      frame.header.tag = kTag;
      frame.header.operation = kLowest - 5;
      frame.header.type = type;
      frame.header.flags = static_cast<std::uint8_t>(flags);
      EXPECT_EQ(kernel.run(frame.bytes()), type == TARPON_DATA && flags == 0 ? XDP_DROP : XDP_PASS);
    }
  }
}

TEST_P(XdpProgramByIndexTest, other_queues_take_the_kernels_path) {
  SKIP_WITHOUT_PRIVATE_NETWORK();
  Kernel kernel(GetParam());
  kernel.open(2);  // queue 1; the test runs on queue 0
  EXPECT_EQ(judge(Frame(64).bytes(), 2), TARPON_VERDICT_QUEUE);
  EXPECT_EQ(kernel.run(Frame(64).bytes()), XDP_PASS);
  EXPECT_EQ(kernel.verdicts()[TARPON_VERDICT_QUEUE], 1u);
}

TEST_P(XdpProgramByIndexTest, a_port_that_was_closed_or_replaced_is_not_found) {
  SKIP_WITHOUT_PRIVATE_NETWORK();
  Kernel kernel(GetParam());
  kernel.open();
  const tarpon_port_key key{htonl(kFrameAddress), htons(kFramePort), 0};
  ASSERT_TRUE(kernel.program().maps().close_port(key));
  EXPECT_EQ(kernel.run(Frame(64).bytes()), XDP_PASS);
  EXPECT_EQ(kernel.verdicts()[TARPON_VERDICT_NO_PORT], 1u);
  kernel.open();
  const tarpon_port_key other{htonl(kFrameAddress), htons(kFramePort + 1), 0};
  ASSERT_TRUE(kernel.program().maps().open_port(other, frame_entry(1, 3 - GetParam())));
  EXPECT_EQ(kernel.run(Frame(64).bytes()), XDP_PASS);
  EXPECT_EQ(kernel.verdicts()[TARPON_VERDICT_NO_PORT], 2u);
  ASSERT_TRUE(kernel.program().maps().close_port(key)) << "whose queue is another's now";
  Frame frame(64);
  frame.udp.dest = htons(kFramePort + 1);
  EXPECT_EQ(kernel.run(frame.bytes()), XDP_PASS);
  EXPECT_EQ(kernel.verdicts()[TARPON_VERDICT_RING], 1u);
}

TEST_P(XdpProgramByIndexTest, a_group_has_the_queues_and_windows_of_its_port) {
  SKIP_WITHOUT_PRIVATE_NETWORK();
  Kernel kernel(GetParam());
  kernel.open();
  constexpr std::uint32_t kGroup = 0xef010203;  // 239.1.2.3
  constexpr std::array<std::uint8_t, 6> kGroupMac{0x01, 0x00, 0x5e, 0x01, 0x02, 0x03};
  Frame frame(64);
  frame.ip.daddr = htonl(kGroup);
  std::copy(kGroupMac.begin(), kGroupMac.end(), frame.ethernet.h_dest);
  EXPECT_EQ(kernel.run(frame.bytes()), XDP_PASS);
  EXPECT_EQ(kernel.verdicts()[TARPON_VERDICT_NO_PORT], 1u);
  tarpon_port_entry entry = frame_entry(1, GetParam());
  std::copy(kGroupMac.begin(), kGroupMac.end(), entry.mac);
  ASSERT_TRUE(kernel.program().maps().open_group({htonl(kGroup), htons(kFramePort), 0}, entry));
  EXPECT_EQ(kernel.run(frame.bytes()), XDP_PASS) << "no socket is bound";
  EXPECT_EQ(kernel.verdicts()[TARPON_VERDICT_RING], 1u);
  frame.header.tag = kTag;
  frame.header.operation = kLowest - 1;
  EXPECT_EQ(kernel.run(frame.bytes()), XDP_DROP);
  EXPECT_EQ(kernel.run(Frame(64).bytes()), XDP_PASS) << "the port itself works as before";
  EXPECT_EQ(kernel.verdicts()[TARPON_VERDICT_RING], 2u);
}

TEST_P(XdpProgramByIndexTest, windows_of_an_earlier_owner_have_no_effect) {
  SKIP_WITHOUT_PRIVATE_NETWORK();
  Kernel kernel(GetParam());
  kernel.open();
  PortWindows earlier = std::move(kernel.windows());
  const tarpon_port_key key{htonl(kFrameAddress), htons(kFramePort), 0};
  const auto windows = kernel.program().maps().open_port(key, frame_entry(1, GetParam()));
  ASSERT_TRUE(windows) << windows.error().message;
  earlier.publish(kTag, kLowest);
  Frame frame(64);
  frame.header.tag = kTag;
  frame.header.operation = kLowest - 1;
  EXPECT_EQ(kernel.run(frame.bytes()), XDP_PASS);
  EXPECT_EQ(kernel.verdicts()[TARPON_VERDICT_CLOSED], 0u);
}

TEST(XdpProgramTest, a_million_random_and_mutated_frames_are_judged_alike) {
  SKIP_WITHOUT_PRIVATE_NETWORK();
  constexpr std::uint64_t kSeed = 20261121;
  constexpr int kFrames = 1'000'000;
  Random random(kSeed);
  Kernel kernel(0);
  kernel.open();
  Verdicts expected{};
  for (int i = 0; i < kFrames; ++i) {
    std::vector<std::byte> frame = Frame(static_cast<std::uint32_t>(random.below(200))).bytes();
    if (random.chance(0.1)) {
      for (std::byte& byte : frame) byte = static_cast<std::byte>(random.below(256));
    } else {
      for (std::uint64_t changes = random.below(4); changes > 0; --changes) {
        // Mostly the headers; in them the fields that decide.
        const std::uint64_t at = random.below(random.chance(0.9) ? 106 : frame.size());
        frame[at] = static_cast<std::byte>(random.below(256));
      }
      // Else next to no changed IPv4 header would come further than its checksum.
      if (random.chance(0.7)) testing_support::set_checksum(frame.data());
      if (random.chance(0.1)) frame.resize(14 + random.below(frame.size() - 13));
    }
    const tarpon_verdict verdict = judge(frame);
    const int action = kernel.run(frame);
    ASSERT_EQ(action, action_of(verdict)) << "seed " << kSeed << ", frame " << i;
    ++expected[verdict];
  }
  const Verdicts counted = kernel.verdicts();
  for (std::size_t one = 0; one < counted.size(); ++one) {
    EXPECT_EQ(counted[one], expected[one]) << name(static_cast<tarpon_verdict>(one));
  }
}

}  // namespace
}  // namespace tarpon::xdp::xdp_program_test
