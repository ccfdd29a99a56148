// SPDX-License-Identifier: Apache-2.0
#include "common/data_stream/stream_socket.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <sys/socket.h>
#if defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif
#include <unistd.h>

#include <algorithm>
#include <array>
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
// One system call sends or receives so many encrypted bytes, instead of one for each record.
constexpr size_t kBatchBytes = 64 << 10;
// Most bytes that a record has besides its content, by RFC 8446, section 5.2.
constexpr size_t kMaxRecordOverhead = 5 + 256;
// A thread that waits for a large message wakes for so many bytes, not for each packet. To decrypt takes as long as to
// encrypt, so one side must not wait for the other to be done.
constexpr size_t kMinAwaited = 64 << 10;
constexpr size_t kMaxAwaited = 256 << 10;
constexpr size_t kMaxAwaitedEncrypted = 64 << 10;
// Encrypted bytes that OpenSSL has read but not decrypted: part of a record, at most.
constexpr size_t kHeldBytes = 17 << 10;
// Both sides have it, so it proves nothing.
constexpr absl::string_view kIdentity = "ballast data stream";
// Both have the hash of a pre-shared key by default.
constexpr char kAesFirst[] = "TLS_AES_128_GCM_SHA256:TLS_CHACHA20_POLY1305_SHA256";
constexpr char kChaChaFirst[] = "TLS_CHACHA20_POLY1305_SHA256:TLS_AES_128_GCM_SHA256";
// {0x13, 0x01}: TLS_AES_128_GCM_SHA256. Of a session's cipher, only the hash counts.
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

// One for each side, for all connections. Kept for the life of the process.
SSL_CTX* ContextOf(StreamSocket::Side side) {
  const auto make = [](StreamSocket::Side of) {
    SSL_CTX* const context = SSL_CTX_new(of == StreamSocket::Side::kClient ? TLS_client_method() : TLS_server_method());
    SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION);
    SSL_CTX_set_ciphersuites(context, kAesFirst);
    // A connection that is idle has no buffers.
    SSL_CTX_set_mode(context, SSL_MODE_RELEASE_BUFFERS);
    SSL_CTX_set_read_ahead(context, 1);
    SSL_CTX_set_default_read_buffer_len(context, kBatchBytes + kRecordBytes + kMaxRecordOverhead);
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

// Replaces OpenSSL's own sockets, which raise SIGPIPE and send each record by itself.
struct StreamSocket::Wire {
  const int socket;
  // After the handshake, what is to be sent is collected here.
  bool collects = false;
  std::vector<char> collected;

  // Returns the wire as OpenSSL wants it; null if there is no memory.
  static BIO* Bio(Wire* wire) {
    static BIO_METHOD* const kMethod = [] {
      BIO_METHOD* const method = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "data stream");
      BIO_meth_set_write(method, Write);
      BIO_meth_set_read(method, Read);
      BIO_meth_set_ctrl(method, Control);
      return method;
    }();
    BIO* const bio = BIO_new(kMethod);
    if (bio == nullptr) return nullptr;
    BIO_set_data(bio, wire);
    BIO_set_init(bio, 1);
    return bio;
  }

 private:
  static Wire& Of(BIO* bio) { return *static_cast<Wire*>(BIO_get_data(bio)); }
  static bool WouldBlock() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

  static int Write(BIO* bio, const char* from, int bytes) {
    BIO_clear_retry_flags(bio);
    Wire& wire = Of(bio);
    if (wire.collects) {
      wire.collected.insert(wire.collected.end(), from, from + bytes);
      return bytes;
    }
    const ssize_t sent = send(wire.socket, from, bytes, MSG_NOSIGNAL);
    if (sent < 0 && WouldBlock()) BIO_set_retry_write(bio);
    return static_cast<int>(sent);
  }

  static int Read(BIO* bio, char* to, int bytes) {
    BIO_clear_retry_flags(bio);
    const ssize_t got = recv(Of(bio).socket, to, bytes, 0);
    if (got < 0 && WouldBlock()) BIO_set_retry_read(bio);
    return static_cast<int>(got);
  }

  static long Control(BIO*, int command, long, void*) { return command == BIO_CTRL_FLUSH ? 1 : 0; }
};

// Goes through pieces of memory, byte by byte.
class StreamSocket::PieceCursor {
 public:
  explicit PieceCursor(absl::Span<const iovec> pieces) : pieces_(pieces) { Skip(0); }

  // Returns the next `bytes`, of which there must be so many; copies them to `gathered` if they are in several pieces.
  absl::string_view Next(size_t bytes, std::vector<char>& gathered) const {
    absl::string_view piece = Rest();
    if (piece.size() >= bytes) return piece.substr(0, bytes);
    gathered.clear();
    for (PieceCursor rest = *this; gathered.size() < bytes; rest.Skip(piece.size())) {
      piece = rest.Rest().substr(0, bytes - gathered.size());
      gathered.insert(gathered.end(), piece.begin(), piece.end());
    }
    return {gathered.data(), bytes};
  }

  void Skip(size_t bytes) {
    skipped_ += bytes;
    while (!pieces_.empty() && skipped_ >= pieces_.front().iov_len) {
      skipped_ -= pieces_.front().iov_len;
      pieces_.remove_prefix(1);
    }
  }

 private:
  // The part of the first piece that is not skipped.
  absl::string_view Rest() const {
    return absl::string_view(static_cast<const char*>(pieces_.front().iov_base), pieces_.front().iov_len)
        .substr(skipped_);
  }

  absl::Span<const iovec> pieces_;
  // Bytes of the first piece.
  size_t skipped_ = 0;
};

void StreamSocket::FreeTls::operator()(ssl_st* tls) const { SSL_free(tls); }

StreamSocket::StreamSocket(int socket) : socket_(socket) {}

StreamSocket::~StreamSocket() {
  ShutDown();
  close(socket_);
}

void StreamSocket::WakeAt(size_t bytes) {
  if (encrypted_) bytes -= std::min(bytes, kHeldBytes);
  // All bytes of a small message come at once.
  const size_t most = encrypted_ ? kMaxAwaitedEncrypted : kMaxAwaited;
  const int wanted = bytes < kMinAwaited ? 1 : static_cast<int>(std::min(bytes, most));
  if (wanted == wake_at_) return;
  setsockopt(socket_, SOL_SOCKET, SO_RCVLOWAT, &wanted, sizeof(wanted));
  wake_at_ = wanted;
}

bool StreamSocket::HoldsUnread() {
  if (!encrypted_) return false;
  absl::MutexLock lock(&mutex_);
  return SSL_has_pending(tls_.get()) == 1;
}

bool StreamSocket::HasMore() {
  if (HoldsUnread()) return true;
  pollfd file = {socket_, POLLIN, 0};
  return poll(&file, 1, 0) > 0;
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

StreamSocket::Cipher StreamSocket::FastestCipher() {
#if defined(__x86_64__)
  const bool aes = __builtin_cpu_supports("aes");
#elif defined(__aarch64__)
  const bool aes = (getauxval(AT_HWCAP) & HWCAP_AES) != 0;
#else
  const bool aes = false;
#endif
  return aes ? Cipher::kAes128Gcm : Cipher::kChaCha20Poly1305;
}

absl::Status StreamSocket::Encrypt(Side side, absl::string_view key, absl::Duration timeout, Cipher cipher) {
  const absl::Time deadline = absl::Now() + timeout;
  absl::MutexLock lock(&mutex_);
  key_ = std::string(key);
  wire_.reset(new Wire{socket_});
  tls_.reset(SSL_new(ContextOf(side)));
  BIO* const bio = Wire::Bio(wire_.get());
  if (tls_ == nullptr || bio == nullptr) return absl::InternalError("TLS: no memory");
  // The client's preference counts.
  if (cipher == Cipher::kChaCha20Poly1305) SSL_set_ciphersuites(tls_.get(), kChaChaFirst);
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
  wire_->collects = true;
  encrypted_ = true;
  return absl::OkStatus();
}

absl::StatusOr<size_t> StreamSocket::Read(absl::Span<char> to, absl::Span<char> further) {
  if (encrypted_) return ReadEncrypted(to);
  std::array<iovec, 2> rooms = {{{to.data(), to.size()}, {further.data(), further.size()}}};
  msghdr message = {};
  message.msg_iov = rooms.data();
  message.msg_iovlen = further.empty() ? 1 : 2;
  while (true) {
    const ssize_t got = recvmsg(socket_, &message, 0);
    if (got > 0) return static_cast<size_t>(got);
    if (got == 0) return Ended("closed by the other side");
    if (errno == EAGAIN || errno == EWOULDBLOCK) return size_t{0};
    if (errno != EINTR) return Ended(std::strerror(errno));
  }
}

absl::StatusOr<size_t> StreamSocket::Write(absl::Span<const iovec> pieces) {
  return encrypted_ ? WriteEncrypted(pieces) : WriteAsIs(pieces);
}

absl::StatusOr<size_t> StreamSocket::WriteAsIs(absl::Span<const iovec> pieces) {
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
  size_t left = 0;
  for (const iovec& piece : pieces) left += piece.iov_len;
  PieceCursor cursor(pieces);
  size_t written = 0;
  while (true) {
    if (absl::Status status = SendBatch(); !status.ok()) return status;
    if (!batch_.empty()) return written;
    // The pieces begin with the content of the batch.
    written += batch_content_;
    left -= batch_content_;
    cursor.Skip(std::exchange(batch_content_, 0));
    if (left == 0) break;
    if (absl::Status status = EncryptBatch(cursor, left); !status.ok()) return status;
  }
  // A connection that is idle has no large buffer.
  if (batch_.capacity() >= kBatchBytes) {
    absl::MutexLock lock(&mutex_);
    batch_ = {};
    if (wire_->collected.empty()) wire_->collected = {};
  }
  return written;
}

absl::Status StreamSocket::EncryptBatch(PieceCursor content, size_t left) {
  absl::MutexLock lock(&mutex_);
  std::vector<char>& encrypted = wire_->collected;
  encrypted.reserve(std::min(left, kBatchBytes) + kMaxRecordOverhead);
  while (left > 0 && encrypted.size() < kBatchBytes) {
    const absl::string_view record = content.Next(std::min(left, kRecordBytes), gathered_);
    size_t taken = 0;
    ERR_clear_error();
    if (SSL_write_ex(tls_.get(), record.data(), record.size(), &taken) != 1) return TlsError("TLS");
    content.Skip(taken);
    batch_content_ += taken;
    left -= taken;
  }
  batch_.swap(encrypted);
  return absl::OkStatus();
}

absl::Status StreamSocket::SendBatch() {
  while (batch_sent_ < batch_.size()) {
    const iovec rest = {batch_.data() + batch_sent_, batch_.size() - batch_sent_};
    const absl::StatusOr<size_t> sent = WriteAsIs({&rest, 1});
    if (!sent.ok() || *sent == 0) return sent.status();
    batch_sent_ += *sent;
  }
  batch_.clear();
  batch_sent_ = 0;
  return absl::OkStatus();
}

}  // namespace ballast
