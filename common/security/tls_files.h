// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace ballast {

// Paths of PEM files; empty: none. A process presents the certificate, proves it with the key, and trusts peers whose
// certificates one of the authorities has signed.
struct TlsFiles {
  std::string certificate;
  std::string key;
  std::string authorities;
};

// Checks that the files are usable for TLS. INVALID_ARGUMENT for a certificate without its key or the reverse, for a
// file that cannot be read or parsed, and for the key of another certificate. PERMISSION_DENIED for a key that other
// users may read. FAILED_PRECONDITION for a certificate that has expired or is not valid yet. Each error names the
// flag and the file.
absl::Status CheckTlsFiles(const TlsFiles& files, absl::Time now);

}  // namespace ballast
