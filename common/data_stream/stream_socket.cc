// SPDX-License-Identifier: Apache-2.0
#include "common/data_stream/stream_socket.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/status/error_reason.h"

namespace ballast {
namespace {

// Most pieces that one system call takes.
constexpr size_t kMaxPieces = 64;
// Largest content of a TLS record.
constexpr size_t kRecordBytes = 16 << 10;
// A thread that waits for a large message wakes for so many bytes, not for each packet.
constexpr size_t kMinAwaited = 64 << 10;
constexpr size_t kMaxAwaited = 256 << 10;
// Both sides have it, so it proves nothing.
constexpr absl::string_view kIdentity = "ballast data stream";
// {0x13, 0x01}: TLS_AES_128_GCM_SHA256, whose hash is that of a pre-shared key by default.
constexpr unsigned char kCipher[] = {0x13, 0x01};

absl::Status Ended(absl::string_view why) {
  return WithReason(v1::ERROR_REASON_UNREACHABLE,
                    absl::UnavailableError(absl::StrCat("the connection has ended: ", why)));
}

absl::Status TlsError(absl::string_view what) {
  char text[256] = "no reason";
  if (const unsigned long code = ERR_get_error(); code != 0) ERR_error_string_n(code, text, sizeof(text));
  ERR_clear_error();
  return Ended(absl::StrCat(what, ": ", text));
}

// Returns the session that the key stands for; null if there is no memory.
SSL_SESSION* SessionOf(SSL* tls, const std::string& key) {
  const SSL_CIPHER* const cipher = SSL_CIPHER_find(tls, kCipher);
  SSL_SESSION* const session = SSL_SESSION_new();
  if (session != nullptr && cipher != nullptr &&
      SSL_SESSION_set1_master_key(session, reinterpret_cast<const unsigned char*>(key.data()), key.size()) == 1 &&
      SSL_SESSION_set_cipher(session, cipher) == 1 && SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) == 1) {
    return session;
  }
  SSL_SESSION_free(session);
  return nullptr;
}

const std::string& KeyOf(SSL* tls) { return *static_cast<const std::string*>(SSL_get_app_data(tls)); }

int UseKey(SSL* tls, const EVP_MD*, const unsigned char** id, size_t* id_bytes, SSL_SESSION** session) {
  *session = SessionOf(tls, KeyOf(tls));
  *id = reinterpret_cast<const unsigned char*>(kIdentity.data());
  *id_bytes = kIdentity.size();
  return *session != nullptr ? 1 : 0;
}

int FindKey(SSL* tls, const unsigned char* id, size_t id_bytes, SSL_SESSION** session) {
  *session = nullptr;
  if (absl::string_view(reinterpret_cast<const char*>(id), id_bytes) != kIdentity) return 1;
  *session = SessionOf(tls, KeyOf(tls));
  return *session != nullptr ? 1 : 0;
}

// OpenSSL's own sockets raise SIGPIPE.
int WriteTo(BIO* bio, const char* from, int bytes) {
  BIO_clear_retry_flags(bio);
  const ssize_t sent = send(static_cast<int>(reinterpret_cast<intptr_t>(BIO_get_data(bio))), from, bytes, MSG_NOSIGNAL);
  if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) BIO_set_retry_write(bio);
  return static_cast<int>(sent);
}

int ReadFrom(BIO* bio, char* to, int bytes) {
  BIO_clear_retry_flags(bio);
  const ssize_t got = recv(static_cast<int>(reinterpret_cast<intptr_t>(BIO_get_data(bio))), to, bytes, 0);
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) BIO_set_retry_read(bio);
  return static_cast<int>(got);
}

long Control(BIO*, int command, long, void*) { return command == BIO_CTRL_FLUSH ? 1 : 0; }

// Returns the socket as OpenSSL wants it; null if there is no memory.
BIO* BioOf(int socket) {
  static BIO_METHOD* const kMethod = [] {
    BIO_METHOD* const method = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "data stream");
    BIO_meth_set_write(method, WriteTo);
    BIO_meth_set_read(method, ReadFrom);
    BIO_meth_set_ctrl(method, Control);
    return method;
  }();
  BIO* const bio = BIO_new(kMethod);
  if (bio == nullptr) return nullptr;
  BIO_set_data(bio, reinterpret_cast<void*>(static_cast<intptr_t>(socket)));
  BIO_set_init(bio, 1);
  return bio;
}

// One for each side, for all connections. Kept for the life of the process.
SSL_CTX* ContextOf(StreamSocket::Side side) {
  const auto make = [](StreamSocket::Side of) {
    SSL_CTX* const context = SSL_CTX_new(of == StreamSocket::Side::kClient ? TLS_client_method() : TLS_server_method());
    SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION);
    SSL_CTX_set_ciphersuites(context, "TLS_AES_128_GCM_SHA256");
    SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    // A session is never resumed: each stream has a key of its own.
    SSL_CTX_set_num_tickets(context, 0);
    SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
    if (of == StreamSocket::Side::kClient) {
      SSL_CTX_set_psk_use_session_callback(context, UseKey);
      // The key proves who the server is. Without it, the server would need a certificate, and nobody would check that.
      SSL_CTX_set_verify(context, SSL_VERIFY_NONE, nullptr);
    } else {
      SSL_CTX_set_psk_find_session_callback(context, FindKey);
    }
    return context;
  };
  static SSL_CTX* const kClient = make(StreamSocket::Side::kClient);
  static SSL_CTX* const kServer = make(StreamSocket::Side::kServer);
  return side == StreamSocket::Side::kClient ? kClient : kServer;
}

}  // namespace

void StreamSocket::FreeTls::operator()(ssl_st* tls) const { SSL_free(tls); }

StreamSocket::StreamSocket(int socket) : socket_(socket) {}

StreamSocket::~StreamSocket() {
  ShutDown();
  close(socket_);
}

void StreamSocket::WakeAt(size_t bytes) {
  // A record is read whole anyway. Of small messages, all bytes come at once.
  const int wanted = encrypted_ || bytes < kMinAwaited ? 1 : static_cast<int>(std::min(bytes, kMaxAwaited));
  if (wanted == wake_at_) return;
  setsockopt(socket_, SOL_SOCKET, SO_RCVLOWAT, &wanted, sizeof(wanted));
  wake_at_ = wanted;
}

void StreamSocket::ShutDown() const { shutdown(socket_, SHUT_RDWR); }

void StreamSocket::LimitSilence(absl::Duration silence) const {
  const auto set = [this](int level, int option, int64_t value) {
    const int number = static_cast<int>(value);
    setsockopt(socket_, level, option, &number, sizeof(number));
  };
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, absl::ToInt64Milliseconds(silence));
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, absl::ToInt64Seconds(silence));
}

absl::Status StreamSocket::Wait(short events, absl::Time deadline) const {
  while (true) {
    pollfd file = {socket_, events, 0};
    const int64_t left = absl::ToInt64Milliseconds(deadline - absl::Now());
    if (left <= 0)
      return WithReason(v1::ERROR_REASON_UNREACHABLE,
                        absl::DeadlineExceededError("the other side does not answer in time"));
    const int ready = poll(&file, 1, static_cast<int>(std::min<int64_t>(left + 1, 60'000)));
    if (ready > 0) return absl::OkStatus();
    if (ready < 0 && errno != EINTR) return absl::ErrnoToStatus(errno, "cannot wait for a connection");
  }
}

absl::Status StreamSocket::Encrypt(Side side, absl::string_view key, absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  absl::MutexLock lock(&mutex_);
  key_ = std::string(key);
  tls_.reset(SSL_new(ContextOf(side)));
  BIO* const bio = BioOf(socket_);
  if (tls_ == nullptr || bio == nullptr) return absl::InternalError("TLS: no memory");
  SSL_set_bio(tls_.get(), bio, bio);
  SSL_set_app_data(tls_.get(), &key_);
  while (true) {
    ERR_clear_error();
    const int done = side == Side::kClient ? SSL_connect(tls_.get()) : SSL_accept(tls_.get());
    if (done == 1) break;
    const int wants = SSL_get_error(tls_.get(), done);
    if (wants != SSL_ERROR_WANT_READ && wants != SSL_ERROR_WANT_WRITE) return TlsError("TLS handshake");
    if (absl::Status status = Wait(wants == SSL_ERROR_WANT_READ ? POLLIN : POLLOUT, deadline); !status.ok()) {
      return status;
    }
  }
  // Without this, anyone could be at the other side: with a key that it does not know, OpenSSL makes a handshake with
  // certificates instead.
  if (SSL_session_reused(tls_.get()) != 1) return Ended("TLS handshake: the other side has another key");
  encrypted_ = true;
  return absl::OkStatus();
}

absl::StatusOr<size_t> StreamSocket::Read(absl::Span<char> to) {
  if (encrypted_) return ReadEncrypted(to);
  while (true) {
    const ssize_t got = recv(socket_, to.data(), to.size(), 0);
    if (got > 0) return static_cast<size_t>(got);
    if (got == 0) return Ended("closed by the other side");
    if (errno == EAGAIN || errno == EWOULDBLOCK) return size_t{0};
    if (errno != EINTR) return Ended(std::strerror(errno));
  }
}

absl::StatusOr<size_t> StreamSocket::Write(absl::Span<const iovec> pieces) {
  if (encrypted_) return WriteEncrypted(pieces);
  while (true) {
    msghdr message = {};
    message.msg_iov = const_cast<iovec*>(pieces.data());
    message.msg_iovlen = std::min(pieces.size(), kMaxPieces);
    const ssize_t sent = sendmsg(socket_, &message, MSG_NOSIGNAL);
    if (sent >= 0) return static_cast<size_t>(sent);
    if (errno == EAGAIN || errno == EWOULDBLOCK) return size_t{0};
    if (errno != EINTR) return Ended(std::strerror(errno));
  }
}

absl::StatusOr<size_t> StreamSocket::ReadEncrypted(absl::Span<char> to) {
  absl::MutexLock lock(&mutex_);
  ERR_clear_error();
  size_t got = 0;
  const int done = SSL_read_ex(tls_.get(), to.data(), to.size(), &got);
  if (done == 1) return got;
  switch (SSL_get_error(tls_.get(), done)) {
    case SSL_ERROR_WANT_READ:
      return size_t{0};
    case SSL_ERROR_ZERO_RETURN:
      return Ended("closed by the other side");
    default:
      return TlsError("TLS");
  }
}

absl::StatusOr<size_t> StreamSocket::WriteEncrypted(absl::Span<const iovec> pieces) {
  // A record has the content of several small pieces, or a part of a large one.
  const char* from = static_cast<const char*>(pieces[0].iov_base);
  size_t bytes = pieces[0].iov_len;
  if (bytes < kRecordBytes && pieces.size() > 1) {
    gathered_.resize(kRecordBytes);
    bytes = 0;
    for (const iovec& piece : pieces) {
      const size_t part = std::min(piece.iov_len, kRecordBytes - bytes);
      std::memcpy(gathered_.data() + bytes, piece.iov_base, part);
      bytes += part;
      if (bytes == kRecordBytes) break;
    }
    from = gathered_.data();
  }
  absl::MutexLock lock(&mutex_);
  ERR_clear_error();
  size_t sent = 0;
  const int done = SSL_write_ex(tls_.get(), from, bytes, &sent);
  if (done == 1) return sent;
  if (SSL_get_error(tls_.get(), done) == SSL_ERROR_WANT_WRITE) return size_t{0};
  return TlsError("TLS");
}

}  // namespace ballast
