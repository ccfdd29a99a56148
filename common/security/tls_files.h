// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace ballast {

// Paths of PEM files; empty: none. A process shows the certificate, which the key belongs to, and trusts peers whose
// certificates one of the authorities has signed.
struct TlsFiles {
  std::string certificate;
  std::string key;
  std::string authorities;
};

// Whether TLS can begin with them. INVALID_ARGUMENT for a certificate without its key, or the other way round, for what
// cannot be read or is no certificate or key, and for a key that is another certificate's; PERMISSION_DENIED for a key
// that others may read; FAILED_PRECONDITION for a certificate that has expired or is not valid yet. Each names the flag
// and the file.
absl::Status CheckTlsFiles(const TlsFiles& files, absl::Time now);

}  // namespace ballast
