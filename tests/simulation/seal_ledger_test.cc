// The ledger of keys and nonces, by sealed ports over the network in memory.
#include "tools/simulation/seal_ledger.h"

#include <gmock/gmock.h>

#include <cstring>

#include "transport/ports/sealed_port.h"
#include "transport/simulated/simulated_port.h"

namespace tarpon::seal_ledger_test {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

class SealLedgerTest : public ::testing::TestWithParam<bool> {
 protected:
  std::unique_ptr<SealedPort> port(Rank rank, std::byte key = std::byte{1},
                                   unsigned packets_of_key_shift = 22) {
    SealOptions options{.rank = rank,
                        .ranks = 3,
                        .encrypts = GetParam(),
                        .packets_of_key_shift = packets_of_key_shift};
    options.key.fill(key);
    return std::make_unique<SealedPort>(network_.make_port(rank), options,
                                        ledger_.next_port(seal::fastest_library()));
  }
  static void send(Port& port, Rank to) {
    TxPacket& frame = port.transmit_frames(1)[0];
    tarpon_header header{};
    header.length = 16;
    std::memcpy(frame.header, &header, sizeof header);
    frame.peer = to;
    frame.length = header.length;
    frame.payload = frame.room;
    frame.lender = kNoLender;
    std::memset(frame.room, 7, header.length);
    port.transmit({&frame, 1});
  }
  std::size_t receive(Port& port) {
    network_.advance_to(network_.now() + 1ms);
    return port.receive(network_.now()).size();
  }

  SimulatedNetwork network_{{.ranks = 3, .multicasts = true}};
  SealLedger ledger_;
};

TEST_P(SealLedgerTest, good_ports__use_no_nonce_twice__also_over_many_keys) {
  const auto a = port(0, std::byte{1}, 2), b = port(1, std::byte{1}, 2),
             c = port(2, std::byte{1}, 2);
  for (int i = 0; i < 100; ++i) {
    send(*a, 1);
    send(*a, kAllRanks);
    send(*b, 0);
    EXPECT_EQ(receive(*b), 2u);
    EXPECT_EQ(receive(*c), 1u);
    EXPECT_EQ(receive(*a), 1u);
  }
  EXPECT_THAT(ledger_.wrong(), IsEmpty());
  EXPECT_EQ(ledger_.sealed(), 300u);
  EXPECT_EQ(ledger_.opened(0), 100u);
  EXPECT_EQ(ledger_.opened(1), 200u);
  EXPECT_EQ(ledger_.opened(2), 100u);
}

/// Communicators that are split from a job share its port. With one of its own, each would count
/// from 0 under the same key.
TEST_P(SealLedgerTest, a_second_port_of_a_rank__is_found) {
  const auto job = port(0), part = port(0);
  send(*job, 1);
  EXPECT_THAT(ledger_.wrong(), IsEmpty());
  send(*part, 1);
  EXPECT_THAT(ledger_.wrong(), HasSubstr("1 packets have key and nonce of an earlier one"));
}

/// A job that goes on with another key, from packet 0 on.
TEST_P(SealLedgerTest, a_second_port_with_another_key__is_none) {
  const auto job = port(0), successor = port(0, std::byte{2});
  send(*job, 1);
  send(*successor, 1);
  EXPECT_THAT(ledger_.wrong(), IsEmpty());
}

TEST_P(SealLedgerTest, a_port_that_opens_what_it_should_not__is_found) {
  const seal::Key key{};
  const seal::Nonce nonce{};
  std::array<std::byte, 64> header{};
  std::array<std::byte, 16> payload{};
  const auto sealer = ledger_.next_port(seal::openssl_library());
  const auto opener = ledger_.next_port(seal::openssl_library());
  const auto seals = sealer->key(key), opens = opener->key(key);
  const seal::Tag tag = seals->authenticate(nonce, header, payload);
  EXPECT_TRUE(opens->verify(nonce, header, payload, tag));
  EXPECT_THAT(ledger_.wrong(), IsEmpty());
  EXPECT_TRUE(opens->verify(nonce, header, payload, tag));
  EXPECT_THAT(ledger_.wrong(), HasSubstr("and 1 that the port had opened before"));
  EXPECT_TRUE(seals->verify(nonce, header, payload, tag)) << "as if it had been reflected";
  EXPECT_THAT(ledger_.wrong(), HasSubstr("; 1 were opened that no other port had sealed"));
}

INSTANTIATE_TEST_SUITE_P(Modes, SealLedgerTest, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "sealed" : "keyed"; });

}  // namespace
}  // namespace tarpon::seal_ledger_test
