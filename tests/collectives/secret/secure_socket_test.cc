// Two ends of a socket pair: with the same secret, with different ones, and one without.
#include "collectives/secret/secure_socket.h"

#include <gtest/gtest.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/secrets.h"

namespace tarpon::secure_socket_test {
namespace {

using testing_support::secret;
using End = SecureSocket::End;
using Trouble = SecureSocket::Trouble;

std::shared_ptr<const TlsContext> context(int number = 1) {
  return *TlsContext::make(secret(number).get());
}

std::pair<FileDescriptor, FileDescriptor> socket_pair() {
  int ends[2];
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
  return {FileDescriptor(ends[0]), FileDescriptor(ends[1])};
}

struct Pair {
  Pair(std::shared_ptr<const TlsContext> of_client, std::shared_ptr<const TlsContext> of_server) {
    auto [a, b] = socket_pair();
    client = SecureSocket(std::move(a), std::move(of_client), End::client);
    server = SecureSocket(std::move(b), std::move(of_server), End::server);
  }
  SecureSocket client, server;
};

/// Sends `sent` from one end to the other in as many steps as it takes; returns what has come.
std::string carry(SecureSocket& from, SecureSocket& to, const std::string& sent) {
  std::string come;
  std::size_t gone = 0;
  std::array<char, 16384> piece;
  for (int round = 0; round < 100'000 && come.size() < sent.size(); ++round) {
    if (gone < sent.size()) {
      const ssize_t wrote = from.write(sent.data() + gone, sent.size() - gone);
      if (wrote > 0) gone += static_cast<std::size_t>(wrote);
      if (wrote < 0 && errno != EAGAIN) break;
    }
    const ssize_t got = to.read(piece.data(), piece.size());
    if (got > 0) come.append(piece.data(), static_cast<std::size_t>(got));
    if (got == 0 || (got < 0 && errno != EAGAIN)) break;
  }
  return come;
}

TEST(SecureSocketTest, same_secret__carries_bytes_both_ways) {
  Pair pair(context(), context());
  EXPECT_TRUE(pair.client.is_encrypted());
  std::string large;
  for (int i = 0; i < 300'000; ++i) large.push_back(static_cast<char>(i * 7));
  for (const std::string& sent : {std::string("hello"), large}) {
    EXPECT_EQ(carry(pair.client, pair.server, sent), sent);
    EXPECT_EQ(carry(pair.server, pair.client, sent), sent);
  }
  pair.client.reset();
  char byte = 0;
  EXPECT_EQ(pair.server.read(&byte, 1), 0);
}

TEST(SecureSocketTest, handshake__ends_before_data__and_nothing_stays_in_the_socket_object) {
  Pair pair(context(), context());
  bool client = false, server = false;
  for (int round = 0; round < 10 && !(client && server); ++round) {
    client = client || pair.client.handshake() == 1;
    server = server || pair.server.handshake() == 1;
  }
  ASSERT_TRUE(client && server);
  // Each read takes one record: poll() says whether another one waits.
  for (const char* text : {"one", "two"}) ASSERT_EQ(pair.client.write(text, 3), 3);
  std::array<char, 64> piece;
  EXPECT_EQ(pair.server.read(piece.data(), piece.size()), 3);
  pollfd entry{pair.server.get(), POLLIN, 0};
  EXPECT_EQ(poll(&entry, 1, 0), 1);
  EXPECT_EQ(pair.server.read(piece.data(), piece.size()), 3);
  EXPECT_EQ(poll(&entry, 1, 0), 0);
}

TEST(SecureSocketTest, other_secret__is_found_by_both_ends__and_carries_nothing) {
  Pair pair(context(1), context(2));
  EXPECT_EQ(carry(pair.client, pair.server, "hello"), "");
  EXPECT_EQ(pair.server.trouble(), Trouble::other_secret);
  char byte = 0;
  EXPECT_LT(pair.client.read(&byte, 1), 0);
  EXPECT_EQ(errno, EPROTO);
  EXPECT_EQ(pair.client.trouble(), Trouble::other_secret);
}

/// A server that shows a certificate in place of the proof of the secret.
struct Impostor {
  explicit Impostor(FileDescriptor given) : socket(std::move(given)) {
    context = SSL_CTX_new(TLS_server_method());
    EVP_PKEY* const key = EVP_EC_gen("P-256");
    X509* const certificate = X509_new();
    X509_gmtime_adj(X509_getm_notBefore(certificate), 0);
    X509_gmtime_adj(X509_getm_notAfter(certificate), 3600);
    X509_set_pubkey(certificate, key);
    EXPECT_GT(X509_sign(certificate, key, EVP_sha256()), 0);
    EXPECT_EQ(SSL_CTX_use_certificate(context, certificate), 1);
    EXPECT_EQ(SSL_CTX_use_PrivateKey(context, key), 1);
    X509_free(certificate);
    EVP_PKEY_free(key);
    tls = SSL_new(context);
    SSL_set_fd(tls, socket.get());
    SSL_set_accept_state(tls);
  }
  Impostor(const Impostor&) = delete;
  ~Impostor() {
    SSL_free(tls);
    SSL_CTX_free(context);
  }
  FileDescriptor socket;
  SSL_CTX* context = nullptr;
  SSL* tls = nullptr;
};

TEST(SecureSocketTest, server_with_a_certificate__is_not_believed) {
  auto [a, b] = socket_pair();
  SecureSocket client(std::move(a), context(), End::client);
  Impostor impostor(std::move(b));
  bool failed = false;
  char byte = 0;
  for (int round = 0; round < 10 && !failed; ++round) {
    ASSERT_NE(client.handshake(), 1);
    failed = errno != EAGAIN;
    (void)SSL_write(impostor.tls, "verdict", 7);
    ASSERT_LE(client.write("hello", 5), 0);
    ASSERT_LE(client.read(&byte, 1), 0);
    ERR_clear_error();
  }
  EXPECT_TRUE(failed);
  EXPECT_EQ(client.trouble(), Trouble::other_secret);
}

TEST(SecureSocketTest, end_without_a_secret__is_known) {
  // The last four look like records of TLS at first.
  for (const std::string& words :
       {std::string("GET / HTTP/1.0\r\n\r\n"), std::string(1, '\0'), "\x14" + std::string(40, '\0'),
        "\x15" + std::string(40, '\0'), "\x16" + std::string(40, '\0'),
        "\x17" + std::string(40, '\0')}) {
    SCOPED_TRACE(static_cast<int>(words[0]));
    Pair as_server(nullptr, context()), as_client(context(), nullptr);
    ASSERT_GT(as_server.client.write(words.data(), words.size()), 0);
    ASSERT_GT(as_client.server.write(words.data(), words.size()), 0);
    for (SecureSocket* end : {&as_server.server, &as_client.client}) {
      char byte = 0;
      EXPECT_LT(end->read(&byte, 1), 0);
      EXPECT_EQ(errno, EPROTO);
      EXPECT_EQ(end->trouble(), Trouble::plain);
      EXPECT_LT(end->write("x", 1), 0) << "nothing leaves in the clear";
    }
  }
}

TEST(SecureSocketTest, any_changed_byte__ends_the_connection) {
  // A stranger between the two ends: changes one byte of what the client sends.
  for (std::size_t at = 0; at < 700; at += 13) {
    auto [client_end, left] = socket_pair();
    auto [server_end, right] = socket_pair();
    SecureSocket client(std::move(client_end), context(), End::client);
    SecureSocket server(std::move(server_end), context(), End::server);
    std::size_t passed = 0;
    bool changed = false;
    const auto pass = [&](const FileDescriptor& from, const FileDescriptor& to, bool tampers) {
      std::array<char, 4096> bytes;
      const ssize_t got = recv(from.get(), bytes.data(), bytes.size(), 0);
      if (got <= 0) return;
      const auto size = static_cast<std::size_t>(got);
      if (tampers && at >= passed && at < passed + size) {
        bytes[at - passed] = static_cast<char>(bytes[at - passed] ^ 1);
        changed = true;
      }
      if (tampers) passed += size;
      ASSERT_EQ(send(to.get(), bytes.data(), size, MSG_NOSIGNAL), got);
    };
    std::string come;
    for (int round = 0; round < 20; ++round) {
      (void)client.write("the secret of all ranks", 23);
      pass(left, right, true);
      std::array<char, 64> piece;
      const ssize_t got = server.read(piece.data(), piece.size());
      if (got > 0) come.append(piece.data(), static_cast<std::size_t>(got));
      pass(right, left, false);
      (void)client.read(piece.data(), piece.size());
    }
    ASSERT_TRUE(changed) << at;
    // What came before the change may have counted; nothing after it does.
    std::string sent;
    while (sent.size() < come.size()) sent += "the secret of all ranks";
    ASSERT_TRUE(sent.starts_with(come)) << at;
    char byte = 0;
    ASSERT_FALSE(server.read(&byte, 1) < 0 && errno == EAGAIN && server.trouble() == Trouble::none)
        << "byte " << at << " was changed and nothing happened";
  }
}

TEST(SecureSocketTest, plain__is_the_socket_itself) {
  Pair pair(nullptr, nullptr);
  EXPECT_FALSE(pair.client.is_encrypted());
  EXPECT_EQ(pair.client.handshake(), 1);
  EXPECT_EQ(carry(pair.client, pair.server, "hello"), "hello");
}

}  // namespace
}  // namespace tarpon::secure_socket_test
