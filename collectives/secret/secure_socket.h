// A TCP socket that does not block, plain or with TLS 1.3.
//
// TLS has the job's secret as its pre-shared key, beside an ephemeral (EC)DHE exchange: each end
// proves to the other one that it knows the secret. A client accepts no certificate, which a server
// could show in place of that proof. Nothing that the other end sends is returned before its proof.
// Read and write drive the handshake.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "collectives/job_secret.h"
#include "xdp/base/private_descriptor.h"
#include "xdp/base/result.h"

struct ssl_st;
struct ssl_ctx_st;
struct bio_method_st;

namespace tarpon {

/// What the connections of a job have in common. Immutable; any thread.
class TlsContext {
 public:
  /// Null where `secret` is. Errors: unavailable: OpenSSL refuses, or has no memory.
  static Result<std::shared_ptr<const TlsContext>> make(const JobSecret* secret);
  ~TlsContext();
  TlsContext(const TlsContext&) = delete;
  TlsContext& operator=(const TlsContext&) = delete;

 private:
  friend class SecureSocket;
  struct Parts;
  explicit TlsContext(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

/// Move-only. One thread at a time.
class SecureSocket {
 public:
  enum class End : std::uint8_t { client, server };

  /// Why TLS has ended a connection.
  enum class Trouble : std::uint8_t {
    none,
    plain,         // the other end speaks no TLS
    other_secret,  // the other end has another secret
    protocol,      // it breaks the rules of TLS
  };

  SecureSocket() = default;  // closed
  /// Plain if `context` is null. Throws std::bad_alloc.
  SecureSocket(FileDescriptor socket, std::shared_ptr<const TlsContext> context, End end);
  SecureSocket(SecureSocket&&) noexcept = default;
  SecureSocket& operator=(SecureSocket&& other) noexcept;

  /// As recv(2) and send(2): 0: the other end has closed; -1 with errno EAGAIN: not yet, also while
  /// the handshake goes on; EPROTO: trouble() says why. After EAGAIN the next write() begins with
  /// the same bytes. No SIGPIPE. read() returns what one TLS record has, at most: 16384 bytes.
  ssize_t read(void* bytes, std::size_t size);
  ssize_t write(const void* bytes, std::size_t size);

  /// Goes on with the handshake. Returns 1 when it is over, which it is at once without TLS; -1
  /// with errno as read().
  int handshake();

  bool is_encrypted() const { return tls_ != nullptr; }
  Trouble trouble() const { return trouble_; }

  int get() const { return socket_.get(); }
  explicit operator bool() const { return static_cast<bool>(socket_.descriptor()); }
  const FileDescriptor& descriptor() const { return socket_.descriptor(); }
  void reset();

 private:
  struct Free {
    void operator()(ssl_st* tls) const;
  };

  bool speaks_tls();
  void set_trouble();
  ssize_t outcome(int result);

  PrivateDescriptor socket_;
  std::shared_ptr<const TlsContext> context_;  // outlives tls_
  std::unique_ptr<ssl_st, Free> tls_;
  bool heard_ = false;  // the first byte has come
  Trouble trouble_ = Trouble::none;
};

/// In messages about a connection that TLS has ended: "it has another secret", ...
const char* text(SecureSocket::Trouble trouble);

}  // namespace tarpon
