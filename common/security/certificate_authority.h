// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

namespace ballast {

// Deleter for OpenSSL's objects.
struct OpensslEnd {
  void operator()(BIO* it) const { BIO_free_all(it); }
  void operator()(EVP_PKEY* it) const { EVP_PKEY_free(it); }
  void operator()(X509* it) const { X509_free(it); }
  void operator()(X509_EXTENSION* it) const { X509_EXTENSION_free(it); }
  void operator()(ASN1_TIME* it) const { ASN1_TIME_free(it); }
  void operator()(BIGNUM* it) const { BN_free(it); }
};
template <typename T>
using Openssl = std::unique_ptr<T, OpensslEnd>;

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
