// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/port/inspected_reads.h"

#include <dlfcn.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "common/http/http_server.h"
#include "server/rpc/port/http2_inspector.h"

// With --config=static, OpenSSL is part of the program, and the linker renames gRPC's calls (--wrap).
#ifdef BALLAST_WRAPS_SSL_READ
#define BALLAST_SSL_READ __wrap_SSL_read
extern "C" int __real_SSL_read(SSL* ssl, void* to, int size);
#else
#define BALLAST_SSL_READ SSL_read
#endif
extern "C" int BALLAST_SSL_READ(SSL* ssl, void* to, int size);

namespace ballast {
namespace {

// The array has 8 MiB of addresses, but uses memory only for the part in use.
constexpr int kMaxFiles = 1 << 20;
// Inspectors by socket number; null for uninspected sockets. Only the thread that reads a socket uses its inspector,
// and a number is used again only after its socket was closed.
std::array<std::atomic<Http2Inspector*>, kMaxFiles> inspectors;
std::atomic<uint64_t> refused{0};

// Returns the function that this library's own definition hides.
template <typename Function>
Function* Next(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

int NextSslRead(SSL* ssl, void* to, int size) {
#ifdef BALLAST_WRAPS_SSL_READ
  return __real_SSL_read(ssl, to, size);
#else
  static const auto next = Next<decltype(SSL_read)>("SSL_read");
  return next(ssl, to, size);
#endif
}

int NextClose(int file) {
  static const auto next = Next<decltype(close)>("close");
  return next(file);
}

// Returns whether gRPC may get the bytes.
bool LetsThrough(Http2Inspector& inspector, absl::string_view bytes) { return inspector.Take(bytes, absl::Now()).ok(); }

bool LetsThrough(Http2Inspector& inspector, const msghdr& message, size_t size) {
  const absl::Time now = absl::Now();
  for (size_t i = 0; i < message.msg_iovlen && size > 0; ++i) {
    const size_t count = std::min(size, message.msg_iov[i].iov_len);
    if (!inspector.Take({static_cast<const char*>(message.msg_iov[i].iov_base), count}, now).ok()) return false;
    size -= count;
  }
  return true;
}

void FreeInspector(void*, void* inspector, CRYPTO_EX_DATA*, int, long, void*) {
  delete static_cast<Http2Inspector*>(inspector);
}

// Returns the inspector of a connection on which this process is the TLS server; it lives as long as the connection.
Http2Inspector* InspectorOf(SSL* ssl) {
  static const int index = SSL_get_ex_new_index(0, nullptr, nullptr, nullptr, FreeInspector);
  auto* inspector = static_cast<Http2Inspector*>(SSL_get_ex_data(ssl, index));
  if (inspector != nullptr) return inspector;
  auto made = std::make_unique<Http2Inspector>(Http2Inspector::Limits());
  if (SSL_set_ex_data(ssl, index, made.get()) != 1) return nullptr;
  return made.release();
}

void Forget(int file) {
  if (file < 0 || file >= kMaxFiles || inspectors[file].load(std::memory_order_relaxed) == nullptr) return;
  delete inspectors[file].exchange(nullptr);
}

}  // namespace

absl::Status CheckReadsAreInspected() {
#ifndef BALLAST_WRAPS_SSL_READ
  if (dlsym(RTLD_DEFAULT, "SSL_read") != reinterpret_cast<void*>(&SSL_read)) {
    return absl::InternalError("gRPC does not call this program's SSL_read; the program is linked incorrectly");
  }
#endif
  if (dlsym(RTLD_DEFAULT, "recvmsg") == reinterpret_cast<void*>(&recvmsg) &&
      dlsym(RTLD_DEFAULT, "close") == reinterpret_cast<void*>(&close)) {
    return absl::OkStatus();
  }
  return absl::InternalError("gRPC does not call this program's recvmsg and close; the program is linked incorrectly");
}

bool InspectReads(int socket) {
  if (socket < 0 || socket >= kMaxFiles) return false;
  delete inspectors[socket].exchange(new Http2Inspector(Http2Inspector::Limits()));
  return true;
}

uint64_t RefusedReads() { return refused; }

}  // namespace ballast

extern "C" {

ssize_t recvmsg(int socket, msghdr* message, int flags) {
  static const auto next = ballast::Next<decltype(recvmsg)>("recvmsg");
  const ssize_t count = next(socket, message, flags);
  if (count <= 0 || (flags & (MSG_ERRQUEUE | MSG_PEEK)) != 0 || socket >= ballast::kMaxFiles) return count;
  ballast::Http2Inspector* const inspector = ballast::inspectors[socket].load(std::memory_order_acquire);
  if (inspector == nullptr || ballast::LetsThrough(*inspector, *message, count)) return count;
  ++ballast::refused;
  errno = ECONNRESET;
  return -1;
}

int close(int file) {
  ballast::Forget(file);
  return ballast::NextClose(file);
}

int BALLAST_SSL_READ(SSL* ssl, void* to, int size) {
  const int count = ballast::NextSslRead(ssl, to, size);
  if (count <= 0 || SSL_is_server(ssl) == 0) return count;
  // Not gRPC's: the HTTP pages have limits of their own.
  if (ballast::IsOfHttpServer(ssl)) return count;
  ballast::Http2Inspector* const inspector = ballast::InspectorOf(ssl);
  if (inspector != nullptr &&
      ballast::LetsThrough(*inspector, {static_cast<const char*>(to), static_cast<size_t>(count)})) {
    return count;
  }
  ++ballast::refused;
  // Makes SSL_get_error report the connection as broken.
  ERR_raise(ERR_LIB_SSL, SSL_R_EXCESSIVE_MESSAGE_SIZE);
  return -1;
}

}  // extern "C"
