// SPDX-License-Identifier: Apache-2.0
#include "cli/command/security_flags.h"

#include <cstdlib>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace ballast {
namespace {

// Null where it is not set.
const char* FromEnvironment(const std::string& flag) {
  return std::getenv(absl::StrCat("BALLAST_", absl::AsciiStrToUpper(absl::StrReplaceAll(flag, {{"-", "_"}}))).c_str());
}

}  // namespace

const std::vector<FlagSpec>& SecurityFlags() {
  static const auto* flags = new std::vector<FlagSpec>{
      {"tls-ca", "FILE", "Authorities (PEM) that servers' certificates are from; turns TLS on."},
      {"tls-cert", "FILE", "A certificate (PEM), for servers that ask for one."},
      {"tls-key", "FILE", "Its private key (PEM), which only this user may read."},
      {"token-file", "FILE", "The token that is shown: reader, a job or *, the token."},
      {"insecure", "", "Speak to servers of other machines without TLS."},
  };
  return *flags;
}

absl::StatusOr<SecurityOptions> ReadSecurity(const Arguments& arguments) {
  SecurityOptions options;
  const std::pair<const char*, std::string*> paths[] = {{"tls-ca", &options.tls.authorities},
                                                        {"tls-cert", &options.tls.certificate},
                                                        {"tls-key", &options.tls.key},
                                                        {"token-file", &options.token_file}};
  for (const auto& [flag, path] : paths) {
    const char* const otherwise = FromEnvironment(flag);
    *path = arguments.Get(flag, otherwise == nullptr ? "" : otherwise);
    if (arguments.Has(flag) && path->empty()) {
      return absl::InvalidArgumentError(absl::StrCat("flag --", flag, ": got \"\", want a file"));
    }
  }
  options.insecure = arguments.Has("insecure");
  const char* const insecure = FromEnvironment("insecure");
  if (insecure != nullptr && !options.insecure && !absl::SimpleAtob(insecure, &options.insecure)) {
    return absl::InvalidArgumentError(
        absl::StrCat("environment variable BALLAST_INSECURE: got \"", insecure, "\", want true or false"));
  }
  return options;
}

}  // namespace ballast
