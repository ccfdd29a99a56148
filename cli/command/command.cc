// SPDX-License-Identifier: Apache-2.0
#include "cli/command/command.h"

#include <cstdlib>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace ballast {
namespace {

// Null if the variable is not set.
const char* FromEnvironment(const std::string& flag) {
  return std::getenv(absl::StrCat("BALLAST_", absl::AsciiStrToUpper(absl::StrReplaceAll(flag, {{"-", "_"}}))).c_str());
}

}  // namespace

const std::vector<FlagSpec>& SecurityFlags() {
  static const auto* flags = new std::vector<FlagSpec>{
      {"tls-ca", "FILE", "CA certificates (PEM) that verify servers; enables TLS."},
      {"tls-cert", "FILE", "Client certificate (PEM), for servers that require one."},
      {"tls-key", "FILE", "Private key (PEM) of the certificate, in a file that only this user can read."},
      {"token-file", "FILE", "File with the token to send, in the form: reader JOB|* TOKEN."},
      {"insecure", "", "Connect to servers on other machines without TLS."},
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
      return absl::InvalidArgumentError(absl::StrCat("flag --", flag, ": got \"\", want a file name"));
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
