// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/security/openssl.h"

namespace ballast {

// Owns a certificate authority whose key exists only in this process's memory. Keys are elliptic (P-256); all output
// is PEM. Thread safety: immutable.
class CertificateAuthority {
 public:
  struct Validity {
    absl::Time from;
    absl::Time to;
  };
  struct Identity {
    std::string certificate;
    std::string key;
  };

  static absl::StatusOr<CertificateAuthority> Create(const std::string& name, const Validity& validity);

  const std::string& certificate() const { return pem_; }

  // Signs a certificate for a server or client at these hosts (names or addresses).
  absl::StatusOr<Identity> Issue(const std::string& name, absl::Span<const std::string> hosts,
                                 const Validity& validity) const;

 private:
  CertificateAuthority() = default;

  Openssl<EVP_PKEY> key_;
  Openssl<X509> certificate_;
  std::string pem_;
};

}  // namespace ballast
