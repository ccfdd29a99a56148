// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/security/tls_files.h"

namespace ballast {

// A process's security settings, as its flags --tls_cert, --tls_key, --tls_ca, --token_file and --insecure give them.
struct SecurityOptions {
  // On a server with authorities, only clients with a certificate from one of them may connect.
  TlsFiles tls;
  // Path of a TokenTable on a server, of a single token on a client.
  std::string token_file;
  // Allows unencrypted or unauthenticated use that is otherwise refused.
  bool insecure = false;

  bool has_tls() const { return !tls.certificate.empty() || !tls.authorities.empty(); }
};

// Returns whether "host:port" is reachable from this machine only.
bool IsLoopback(absl::string_view address);

// INVALID_ARGUMENT for a server that other machines can reach without TLS or tokens, unless --insecure is set.
absl::Status CheckServing(const std::string& listen, const SecurityOptions& options);

// Warning that a server with --insecure prints when it starts; empty for any other server.
std::string InsecurityWarning(const std::string& listen, const SecurityOptions& options);

}  // namespace ballast
