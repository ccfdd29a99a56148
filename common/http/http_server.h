// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/security/tls_files.h"

// OpenSSL's SSL.
struct ssl_st;

namespace ballast {

// Returns whether a TLS connection is one of an HttpServer, for code that sees all of a process's connections.
bool IsOfHttpServer(const ssl_st* connection);

struct HttpRequest {
  // "GET", "POST" and so on; "GET" for HEAD, whose response is sent without its body.
  std::string method;
  // Percent-decoded, without the query.
  std::string path;
  // After the first '?', as sent.
  std::string query;
  std::vector<std::pair<std::string, std::string>> headers;
  std::string body;

  // Returns the value of the first header of that name in any case; empty if there is none.
  absl::string_view Header(absl::string_view name) const;
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "text/plain; charset=utf-8";
  std::string body;
  // Further headers. The server adds those of length, connection and caching.
  std::vector<std::pair<std::string, std::string>> headers = {};
};

// Answers HTTP/1.1 requests, with keep-alive and pipelining. Requests beyond a limit get an error with a JSON body, and
// the connection is closed. Invariant: a client that is slow, silent or hostile holds one connection, for a limited
// time, and no thread. Deliberately does not know what is served, nor who may ask. Thread safety: all methods may be
// called from any thread.
class HttpServer {
 public:
  struct Options {
    // HOST:PORT; port 0 takes a free one.
    std::string address;
    // Threads that read requests and call the handler.
    int threads = 2;
    // HTTPS with this certificate and key, read again when the files change; the authorities are not used. Empty: HTTP.
    TlsFiles tls;
    // Called from any of the threads, and may block. Must not throw.
    std::function<HttpResponse(const HttpRequest&)> handler;

    // Connections beyond that are answered with 503 and closed.
    int max_connections = 256;
    uint32_t max_header_bytes = 8192;
    uint64_t max_body_bytes = uint64_t{4} << 20;
    // Bytes of bodies and responses of all connections, as far as they have been received and not yet been sent.
    // Requests beyond that are answered with 503.
    uint64_t max_held_bytes = uint64_t{128} << 20;
    // Limits on the time from the first byte of a request to its last one, between two requests of a connection, and
    // for a response to be sent. The connection is then closed without an answer.
    absl::Duration request_timeout = absl::Seconds(10);
    absl::Duration idle_timeout = absl::Seconds(60);
    absl::Duration response_timeout = absl::Seconds(30);
  };

  // INVALID_ARGUMENT if the address is not HOST:PORT, or its host is unknown; another error, which names the address,
  // if the port is in use or must not be used; the errors of CheckTlsFiles.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(Options options);
  // Stops.
  virtual ~HttpServer() = default;

  // HOST:PORT, with the port that was taken.
  virtual const std::string& address() const = 0;

  // Closes all connections once running handlers have returned.
  virtual void Stop() = 0;
};

}  // namespace ballast
