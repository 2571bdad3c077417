#include "collectives/secret/secure_socket.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

#include "transport/job_key.h"

namespace tarpon {
namespace {

constexpr unsigned char kIdentity[] = "tarpon 1";
constexpr std::size_t kIdentityBytes = sizeof kIdentity - 1;
constexpr unsigned char kCipher[] = {0x13, 0x01};        // TLS_AES_128_GCM_SHA256
constexpr char kFirstRecord = 0x14, kLastRecord = 0x17;  // types of records: the first byte

// -- the socket as OpenSSL sees it: its own one would raise SIGPIPE

int descriptor_of(BIO* bio) {
  return static_cast<int>(reinterpret_cast<std::intptr_t>(BIO_get_data(bio)));
}

bool may_retry() {
  return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
}

int write_bytes(BIO* bio, const char* bytes, int size) {
  BIO_clear_retry_flags(bio);
  const auto done = send(descriptor_of(bio), bytes, static_cast<std::size_t>(size), MSG_NOSIGNAL);
  if (done < 0 && may_retry()) BIO_set_retry_write(bio);
  return static_cast<int>(done);
}

int read_bytes(BIO* bio, char* bytes, int size) {
  BIO_clear_retry_flags(bio);
  const auto done = recv(descriptor_of(bio), bytes, static_cast<std::size_t>(size), 0);
  if (done < 0 && may_retry()) BIO_set_retry_read(bio);
  return static_cast<int>(done);
}

long control(BIO*, int command, long, void*) {
  return command == BIO_CTRL_FLUSH ? 1 : 0;
}

int create(BIO* bio) {
  BIO_set_init(bio, 1);
  return 1;
}

/// Refuses each certificate.
int refuse_certificate(X509_STORE_CTX*, void*) {
  return 0;
}

/// The type of the BIOs here: OpenSSL has few.
int bio_type() {
  static const int type = BIO_get_new_index() | BIO_TYPE_SOURCE_SINK;
  return type;
}

/// Where a context keeps its key for the callbacks.
int key_index() {
  static const int index = SSL_CTX_get_ex_new_index(0, nullptr, nullptr, nullptr, nullptr);
  return index;
}

/// A session that stands for the pre-shared key. Null without memory.
SSL_SESSION* session_of(SSL* tls) {
  const auto* key =
      static_cast<const JobKey*>(SSL_CTX_get_ex_data(SSL_get_SSL_CTX(tls), key_index()));
  SSL_SESSION* const session = SSL_SESSION_new();
  if (session == nullptr) return nullptr;
  const bool good =
      SSL_SESSION_set1_master_key(session, reinterpret_cast<const unsigned char*>(key->data()),
                                  key->size()) == 1 &&
      SSL_SESSION_set_cipher(session, SSL_CIPHER_find(tls, kCipher)) == 1 &&
      SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) == 1;
  if (good) return session;
  SSL_SESSION_free(session);
  return nullptr;
}

int offer_session(SSL* tls, const EVP_MD*, const unsigned char** identity, std::size_t* size,
                  SSL_SESSION** session) {
  *session = session_of(tls);
  *identity = kIdentity;
  *size = kIdentityBytes;
  return *session != nullptr ? 1 : 0;
}

int find_session(SSL* tls, const unsigned char* identity, std::size_t size, SSL_SESSION** session) {
  const bool known =
      size == kIdentityBytes && std::memcmp(identity, kIdentity, kIdentityBytes) == 0;
  *session = known ? session_of(tls) : nullptr;
  return 1;  // without a session there is no key, and the handshake fails
}

}  // namespace

struct TlsContext::Parts {
  JobKey key{};
  SSL_CTX* context = nullptr;
  BIO_METHOD* socket = nullptr;

  ~Parts() {
    SSL_CTX_free(context);
    BIO_meth_free(socket);
  }
};

TlsContext::TlsContext(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
TlsContext::~TlsContext() = default;

Result<std::shared_ptr<const TlsContext>> TlsContext::make(const JobSecret* secret) {
  if (secret == nullptr) return nullptr;
  auto parts = std::make_unique<Parts>();
  derive_key(secret->bytes(), "tarpon tls 1", parts->key);
  parts->context = SSL_CTX_new(TLS_method());
  parts->socket = BIO_meth_new(bio_type(), "socket without SIGPIPE");
  SSL_CTX* const context = parts->context;
  const bool good = context != nullptr && parts->socket != nullptr &&
                    BIO_meth_set_write(parts->socket, write_bytes) == 1 &&
                    BIO_meth_set_read(parts->socket, read_bytes) == 1 &&
                    BIO_meth_set_ctrl(parts->socket, control) == 1 &&
                    BIO_meth_set_create(parts->socket, create) == 1 &&
                    SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) == 1 &&
                    SSL_CTX_set_ciphersuites(context, "TLS_AES_128_GCM_SHA256") == 1 &&
                    SSL_CTX_set_num_tickets(context, 0) == 1 &&
                    SSL_CTX_set_ex_data(context, key_index(), &parts->key) == 1;
  if (!good) {
    ERR_clear_error();
    return fail(Error::Code::unavailable, "OpenSSL makes no TLS 1.3 with a pre-shared key");
  }
  // Frames have lengths of their own; some have keys.
  SSL_CTX_set_options(context, SSL_OP_IGNORE_UNEXPECTED_EOF | SSL_OP_CLEANSE_PLAINTEXT);
  SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                                SSL_MODE_RELEASE_BUFFERS);
  SSL_CTX_set_cert_verify_callback(context, refuse_certificate, nullptr);
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_psk_use_session_callback(context, offer_session);
  SSL_CTX_set_psk_find_session_callback(context, find_session);
  return std::shared_ptr<const TlsContext>(new TlsContext(std::move(parts)));
}

void SecureSocket::Free::operator()(ssl_st* tls) const {
  SSL_free(tls);
}

SecureSocket::SecureSocket(FileDescriptor socket, std::shared_ptr<const TlsContext> context,
                           End end)
    : socket_(std::move(socket)), context_(std::move(context)) {
  if (context_ == nullptr) return;
  tls_.reset(SSL_new(context_->parts_->context));
  BIO* const bio = tls_ == nullptr ? nullptr : BIO_new(context_->parts_->socket);
  if (bio == nullptr) throw std::bad_alloc();
  BIO_set_data(bio, reinterpret_cast<void*>(static_cast<std::intptr_t>(socket_.get())));
  SSL_set_bio(tls_.get(), bio, bio);
  if (end == End::client) {
    SSL_set_verify(tls_.get(), SSL_VERIFY_PEER, nullptr);
    SSL_set_connect_state(tls_.get());
  } else {
    SSL_set_accept_state(tls_.get());
  }
}

SecureSocket& SecureSocket::operator=(SecureSocket&& other) noexcept {
  if (this == &other) return *this;
  reset();
  socket_ = std::move(other.socket_);
  context_ = std::move(other.context_);
  tls_ = std::move(other.tls_);
  heard_ = other.heard_;
  trouble_ = other.trouble_;
  return *this;
}

void SecureSocket::reset() {
  tls_.reset();
  socket_.reset();
}

/// Looks at the first byte, if there is one: an end without TLS gets no answer in TLS.
bool SecureSocket::speaks_tls() {
  if (heard_) return trouble_ != Trouble::plain;
  char first = 0;
  if (recv(socket_.get(), &first, 1, MSG_PEEK) != 1) return true;
  heard_ = true;
  if (first >= kFirstRecord && first <= kLastRecord) return true;
  trouble_ = Trouble::plain;
  return false;
}

/// Turns the result of an OpenSSL call into one of read() and write().
ssize_t SecureSocket::outcome(int result) {
  if (result > 0) return result;
  const int saved = errno;
  switch (SSL_get_error(tls_.get(), result)) {
    case SSL_ERROR_WANT_READ:
    case SSL_ERROR_WANT_WRITE:
      errno = EAGAIN;
      return -1;
    case SSL_ERROR_ZERO_RETURN:
      return 0;
    case SSL_ERROR_SYSCALL:
      if (saved == 0) return 0;
      errno = saved;
      return -1;
    default:
      break;
  }
  if (trouble_ == Trouble::none) set_trouble();
  ERR_clear_error();
  errno = EPROTO;
  return -1;
}

/// Finds out what the error of OpenSSL says about the other end.
void SecureSocket::set_trouble() {
  trouble_ = Trouble::protocol;
  if (SSL_is_init_finished(tls_.get()) != 0) return;
  switch (ERR_GET_REASON(ERR_peek_error())) {
    // Only the proof of the secret can fail between two ends that speak TLS 1.3 alike.
    case SSL_R_BINDER_DOES_NOT_VERIFY:
    case SSL_R_BAD_PSK:
    case SSL_R_SSLV3_ALERT_ILLEGAL_PARAMETER:
    case SSL_R_TLSV1_ALERT_DECRYPT_ERROR:
    case SSL_R_CERTIFICATE_VERIFY_FAILED:
      trouble_ = Trouble::other_secret;
      break;
    // The first byte was that of a record, by chance.
    case SSL_R_WRONG_VERSION_NUMBER:
      trouble_ = Trouble::plain;
      break;
    default:
      break;
  }
}

ssize_t SecureSocket::read(void* bytes, std::size_t size) {
  if (tls_ == nullptr) return recv(socket_.get(), bytes, size, 0);
  if (!speaks_tls()) {
    errno = EPROTO;
    return -1;
  }
  ERR_clear_error();
  errno = 0;
  return outcome(
      SSL_read(tls_.get(), bytes, static_cast<int>(std::min<std::size_t>(size, 1 << 30))));
}

ssize_t SecureSocket::write(const void* bytes, std::size_t size) {
  if (tls_ == nullptr) return send(socket_.get(), bytes, size, MSG_NOSIGNAL);
  if (!speaks_tls()) {
    errno = EPROTO;
    return -1;
  }
  ERR_clear_error();
  errno = 0;
  return outcome(
      SSL_write(tls_.get(), bytes, static_cast<int>(std::min<std::size_t>(size, 1 << 30))));
}

int SecureSocket::handshake() {
  if (tls_ == nullptr) return 1;
  if (!speaks_tls()) {
    errno = EPROTO;
    return -1;
  }
  ERR_clear_error();
  errno = 0;
  const ssize_t result = outcome(SSL_do_handshake(tls_.get()));
  if (result > 0) return 1;
  if (result == 0) errno = ECONNRESET;
  return -1;
}

const char* text(SecureSocket::Trouble trouble) {
  switch (trouble) {
    case SecureSocket::Trouble::plain:
      return "it has no secret";
    case SecureSocket::Trouble::other_secret:
      return "it has another secret";
    case SecureSocket::Trouble::protocol:
      return "it breaks the rules of TLS";
    case SecureSocket::Trouble::none:
      break;
  }
  return "nothing is wrong";
}

}  // namespace tarpon
