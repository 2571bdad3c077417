// What `tarpon xdp serve` refuses: ports of others, malformed requests, too many clients.
#include <fcntl.h>
#include <gmock/gmock.h>

#include <array>
#include <fstream>

#include "tests/support/served_network.h"
#include "transport/random.h"

namespace tarpon::test::xdp_refusals_test {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;
using xdp::HelperRequest;
using xdp::HelperStep;

using XdpRefusals = ServedNetworkTest;

TEST_F(XdpRefusals, claim__takes_ports_that_the_user_has_bound_itself) {
  serve();
  const FileDescriptor roots = udp_socket(kHere);
  std::optional<FileDescriptor> theirs;
  {
    const testing_support::Inside inside(*far_);
    theirs.emplace(udp_socket(kThere));
  }
  const auto refusal_of = [](int descriptor) {
    return as_user(kUser,
                   [descriptor] { return reason_of({.step = HelperStep::claim}, descriptor); });
  };
  const auto refusal_of_own = [](const std::function<FileDescriptor()>& make) {
    return as_user(kUser, [&make] {
      const FileDescriptor own = make();
      return reason_of({.step = HelperStep::claim}, own.get());
    });
  };
  EXPECT_EQ(refusal_of(roots.get()),
            fmt::format("the UDP socket is of user 0, not of user {}", kUser));
  EXPECT_EQ(refusal_of(theirs->get()), "the UDP socket is of another network namespace");
  EXPECT_EQ(refusal_of_own([] { return FileDescriptor(::socket(AF_INET, SOCK_DGRAM, 0)); }),
            "the UDP socket is not bound to a port");
  EXPECT_EQ(refusal_of_own([] { return FileDescriptor(::socket(AF_INET, SOCK_STREAM, 0)); }),
            "the descriptor is not an IPv4 UDP socket");
  EXPECT_EQ(refusal_of_own([] { return FileDescriptor(::open("/dev/null", O_RDWR)); }),
            "the descriptor is not an IPv4 UDP socket");
  EXPECT_EQ(refusal_of_own([] { return udp_socket("0.0.0.0"); }),
            "0.0.0.0 is not an address of va");
  EXPECT_EQ(refusal_of_own([] { return udp_socket("10.9.9.77"); }),
            "10.9.9.77 is not an address of va");
  EXPECT_EQ(refusal_of_own([] { return udp_socket("239.1.2.3"); }),
            "239.1.2.3 is not an address of va");
  EXPECT_EQ(open_ports(), 0u);
}

TEST_F(XdpRefusals, claim__a_port_has_one_client) {
  serve();
  const auto said = as_user(kUser, [] {
    const FileDescriptor own = udp_socket(kHere);
    const auto first = xdp::ServedPort::claim("va", own.get(), 7);
    if (!first) return first.error().message;
    return reason_of({.step = HelperStep::claim}, own.get());
  });
  EXPECT_EQ(said, "another client has the port");
}

TEST_F(XdpRefusals, look__from_another_network_namespace) {
  serve();
  const testing_support::Inside inside(*far_);
  const auto said = as_user(kUser, [] {
    const auto mode = xdp::look_for_helper("va");
    return mode ? std::string("served") : mode.error().message;
  });
  EXPECT_EQ(said, "tarpon xdp serve refuses: it serves another network namespace");
}

TEST_F(XdpRefusals, look__by_a_user_outside_the_group) {
  serve();
  const auto said = as_user(
      kUser,
      [] {
        const auto mode = xdp::look_for_helper("va");
        return mode ? std::string("served") : mode.error().message;
      },
      kOtherGroup);
  EXPECT_THAT(said, HasSubstr("does not admit this user at /run/tarpon/va.sock"));
}

TEST_F(XdpRefusals, malformed_requests_get_one_line_and_end_the_connection) {
  serve();
  const std::string malformed = "this is not a request of this version of Tarpon";
  const FileDescriptor own = udp_socket(kHere);
  EXPECT_EQ(reason_of({.step = HelperStep::claim}), "the request lacks its descriptor");
  EXPECT_EQ(reason_of({.step = HelperStep::look}), "the request lacks its descriptor");
  EXPECT_EQ(reason_of({.step = HelperStep::open}, own.get()),
            "the request carries a descriptor that it does not need");
  for (const HelperStep step : {HelperStep::socket, HelperStep::bind, HelperStep::open}) {
    EXPECT_EQ(reason_of({.step = step}), "no port is claimed");
  }
  HelperRequest wrong{.step = HelperStep::look};
  wrong.magic = 1;
  EXPECT_EQ(reason_of(wrong, own.get()), malformed);
  wrong = {.step = HelperStep::look};
  wrong.version = 9;
  EXPECT_EQ(reason_of(wrong, own.get()), malformed);
  std::array<char, 4096> garbage{};
  garbage.fill('g');
  for (const std::size_t bytes : {std::size_t{1}, sizeof(HelperRequest) - 1, garbage.size()}) {
    const FileDescriptor helper = connect();
    ASSERT_EQ(::send(helper.get(), garbage.data(), bytes, 0), static_cast<ssize_t>(bytes));
    EXPECT_EQ(reason_from(helper), malformed) << bytes;
  }
  const FileDescriptor silent = connect();
  ASSERT_EQ(::send(silent.get(), garbage.data(), 0, 0), 0);
  EXPECT_EQ(reply_of(silent).state, xdp::MessageState::ended);
}

TEST_F(XdpRefusals, descriptors_beyond_one_are_malformed_and_do_not_stay) {
  serve();
  const auto before = descriptors();
  const FileDescriptor own = udp_socket(kHere);
  const std::array<int, 8> many{own.get(), own.get(), own.get(), own.get(),
                                own.get(), own.get(), own.get(), own.get()};
  for (int i = 0; i < 20; ++i) {
    const FileDescriptor helper = connect();
    HelperRequest request{.step = HelperStep::claim};
    alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(sizeof many)> control{};
    iovec part{.iov_base = &request, .iov_len = sizeof request};
    msghdr header{};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    header.msg_control = control.data();
    header.msg_controllen = control.size();
    cmsghdr* const rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof many);
    std::memcpy(CMSG_DATA(rights), many.data(), sizeof many);
    ASSERT_EQ(::sendmsg(helper.get(), &header, 0), static_cast<ssize_t>(sizeof request));
    EXPECT_EQ(reason_from(helper), "this is not a request of this version of Tarpon");
  }
  EXPECT_TRUE(descriptors_become(before)) << descriptors() << ", before " << before;
}

/// Claims a port, then makes the requests; what the last one is answered.
std::string after_claim(const std::vector<HelperRequest>& requests, const FileDescriptor& helper,
                        const std::function<xdp::ReceivedMessage<xdp::HelperReply>()>& reply) {
  const FileDescriptor own = udp_socket("10.9.9.9");
  xdp::send_request(helper.get(), {.step = HelperStep::claim}, own.get());
  auto last = reply();
  for (const HelperRequest& request : requests) {
    if (last.state != xdp::MessageState::whole || last.message.refused != 0) break;
    xdp::send_request(helper.get(), request);
    last = reply();
  }
  if (last.state != xdp::MessageState::whole) return "no reply";
  return last.message.refused != 0 ? xdp::reason_of(last.message)
                                   : fmt::format("error {}", last.message.error);
}

TEST_F(XdpRefusals, requests_in_another_order_or_with_other_values) {
  serve();
  const auto said = [](const std::vector<HelperRequest>& requests) {
    return as_user(kUser, [&requests] {
      const FileDescriptor helper = connect();
      return after_claim(requests, helper, [&helper] { return reply_of(helper); });
    });
  };
  const HelperRequest make{.step = HelperStep::socket, .queue = 0};
  const HelperRequest bind{.step = HelperStep::bind, .queue = 0};
  EXPECT_EQ(said({}), "error 0");
  EXPECT_EQ(said({{.step = HelperStep::open}}), "no socket is bound");
  EXPECT_EQ(said({bind}), "no socket for queue 0 waits to be bound");
  EXPECT_EQ(said({make, {.step = HelperStep::bind, .queue = 1}}),
            "no socket for queue 1 waits to be bound");
  EXPECT_EQ(said({{.step = HelperStep::socket, .queue = 64}}), "queue 64: at most 63");
  EXPECT_THAT(said({make, {.step = HelperStep::bind, .queue = 0, .flags = XDP_SHARED_UMEM}}),
              StartsWith("flags 0x1: only 0x"));
  EXPECT_EQ(said({{.step = static_cast<HelperStep>(99)}}), "an unknown request");
  EXPECT_EQ(said({make, bind}), fmt::format("error {}", EINVAL)) << "no memory, no rings";
  EXPECT_EQ(said({make, {.step = HelperStep::open}}), "no socket is bound");
}

TEST_F(XdpRefusals, random_requests_end_nothing_but_their_connections) {
  constexpr std::uint64_t kSeed = 20261130;
  serve();
  Random random(kSeed);
  const FileDescriptor own = udp_socket(kHere);
  for (int i = 0; i < 1000; ++i) {
    const FileDescriptor helper = connect();
    ASSERT_TRUE(helper) << "seed " << kSeed << ", connection " << i;
    for (std::uint64_t left = random.below(6); left > 0; --left) {
      HelperRequest request{.step = static_cast<HelperStep>(random.below(8)),
                            .job = static_cast<std::uint32_t>(random.below(3)),
                            .queue = static_cast<std::uint32_t>(random.below(66)),
                            .flags = static_cast<std::uint16_t>(random.below(32)),
                            .busy_poll = static_cast<std::uint16_t>(random.below(3))};
      xdp::send_request(helper.get(), request, random.chance(0.4) ? own.get() : -1);
    }
  }
  EXPECT_EQ(as_user(kUser, [this] { return ServedRank(interface_).error; }), "");
  EXPECT_TRUE(ports_become(0));
}

TEST_F(XdpRefusals, clients_beyond_the_limit_and_clients_that_say_nothing) {
  serve();
  std::vector<FileDescriptor> clients;
  for (int i = 0; i < 64; ++i) {
    clients.push_back(connect());
    ASSERT_TRUE(clients.back());
  }
  EXPECT_EQ(reason_from(connect()), "it has 64 clients, the most that it serves");
  for (const FileDescriptor& client : clients) {
    EXPECT_EQ(reason_from(client), "no request within 5 s");
  }
  const FileDescriptor own = udp_socket(kHere);
  EXPECT_TRUE(xdp::ServedPort::claim("va", own.get(), 7));
}

}  // namespace
}  // namespace tarpon::test::xdp_refusals_test
