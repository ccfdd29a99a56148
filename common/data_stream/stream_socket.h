// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

struct ssl_st;

namespace ballast {

// Owns one end of a TCP connection, whose bytes may be encrypted, and shuts it down when destroyed. Reads and writes
// never block. Thread safety: one thread at a time may read, and one may write, also at the same time.
class StreamSocket {
 public:
  // Owns `socket`, which does not block.
  explicit StreamSocket(int socket);
  ~StreamSocket();
  StreamSocket(const StreamSocket&) = delete;

  // Number of bytes of the key for Encrypt.
  static constexpr size_t kKeyBytes = 32;

  // From now on encrypts all bytes with TLS 1.3, for which both sides know `key`, and nobody else does. Waits for the
  // other side, `timeout` at most; the client prefers `cipher`. Call it before the first Read and Write.
  enum class Side { kClient, kServer };
  enum class Cipher { kAes128Gcm, kChaCha20Poly1305 };
  absl::Status Encrypt(Side side, absl::string_view key, absl::Duration timeout, Cipher cipher = FastestCipher());
  // AES if the processor has instructions for it; otherwise ChaCha20 is several times as fast.
  static Cipher FastestCipher();

  int descriptor() const { return socket_; }

  // The connection ends if the other machine acknowledges nothing for that long.
  void LimitSilence(absl::Duration silence) const;

  // Returns the number of bytes read or written, 0 if that would block. UNAVAILABLE at the end of the connection. What
  // `to` has no room for goes to `further`, unless it is encrypted. After a Write that wrote less than all, the next
  // one must begin with the rest.
  absl::StatusOr<size_t> Read(absl::Span<char> to, absl::Span<char> further = {});
  absl::StatusOr<size_t> Write(absl::Span<const iovec> pieces);

  // Wait and poll(2) find bytes to read only if there are so many, or the most that the connection holds. For the
  // thread that reads, after a Read that would block.
  void WakeAt(size_t bytes);
  // Returns whether more has arrived than was read. For the thread that reads.
  bool HasMore() ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns whether some of it is no longer in the connection, so that Wait and poll(2) do not find it.
  bool HoldsUnread() ABSL_LOCKS_EXCLUDED(mutex_);

  // Ends the connection in both directions: Read and Write fail soon.
  void ShutDown() const;

  // Waits for bytes to read or for room to write. DEADLINE_EXCEEDED.
  absl::Status Wait(short events, absl::Time deadline) const;

 private:
  struct FreeTls {
    void operator()(ssl_st* tls) const;
  };
  // The connection as OpenSSL reads and writes it.
  struct Wire;
  class PieceCursor;

  absl::StatusOr<size_t> ReadEncrypted(absl::Span<char> to) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<size_t> WriteAsIs(absl::Span<const iovec> pieces);
  absl::StatusOr<size_t> WriteEncrypted(absl::Span<const iovec> pieces) ABSL_LOCKS_EXCLUDED(mutex_);
  // Encrypts some of the next `left` bytes of content into the batch, which must be empty.
  absl::Status EncryptBatch(PieceCursor content, size_t left) ABSL_LOCKS_EXCLUDED(mutex_);
  // Sends the batch as far as the connection takes it; it is empty once all is sent.
  absl::Status SendBatch();

  const int socket_;
  // Set by Encrypt, which precedes all use by several threads.
  bool encrypted_ = false;
  // OpenSSL's state must not be used by two threads at a time.
  absl::Mutex mutex_;
  std::string key_;
  std::unique_ptr<Wire> wire_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<ssl_st, FreeTls> tls_ ABSL_GUARDED_BY(mutex_);
  // Number of bytes that WakeAt has set. Used by the reader.
  int wake_at_ = 1;
  // Used by the writer: encrypted bytes, those of them that are sent, and the number of bytes that they encrypt.
  std::vector<char> batch_;
  size_t batch_sent_ = 0, batch_content_ = 0;
  // Small pieces become one record. Used by the writer.
  std::vector<char> gathered_;
};

}  // namespace ballast
