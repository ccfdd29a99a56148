// SPDX-License-Identifier: Apache-2.0
#include "common/security/tls_files.h"

#include <openssl/err.h>
#include <openssl/pem.h>

#include <ctime>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/security/certificate_authority.h"
#include "common/security/private_file.h"
#include "common/storage/file.h"

namespace ballast {
namespace {

using Certificates = std::vector<Openssl<X509>>;

// Refuses encrypted keys: nobody is there to enter a passphrase.
int NoPassphrase(char*, int, int, void*) { return -1; }

Openssl<BIO> Open(const std::string& pem) { return Openssl<BIO>(BIO_new_mem_buf(pem.data(), pem.size())); }

absl::StatusOr<Certificates> ReadCertificates(const std::string& path, const std::string& name) {
  const absl::StatusOr<std::string> pem = ReadFile(path);
  if (!pem.ok()) return absl::InvalidArgumentError(absl::StrCat(name, ": ", pem.status().message()));
  const Openssl<BIO> bio = Open(*pem);
  Certificates certificates;
  while (X509* certificate = PEM_read_bio_X509(bio.get(), nullptr, NoPassphrase, nullptr)) {
    certificates.emplace_back(certificate);
  }
  // PEM_R_NO_START_LINE is OpenSSL's end of file.
  const bool whole = ERR_GET_REASON(ERR_peek_last_error()) == PEM_R_NO_START_LINE;
  ERR_clear_error();
  if (certificates.empty() || !whole) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": holds ", certificates.empty() ? "no" : "a damaged",
                                                   " certificate, want PEM (-----BEGIN CERTIFICATE-----)"));
  }
  return certificates;
}

absl::StatusOr<Openssl<EVP_PKEY>> ReadKey(const std::string& path) {
  const absl::StatusOr<std::string> pem = ReadPrivateFile(path, "--tls_key");
  if (!pem.ok()) return pem.status();
  Openssl<EVP_PKEY> key(PEM_read_bio_PrivateKey(Open(*pem).get(), nullptr, NoPassphrase, nullptr));
  ERR_clear_error();
  if (key != nullptr) return key;
  return absl::InvalidArgumentError(
      absl::StrCat("--tls_key ", path, ": holds no private key, want PEM without a passphrase"));
}

absl::Time ToTime(const ASN1_TIME* time) {
  std::tm parts = {};
  ASN1_TIME_to_tm(time, &parts);
  return absl::FromTM(parts, absl::UTCTimeZone());
}

absl::Status CheckDates(const X509* certificate, absl::Time now, const std::string& name) {
  const absl::Time from = ToTime(X509_get0_notBefore(certificate)), to = ToTime(X509_get0_notAfter(certificate));
  if (now > to) {
    return absl::FailedPreconditionError(
        absl::StrCat(name, ": expired at ", absl::FormatTime(to, absl::UTCTimeZone()), "; get a new one"));
  }
  if (now < from) {
    return absl::FailedPreconditionError(absl::StrCat(name, ": is not valid before ",
                                                      absl::FormatTime(from, absl::UTCTimeZone()),
                                                      "; is this machine's clock right?"));
  }
  return absl::OkStatus();
}

absl::Status CheckIdentity(const TlsFiles& files, absl::Time now) {
  const std::string name = absl::StrCat("--tls_cert ", files.certificate);
  const absl::StatusOr<Certificates> chain = ReadCertificates(files.certificate, name);
  if (!chain.ok()) return chain.status();
  const absl::StatusOr<Openssl<EVP_PKEY>> key = ReadKey(files.key);
  if (!key.ok()) return key.status();
  const bool fit = X509_check_private_key(chain->front().get(), key->get()) == 1;
  ERR_clear_error();
  if (!fit) {
    return absl::InvalidArgumentError(
        absl::StrCat("--tls_key ", files.key, ": is not the key of the certificate in ", files.certificate));
  }
  return CheckDates(chain->front().get(), now, name);
}

}  // namespace

absl::Status CheckTlsFiles(const TlsFiles& files, absl::Time now) {
  if (files.certificate.empty() != files.key.empty()) {
    return absl::InvalidArgumentError(
        files.key.empty() ? absl::StrCat("--tls_cert ", files.certificate, ": want its private key too, --tls_key")
                          : absl::StrCat("--tls_key ", files.key, ": want its certificate too, --tls_cert"));
  }
  if (!files.certificate.empty()) {
    if (absl::Status status = CheckIdentity(files, now); !status.ok()) return status;
  }
  if (files.authorities.empty()) return absl::OkStatus();
  return ReadCertificates(files.authorities, absl::StrCat("--tls_ca ", files.authorities)).status();
}

}  // namespace ballast
