// SPDX-License-Identifier: Apache-2.0
#include "common/http/http_server.h"

#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <chrono>
#include <exception>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <thread>
#include <utility>

#include "absl/base/call_once.h"
#include "absl/functional/any_invocable.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "common/text/json_fields.h"

namespace ballast {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using boost::system::error_code;
using tcp = asio::ip::tcp;

std::chrono::nanoseconds Chrono(absl::Duration duration) { return absl::ToChronoNanoseconds(duration); }

std::string Text(boost::beast::string_view text) { return std::string(text.data(), text.size()); }

HttpResponse Failure(int status, absl::string_view message) {
  return {.status = status,
          .content_type = "application/json",
          .body = absl::StrCat(JsonLine({{"error", std::string(message)}}), "\n")};
}

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

// Returns nullopt for a '%' without two hexadecimal digits.
std::optional<std::string> PercentDecoded(absl::string_view text) {
  std::string decoded;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      decoded += text[i];
      continue;
    }
    if (i + 2 >= text.size()) return std::nullopt;
    const int high = HexDigit(text[i + 1]), low = HexDigit(text[i + 2]);
    if (high < 0 || low < 0) return std::nullopt;
    decoded += static_cast<char>(high * 16 + low);
    i += 2;
  }
  return decoded;
}

using BeastRequest = http::request<http::string_body>;

// Returns nullopt for a target that is no path.
std::optional<HttpRequest> ToRequest(BeastRequest&& from) {
  HttpRequest request;
  request.method = from.method() == http::verb::head ? "GET" : Text(from.method_string());
  const std::string target = Text(from.target());
  const size_t question = target.find('?');
  std::optional<std::string> path = PercentDecoded(absl::string_view(target).substr(0, question));
  if (!path.has_value() || !absl::StartsWith(*path, "/")) return std::nullopt;
  request.path = *std::move(path);
  if (question != target.npos) request.query = target.substr(question + 1);
  for (const auto& field : from) request.headers.emplace_back(Text(field.name_string()), Text(field.value()));
  request.body = std::move(from.body());
  return request;
}

// Returns the answer to a request that could not be read; nullopt if the connection has ended.
std::optional<HttpResponse> ErrorResponse(const error_code& error, const HttpServer::Options& options) {
  if (error == http::error::header_limit) {
    return Failure(431, absl::StrCat("header: got more than ", options.max_header_bytes, " bytes, want at most that"));
  }
  if (error == http::error::body_limit) {
    return Failure(413, absl::StrCat("body: got more than ", options.max_body_bytes, " bytes, want at most that"));
  }
  const bool ended = error == http::error::end_of_stream || error == http::error::partial_message;
  if (ended || error.category() != make_error_code(http::error::end_of_stream).category()) return std::nullopt;
  return Failure(400, absl::StrCat("got a request that is not HTTP/1.1: ", error.message()));
}

// Index of the data of a TLS context that marks it as an HttpServer's. Application data (SSL_CTX_set_app_data) is
// Asio's.
int MarkIndex() {
  static const int index = SSL_CTX_get_ex_new_index(0, nullptr, nullptr, nullptr, nullptr);
  return index;
}

// Owns the context for new TLS connections, made anew when the files have changed. Thread safety: safe.
class TlsContext {
 public:
  explicit TlsContext(TlsFiles files) : files_(std::move(files)) {}

  // Returns the context of the files as they are now; that of before if they do not fit each other, as while they are
  // being replaced. Null if there never was one.
  std::shared_ptr<asio::ssl::context> Get() {
    const absl::MutexLock lock(&mutex_);
    const std::string version = VersionOf(files_.certificate) + VersionOf(files_.key);
    if (context_ != nullptr && version == version_) return context_;
    auto context = std::make_shared<asio::ssl::context>(asio::ssl::context::tls_server);
    error_code error;
    SSL_CTX_set_ex_data(context->native_handle(), MarkIndex(), this);
    SSL_CTX_set_min_proto_version(context->native_handle(), TLS1_2_VERSION);
    context->use_certificate_chain_file(files_.certificate, error);
    if (!error) context->use_private_key_file(files_.key, asio::ssl::context::pem, error);
    if (!error && SSL_CTX_check_private_key(context->native_handle()) == 1) {
      context_ = std::move(context);
      version_ = version;
    }
    return context_;
  }

 private:
  static std::string VersionOf(const std::string& path) {
    struct stat found = {};
    if (stat(path.c_str(), &found) != 0) return "-";
    return absl::StrCat(found.st_ino, ".", found.st_mtim.tv_sec, ".", found.st_mtim.tv_nsec, " ");
  }

  const TlsFiles files_;
  absl::Mutex mutex_;
  std::shared_ptr<asio::ssl::context> context_ ABSL_GUARDED_BY(mutex_);
  std::string version_ ABSL_GUARDED_BY(mutex_);
};

// State that all connections share.
struct Shared {
  HttpServer::Options options;
  std::atomic<int> connections{0};
  std::atomic<uint64_t> held_bytes{0};
};

// What a connection reads from and writes to. Beast's and Asio's operations, which are compiled for each type of stream
// and of callback, see this one type of each: with one for TLS and a closure for each step, this file took a minute.
class Stream {
 public:
  using Done = absl::AnyInvocable<void(const error_code&, size_t)>;
  using executor_type = beast::tcp_stream::executor_type;

  virtual ~Stream() = default;
  executor_type get_executor() { return tcp().get_executor(); }

  // As Asio asks of a stream.
  template <typename Buffers>
  void async_read_some(const Buffers& buffers, Done done) {
    const auto first = asio::buffer_sequence_begin(buffers);
    Read(*first, std::move(done));
  }
  template <typename Buffers>
  void async_write_some(const Buffers& buffers, Done done) {
    const auto first = asio::buffer_sequence_begin(buffers);
    Write(*first, std::move(done));
  }

  // Has the deadlines.
  virtual beast::tcp_stream& tcp() = 0;
  virtual void Handshake(Done done) = 0;
  // Says that no more follows, so that the client can tell a whole response from one that was cut off.
  virtual void SayEnd(Done done) = 0;

 private:
  virtual void Read(asio::mutable_buffer buffer, Done done) = 0;
  virtual void Write(asio::const_buffer buffer, Done done) = 0;
};

class PlainStream : public Stream {
 public:
  explicit PlainStream(tcp::socket socket) : stream_(std::move(socket)) {}

  beast::tcp_stream& tcp() override { return stream_; }
  void Handshake(Done done) override { done({}, 0); }
  // Closing the connection says it.
  void SayEnd(Done done) override { done({}, 0); }

 private:
  void Read(asio::mutable_buffer buffer, Done done) override { stream_.async_read_some(buffer, std::move(done)); }
  void Write(asio::const_buffer buffer, Done done) override { stream_.async_write_some(buffer, std::move(done)); }

  beast::tcp_stream stream_;
};

class TlsStream : public Stream {
 public:
  TlsStream(tcp::socket socket, std::shared_ptr<asio::ssl::context> context)
      : context_(std::move(context)), stream_(std::move(socket), *context_) {}

  beast::tcp_stream& tcp() override { return stream_.next_layer(); }
  void Handshake(Done done) override {
    stream_.async_handshake(asio::ssl::stream_base::server,
                            [done = std::move(done)](const error_code& error) mutable { done(error, 0); });
  }
  void SayEnd(Done done) override {
    stream_.async_shutdown([done = std::move(done)](const error_code& error) mutable { done(error, 0); });
  }

 private:
  void Read(asio::mutable_buffer buffer, Done done) override { stream_.async_read_some(buffer, std::move(done)); }
  void Write(asio::const_buffer buffer, Done done) override { stream_.async_write_some(buffer, std::move(done)); }

  // What the stream encrypts by.
  const std::shared_ptr<asio::ssl::context> context_;
  asio::ssl::stream<beast::tcp_stream> stream_;
};

// One connection. Its callbacks own it and run one at a time.
class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(Shared* shared, std::unique_ptr<Stream> stream) : stream_(std::move(stream)), shared_(shared) {
    full_ = shared_->connections.fetch_add(1) >= shared_->options.max_connections;
  }
  ~Connection() {
    Hold(0);
    shared_->connections.fetch_sub(1);
  }

  void Begin() {
    tcp_stream().expires_after(Chrono(options().request_timeout));
    stream_->Handshake([self = shared_from_this()](const error_code& error, size_t) {
      if (!error) self->BeginRequests();
    });
  }

 private:
  const HttpServer::Options& options() const { return shared_->options; }
  beast::tcp_stream& tcp_stream() { return stream_->tcp(); }

  void BeginRequests() {
    if (full_) return Send(Failure(503, "too many connections; try again"), 11, /*keep=*/false, /*body=*/true);
    AwaitRequest();
  }

  // Counts the bytes of the body or response that the connection holds now, in place of those before.
  void Hold(uint64_t bytes) {
    // The difference may be negative; unsigned sums wrap.
    shared_->held_bytes.fetch_add(bytes - std::exchange(held_, bytes));
  }
  // True if all connections together hold more than they may.
  bool HoldTooMuch() const { return shared_->held_bytes.load() > options().max_held_bytes; }

  void AwaitRequest() {
    Hold(0);
    parser_.emplace();
    parser_->header_limit(options().max_header_bytes);
    parser_->body_limit(options().max_body_bytes);
    // A pipelined request may have arrived with the last one.
    if (buffer_.size() > 0) return ReadHeader();
    tcp_stream().expires_after(Chrono(options().idle_timeout));
    stream_->async_read_some(buffer_.prepare(kReadBytes),
                             [self = shared_from_this()](const error_code& error, size_t bytes) {
                               // Ends the connection by dropping it.
                               if (error) return;
                               self->buffer_.commit(bytes);
                               self->ReadHeader();
                             });
  }

  void ReadHeader() {
    tcp_stream().expires_after(Chrono(options().request_timeout));
    Stream::Done done = [self = shared_from_this()](const error_code& error, size_t) { self->OnHeader(error); };
    http::async_read_header(*stream_, buffer_, *parser_, std::move(done));
  }

  void OnHeader(const error_code& error) {
    if (error) return OnBadRequest(error);
    // A body in another encoding has no end that is known here: what follows might be taken for a second request.
    const auto encoding = parser_->get()[http::field::transfer_encoding];
    if (!encoding.empty() && !beast::iequals(encoding, "chunked")) {
      return Send(Failure(501, absl::StrCat("Transfer-Encoding: got \"", absl::CHexEscape(Text(encoding).substr(0, 40)),
                                            "\", want chunked, or Content-Length instead")),
                  11, /*keep=*/false, /*body=*/true);
    }
    parser_->eager(true);
    if (!beast::iequals(parser_->get()[http::field::expect], "100-continue")) return ReadBody();
    static constexpr absl::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
    WriteAll(asio::buffer(kContinue.data(), kContinue.size()),
             [self = shared_from_this()](const error_code& failed, size_t) {
               if (!failed) self->ReadBody();
             });
  }

  void ReadBody() {
    if (parser_->is_done()) return Answer();
    Stream::Done done = [self = shared_from_this()](const error_code& error, size_t) {
      if (error) return self->OnBadRequest(error);
      self->Hold(self->parser_->get().body().size());
      if (self->HoldTooMuch()) return self->SendBusy(/*keep=*/false);
      self->ReadBody();
    };
    http::async_read_some(*stream_, buffer_, *parser_, std::move(done));
  }

  void SendBusy(bool keep) {
    Hold(0);
    parser_.reset();
    Send(Failure(503, "requests and answers in progress take too much memory; try again"), 11, keep, /*body=*/true);
  }

  void OnBadRequest(const error_code& error) {
    std::optional<HttpResponse> response = ErrorResponse(error, options());
    if (response.has_value()) Send(*std::move(response), 11, /*keep=*/false, /*body=*/true);
  }

  void Answer() {
    BeastRequest got = parser_->release();
    const unsigned version = got.version();
    const bool keep = got.keep_alive(), body = got.method() != http::verb::head;
    const std::optional<HttpRequest> request = ToRequest(std::move(got));
    // The time that the handler takes is its own.
    tcp_stream().expires_never();
    HttpResponse response =
        request.has_value() ? options().handler(*request) : Failure(400, "target: want a path, such as /healthz");
    Hold(response.body.size());
    if (HoldTooMuch()) return SendBusy(keep);
    Send(std::move(response), version, keep, body);
  }

  // Sends the header alone without `body`, although the header has the length of the body.
  void Send(HttpResponse from, unsigned version, bool keep, bool body) {
    http::response<http::empty_body> response;
    response.version(version);
    response.result(static_cast<unsigned>(from.status));
    response.set(http::field::content_type, from.content_type);
    response.set(http::field::cache_control, "no-store");
    response.set("X-Content-Type-Options", "nosniff");
    for (const auto& [name, value] : from.headers) response.set(name, value);
    response.keep_alive(keep);
    response.content_length(from.body.size());
    std::ostringstream header;
    header << response.base();
    // One piece: the system would hold back the second of two until the client has acknowledged the first.
    response_ = body ? std::move(from.body) : "";
    response_.insert(0, header.str());
    tcp_stream().expires_after(Chrono(options().response_timeout));
    WriteAll(asio::buffer(response_), [self = shared_from_this(), keep](const error_code& error, size_t) {
      if (error) return;
      if (keep) return self->AwaitRequest();
      self->Close();
    });
  }

  void WriteAll(asio::const_buffer bytes, Stream::Done done) { asio::async_write(*stream_, bytes, std::move(done)); }

  void Close() {
    tcp_stream().expires_after(Chrono(kLinger));
    stream_->SayEnd([self = shared_from_this()](const error_code&, size_t) { self->CloseSocket(); });
  }

  // Ends the connection so that the client can still read the response, which a reset would discard: stops sending,
  // then reads what the client has still sent, within limits.
  void CloseSocket() {
    error_code ignored;
    tcp_stream().socket().shutdown(tcp::socket::shutdown_send, ignored);
    tcp_stream().expires_after(Chrono(kLinger));
    Drain(0);
  }

  void Drain(size_t drained) {
    if (drained > kMaxDrained) return;
    buffer_.clear();
    Stream::Done done = [self = shared_from_this(), drained](const error_code& error, size_t bytes) {
      if (!error) self->Drain(drained + bytes);
    };
    tcp_stream().async_read_some(buffer_.prepare(kReadBytes), std::move(done));
  }

  static constexpr size_t kReadBytes = 8192;
  static constexpr size_t kMaxDrained = size_t{16} << 20;
  static constexpr absl::Duration kLinger = absl::Seconds(2);

  const std::unique_ptr<Stream> stream_;
  Shared* const shared_;
  bool full_ = false;
  // See Hold.
  uint64_t held_ = 0;
  beast::flat_buffer buffer_;
  std::optional<http::request_parser<http::string_body>> parser_;
  // Header and body of the response that is sent.
  std::string response_;
};

class BeastServer : public HttpServer {
 public:
  explicit BeastServer(Options options) : acceptor_(asio::make_strand(context_)), retry_(acceptor_.get_executor()) {
    shared_.options = std::move(options);
  }
  ~BeastServer() override { Stop(); }

  absl::Status Listen() {
    const std::string& address = shared_.options.address;
    const size_t colon = address.rfind(':');
    int port = -1;
    if (colon == address.npos || colon == 0 || !absl::SimpleAtoi(address.substr(colon + 1), &port) || port < 0 ||
        port > 65535) {
      return absl::InvalidArgumentError(
          absl::StrCat("HTTP address: got \"", address, "\", want HOST:PORT, such as 127.0.0.1:7800"));
    }
    std::string host = address.substr(0, colon);
    if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
    error_code error;
    const auto found = tcp::resolver(context_).resolve(host, absl::StrCat(port), tcp::resolver::passive, error);
    if (error || found.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("HTTP address: got ", address, ", whose host is unknown: ", error.message()));
    }
    const tcp::endpoint endpoint = found.begin()->endpoint();
    acceptor_.open(endpoint.protocol(), error);
    if (!error) acceptor_.set_option(tcp::acceptor::reuse_address(true), error);
    if (!error) acceptor_.bind(endpoint, error);
    if (!error) acceptor_.listen(asio::socket_base::max_listen_connections, error);
    const tcp::endpoint bound = error ? tcp::endpoint() : acceptor_.local_endpoint(error);
    if (error) {
      return absl::UnknownError(
          absl::StrCat("HTTP address: got ", address, ", want one that is free: ", error.message()));
    }
    address_ = absl::StrCat(address.substr(0, colon), ":", bound.port());
    return absl::OkStatus();
  }

  // INVALID_ARGUMENT if TLS is asked for and its files do not fit.
  absl::Status PrepareTls() {
    const TlsFiles& files = shared_.options.tls;
    if (files.certificate.empty()) return absl::OkStatus();
    if (absl::Status status = CheckTlsFiles({.certificate = files.certificate, .key = files.key}, absl::Now());
        !status.ok()) {
      return status;
    }
    tls_ = std::make_unique<TlsContext>(files);
    if (tls_->Get() != nullptr) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("HTTP over TLS: ", files.certificate, " and ", files.key, " do not fit each other"));
  }

  void Run() {
    Accept();
    for (int i = 0; i < shared_.options.threads; ++i) threads_.emplace_back([this] { Work(); });
  }

  const std::string& address() const override { return address_; }

  void Stop() override {
    absl::call_once(stopped_, [this] {
      context_.stop();
      for (std::thread& thread : threads_) thread.join();
    });
  }

 private:
  void Accept() {
    acceptor_.async_accept(asio::make_strand(context_), [this](const error_code& error, tcp::socket socket) {
      if (!error) {
        Begin(std::move(socket));
        return Accept();
      }
      // Without file descriptors, the next attempt would fail at once.
      retry_.expires_after(kAcceptRetry);
      retry_.async_wait([this](const error_code& cancelled) {
        if (!cancelled) Accept();
      });
    });
  }

  void Begin(tcp::socket socket) {
    std::unique_ptr<Stream> stream;
    if (tls_ == nullptr) {
      stream = std::make_unique<PlainStream>(std::move(socket));
    } else {
      stream = std::make_unique<TlsStream>(std::move(socket), tls_->Get());
    }
    std::make_shared<Connection>(&shared_, std::move(stream))->Begin();
  }

  // Out of memory in one connection ends that connection, not the program.
  void Work() {
    while (!context_.stopped()) {
      try {
        context_.run();
      } catch (const std::exception& failure) {
        std::cerr << "warning: HTTP connection of " << address_ << " ended: " << failure.what() << std::endl;
      }
    }
  }

  static constexpr std::chrono::milliseconds kAcceptRetry{100};

  // Declared before the context, whose callbacks use it.
  Shared shared_;
  // Null without TLS.
  std::unique_ptr<TlsContext> tls_;
  asio::io_context context_;
  tcp::acceptor acceptor_;
  asio::steady_timer retry_;
  std::string address_;
  std::vector<std::thread> threads_;
  absl::once_flag stopped_;
};

}  // namespace

bool IsOfHttpServer(const ssl_st* connection) {
  return SSL_CTX_get_ex_data(SSL_get_SSL_CTX(connection), MarkIndex()) != nullptr;
}

absl::string_view HttpRequest::Header(absl::string_view name) const {
  for (const auto& [key, value] : headers) {
    if (absl::EqualsIgnoreCase(key, name)) return value;
  }
  return "";
}

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(Options options) {
  auto server = std::make_unique<BeastServer>(std::move(options));
  if (absl::Status status = server->PrepareTls(); !status.ok()) return status;
  if (absl::Status status = server->Listen(); !status.ok()) return status;
  server->Run();
  return server;
}

}  // namespace ballast
