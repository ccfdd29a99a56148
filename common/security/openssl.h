// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <memory>

#include "absl/time/time.h"

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

}  // namespace ballast
