// SPDX-License-Identifier: Apache-2.0
#include "cli/page/http_client.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"

namespace ballast {
namespace {

struct OpensslEnd {
  void operator()(SSL_CTX* it) const { SSL_CTX_free(it); }
  void operator()(SSL* it) const { SSL_free(it); }
};

// While it lives, a write of this thread to a connection that its peer has closed fails with EPIPE and does not send
// SIGPIPE, which would end the process: OpenSSL writes without MSG_NOSIGNAL.
class BrokenPipesAreErrors {
 public:
  BrokenPipesAreErrors() {
    sigemptyset(&broken_pipe_);
    sigaddset(&broken_pipe_, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &broken_pipe_, &before_);
  }
  ~BrokenPipesAreErrors() {
    if (sigismember(&before_, SIGPIPE) == 1) return;
    // Takes the signal back that a write has sent to this thread.
    constexpr timespec kNow = {};
    while (sigtimedwait(&broken_pipe_, nullptr, &kNow) < 0 && errno == EINTR) {
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  BrokenPipesAreErrors(const BrokenPipesAreErrors&) = delete;
  BrokenPipesAreErrors& operator=(const BrokenPipesAreErrors&) = delete;

 private:
  sigset_t broken_pipe_;
  sigset_t before_;
};

// Milliseconds until then, for poll; at least 0.
int Left(absl::Time deadline) {
  return static_cast<int>(
      std::max<int64_t>(0, absl::ToInt64Milliseconds(absl::Ceil(deadline - absl::Now(), absl::Milliseconds(1)))));
}

class SocketHttpClient : public HttpClient {
 public:
  SocketHttpClient(Options options, std::string host, std::string port, std::unique_ptr<SSL_CTX, OpensslEnd> context)
      : options_(std::move(options)), host_(std::move(host)), port_(std::move(port)), context_(std::move(context)) {}
  ~SocketHttpClient() override { Close(); }

  absl::StatusOr<HttpResponse> Get(const std::string& path, absl::Duration timeout) override {
    const BrokenPipesAreErrors errors;
    const absl::Time deadline = absl::Now() + timeout;
    const bool kept = socket_ >= 0;
    absl::StatusOr<HttpResponse> response = Try(path, deadline);
    if (!response.ok()) Close();
    if (kept && absl::IsUnavailable(response.status())) {
      response = Try(path, deadline);
      if (!response.ok()) Close();
    }
    if (response.ok()) return response;
    return absl::Status(response.status().code(), absl::StrCat(options_.address, ": ", response.status().message()));
  }

 private:
  absl::StatusOr<HttpResponse> Try(const std::string& path, absl::Time deadline) {
    if (socket_ < 0) {
      if (absl::Status status = Connect(deadline); !status.ok()) return status;
    }
    const std::string authorization =
        options_.token.empty() ? "" : absl::StrCat("Authorization: Bearer ", options_.token, "\r\n");
    if (absl::Status status =
            Send(absl::StrCat("GET ", path, " HTTP/1.1\r\nHost: ", options_.address, "\r\n", authorization, "\r\n"),
                 deadline);
        !status.ok()) {
      return status;
    }
    return Receive(deadline);
  }

  absl::Status Connect(absl::Time deadline) {
    addrinfo hints = {};
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* found = nullptr;
    if (const int error = getaddrinfo(host_.c_str(), port_.c_str(), &hints, &found); error != 0) {
      return absl::UnavailableError(gai_strerror(error));
    }
    const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> addresses(found, &freeaddrinfo);
    absl::Status status;
    for (const addrinfo* address = found; address != nullptr; address = address->ai_next) {
      status = ConnectTo(*address, deadline);
      if (status.ok()) return context_ == nullptr ? status : ShakeHands(deadline);
      Close();
    }
    return status;
  }

  absl::Status ConnectTo(const addrinfo& address, absl::Time deadline) {
    socket_ = socket(address.ai_family, address.ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, address.ai_protocol);
    if (socket_ < 0) return absl::UnavailableError(std::strerror(errno));
    const int yes = 1;
    setsockopt(socket_, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
    if (connect(socket_, address.ai_addr, address.ai_addrlen) == 0) return absl::OkStatus();
    if (errno != EINPROGRESS) return absl::UnavailableError(std::strerror(errno));
    if (absl::Status status = Await(POLLOUT, deadline); !status.ok()) return status;
    int error = 0;
    socklen_t length = sizeof(error);
    getsockopt(socket_, SOL_SOCKET, SO_ERROR, &error, &length);
    return error == 0 ? absl::OkStatus() : absl::UnavailableError(std::strerror(error));
  }

  absl::Status ShakeHands(absl::Time deadline) {
    ssl_.reset(SSL_new(context_.get()));
    if (ssl_ == nullptr || SSL_set_fd(ssl_.get(), socket_) != 1)
      return absl::ResourceExhaustedError("TLS: out of memory");
    while (true) {
      ERR_clear_error();
      const int done = SSL_connect(ssl_.get());
      if (done == 1) return absl::OkStatus();
      if (absl::Status status = AwaitTls(done, deadline); !status.ok()) return status;
    }
  }

  absl::Status Await(short events, absl::Time deadline) const {
    pollfd wanted = {.fd = socket_, .events = events, .revents = 0};
    while (true) {
      const int ready = poll(&wanted, 1, Left(deadline));
      if (ready > 0) return absl::OkStatus();
      if (ready < 0 && errno == EINTR) continue;
      return absl::DeadlineExceededError("got no answer in time");
    }
  }

  // Waits until OpenSSL can go on after it returned `result`.
  absl::Status AwaitTls(int result, absl::Time deadline) const {
    switch (SSL_get_error(ssl_.get(), result)) {
      case SSL_ERROR_WANT_READ:
        return Await(POLLIN, deadline);
      case SSL_ERROR_WANT_WRITE:
        return Await(POLLOUT, deadline);
      case SSL_ERROR_ZERO_RETURN:
        return absl::UnavailableError("the connection was closed");
      default: {
        const unsigned long error = ERR_peek_error();
        const long verified = SSL_get_verify_result(ssl_.get());
        if (verified != X509_V_OK) {
          return absl::UnavailableError(absl::StrCat("certificate: ", X509_verify_cert_error_string(verified)));
        }
        return absl::UnavailableError(error == 0 ? "the connection was closed"
                                                 : absl::StrCat("TLS: ", ERR_reason_error_string(error) == nullptr
                                                                             ? "failed"
                                                                             : ERR_reason_error_string(error)));
      }
    }
  }

  absl::Status Send(absl::string_view text, absl::Time deadline) {
    while (!text.empty()) {
      if (ssl_ != nullptr) {
        ERR_clear_error();
        const int sent = SSL_write(ssl_.get(), text.data(), static_cast<int>(text.size()));
        if (sent > 0) {
          text.remove_prefix(sent);
        } else if (absl::Status status = AwaitTls(sent, deadline); !status.ok()) {
          return status;
        }
        continue;
      }
      const ssize_t sent = send(socket_, text.data(), text.size(), MSG_NOSIGNAL);
      if (sent > 0) {
        text.remove_prefix(sent);
      } else if (errno != EAGAIN && errno != EINTR) {
        return absl::UnavailableError(std::strerror(errno));
      } else if (absl::Status status = Await(POLLOUT, deadline); !status.ok()) {
        return status;
      }
    }
    return absl::OkStatus();
  }

  // Appends at least one byte.
  absl::Status ReceiveSome(std::string& text, absl::Time deadline) {
    char buffer[16384];
    while (true) {
      if (ssl_ != nullptr) {
        ERR_clear_error();
        const int got = SSL_read(ssl_.get(), buffer, sizeof(buffer));
        if (got > 0) {
          text.append(buffer, got);
          return absl::OkStatus();
        }
        if (absl::Status status = AwaitTls(got, deadline); !status.ok()) return status;
        continue;
      }
      const ssize_t got = recv(socket_, buffer, sizeof(buffer), 0);
      if (got > 0) {
        text.append(buffer, got);
        return absl::OkStatus();
      }
      if (got == 0) return absl::UnavailableError("the connection was closed");
      if (errno != EAGAIN && errno != EINTR) return absl::UnavailableError(std::strerror(errno));
      if (absl::Status status = Await(POLLIN, deadline); !status.ok()) return status;
    }
  }

  absl::StatusOr<HttpResponse> Receive(absl::Time deadline) {
    std::string text;
    size_t end = 0;
    while ((end = text.find("\r\n\r\n")) == text.npos) {
      if (text.size() > options_.max_response_bytes) return TooLong();
      if (absl::Status status = ReceiveSome(text, deadline); !status.ok()) return status;
    }
    HttpResponse response;
    uint64_t length = 0;
    bool close = false;
    if (!ReadHeader(absl::string_view(text).substr(0, end), response, length, close)) {
      return absl::InvalidArgumentError("got a response that is not HTTP/1.1 with a length");
    }
    if (length > options_.max_response_bytes) return TooLong();
    response.body = text.substr(end + 4);
    while (response.body.size() < length) {
      if (absl::Status status = ReceiveSome(response.body, deadline); !status.ok()) return status;
    }
    response.body.resize(length);
    if (close) Close();
    return response;
  }

  absl::Status TooLong() const {
    return absl::ResourceExhaustedError(
        absl::StrCat("got a response of more than ", options_.max_response_bytes, " bytes"));
  }

  static bool ReadHeader(absl::string_view text, HttpResponse& response, uint64_t& length, bool& close) {
    const std::vector<absl::string_view> lines = absl::StrSplit(text, "\r\n");
    const std::vector<absl::string_view> words = absl::StrSplit(lines[0], ' ');
    if (words.size() < 2 || !absl::StartsWith(words[0], "HTTP/1.") || !absl::SimpleAtoi(words[1], &response.status)) {
      return false;
    }
    std::optional<uint64_t> found;
    for (absl::string_view line : lines) {
      const size_t colon = line.find(':');
      if (colon == line.npos) continue;
      const absl::string_view name = line.substr(0, colon), value = absl::StripAsciiWhitespace(line.substr(colon + 1));
      uint64_t number = 0;
      if (absl::EqualsIgnoreCase(name, "content-length") && absl::SimpleAtoi(value, &number)) found = number;
      if (absl::EqualsIgnoreCase(name, "content-type")) response.content_type = std::string(value);
      if (absl::EqualsIgnoreCase(name, "connection")) close = absl::EqualsIgnoreCase(value, "close");
    }
    length = found.value_or(0);
    return found.has_value();
  }

  void Close() {
    ssl_.reset();
    if (socket_ >= 0) close(socket_);
    socket_ = -1;
  }

  const Options options_;
  const std::string host_;
  const std::string port_;
  const std::unique_ptr<SSL_CTX, OpensslEnd> context_;
  int socket_ = -1;
  std::unique_ptr<SSL, OpensslEnd> ssl_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<HttpClient>> HttpClient::Open(Options options) {
  const size_t colon = options.address.rfind(':');
  int port = 0;
  if (colon == options.address.npos || colon == 0 || !absl::SimpleAtoi(options.address.substr(colon + 1), &port) ||
      port < 1 || port > 65535) {
    return absl::InvalidArgumentError(absl::StrCat("HTTP address: got \"", options.address, "\", want HOST:PORT"));
  }
  std::string host = options.address.substr(0, colon);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  std::unique_ptr<SSL_CTX, OpensslEnd> context;
  if (!options.authorities.empty()) {
    context.reset(SSL_CTX_new(TLS_client_method()));
    if (context == nullptr) return absl::ResourceExhaustedError("TLS: out of memory");
    SSL_CTX_set_min_proto_version(context.get(), TLS1_2_VERSION);
    SSL_CTX_set_mode(context.get(), SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER, nullptr);
    if (SSL_CTX_load_verify_locations(context.get(), options.authorities.c_str(), nullptr) != 1) {
      return absl::InvalidArgumentError(
          absl::StrCat(options.authorities, ": got a file without certificates, want PEM"));
    }
  }
  return std::make_unique<SocketHttpClient>(std::move(options), std::move(host), absl::StrCat(port),
                                            std::move(context));
}

}  // namespace ballast
