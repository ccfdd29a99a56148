// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/http/http_server.h"

namespace ballast {

// Reads pages of one HTTP/1.1 server, over a connection that it keeps between calls: metrics of this system's own
// processes, not the web. Deliberately does not know redirects, compression and chunks. Thread safety: none.
class HttpClient {
 public:
  struct Options {
    // HOST:PORT.
    std::string address;
    // PEM file of the authority that has signed the server's certificate, whatever names that has: a worker's has
    // none. Empty: HTTP.
    std::string authorities;
    // Sent as "Authorization: Bearer TOKEN"; empty: none.
    std::string token;
    uint64_t max_response_bytes = uint64_t{16} << 20;
  };

  // Connects with the first call. INVALID_ARGUMENT if the address is not HOST:PORT or the file cannot be used.
  static absl::StatusOr<std::unique_ptr<HttpClient>> Open(Options options);
  virtual ~HttpClient() = default;

  // Returns the response, whatever its status. Blocks for at most `timeout`. Retries once if the server had closed the
  // kept connection. UNAVAILABLE if no server answers or it has another certificate, DEADLINE_EXCEEDED,
  // RESOURCE_EXHAUSTED for a longer response, INVALID_ARGUMENT for one that is not HTTP; each names the address.
  virtual absl::StatusOr<HttpResponse> Get(const std::string& path, absl::Duration timeout) = 0;
};

}  // namespace ballast
