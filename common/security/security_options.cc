// SPDX-License-Identifier: Apache-2.0
#include "common/security/security_options.h"

#include <arpa/inet.h>

#include <array>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace ballast {
namespace {

// Returns "TLS", "tokens" or "TLS and tokens"; empty if nothing is missing.
std::string Missing(const SecurityOptions& options) {
  const char* const tls = options.tls.certificate.empty() ? "TLS" : "";
  const char* const tokens = options.token_file.empty() ? "tokens" : "";
  return absl::StrCat(tls, *tls != 0 && *tokens != 0 ? " and " : "", tokens);
}

}  // namespace

bool IsLoopback(absl::string_view address) {
  std::string host(address.substr(0, address.rfind(':')));
  if (absl::StartsWith(host, "[") && absl::EndsWith(host, "]")) host = host.substr(1, host.size() - 2);
  if (absl::AsciiStrToLower(host) == "localhost") return true;
  in_addr four = {};
  if (inet_pton(AF_INET, host.c_str(), &four) == 1) return (ntohl(four.s_addr) >> 24) == 127;
  in6_addr six = {};
  return inet_pton(AF_INET6, host.c_str(), &six) == 1 && IN6_IS_ADDR_LOOPBACK(&six);
}

absl::Status CheckServing(const std::string& listen, const SecurityOptions& options) {
  const std::string missing = Missing(options);
  if (missing.empty() || options.insecure || IsLoopback(listen)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "refusing to listen on ", listen, " without ", missing,
      ": anyone who can reach this address could read and change the job. Set --tls_cert, --tls_key and --token_file "
      "(docs/design/security.md shows how to create them), or listen on 127.0.0.1; --insecure listens without them"));
}

std::string InsecurityWarning(const std::string& listen, const SecurityOptions& options) {
  if (!options.insecure) return "";
  const std::string missing = Missing(options);
  if (missing.empty()) return absl::StrCat("WARNING: --insecure has no effect on ", listen, ": TLS and tokens are on");
  return absl::StrCat("WARNING: --INSECURE: listening on ", listen, " without ", missing,
                      ". ANYONE WHO REACHES THIS PORT CAN READ AND CHANGE THE JOB; see docs/design/security.md");
}

}  // namespace ballast
