// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/security/tls_files.h"

namespace ballast {

// What a process is told of its security, as its flags --tls_cert, --tls_key, --tls_ca, --token_file and --insecure
// are.
struct SecurityOptions {
  // Of a server, with authorities: only clients that show a certificate of theirs are let in.
  TlsFiles tls;
  // A TokenTable of a server, one token of a client.
  std::string token_file;
  // Allows what is refused otherwise.
  bool insecure = false;

  bool has_tls() const { return !tls.certificate.empty() || !tls.authorities.empty(); }
};

// Whether "host:port" can be reached from this machine alone.
bool IsLoopback(absl::string_view address);

// INVALID_ARGUMENT for a server that would serve other machines without TLS or without tokens, and was not told that
// this is wanted.
absl::Status CheckServing(const std::string& listen, const SecurityOptions& options);

// What a server that was told to be insecure must say at its start; empty for another.
std::string InsecurityWarning(const std::string& listen, const SecurityOptions& options);

}  // namespace ballast
