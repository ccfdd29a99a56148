// SPDX-License-Identifier: Apache-2.0
#include "common/security/certificate_authority.h"

#include <arpa/inet.h>
#include <openssl/ec.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/rand.h>

#include <array>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace ballast {
namespace {

struct Extension {
  int kind;
  std::string value;
};

absl::Status OpensslError(absl::string_view what) {
  std::array<char, 256> text = {};
  ERR_error_string_n(ERR_get_error(), text.data(), text.size());
  ERR_clear_error();
  return absl::InternalError(absl::StrCat("cannot create ", what, ": ", text.data()));
}

// Formats a host as in OpenSSL's configuration files.
std::string HostText(const std::string& host) {
  std::array<unsigned char, sizeof(in6_addr)> bytes;
  const bool address =
      inet_pton(AF_INET, host.c_str(), bytes.data()) == 1 || inet_pton(AF_INET6, host.c_str(), bytes.data()) == 1;
  return absl::StrCat(address ? "IP:" : "DNS:", host);
}

bool SetSerial(X509* certificate) {
  std::array<unsigned char, 16> bytes;
  if (RAND_bytes(bytes.data(), bytes.size()) != 1) return false;
  // Serial numbers must be positive.
  bytes[0] = (bytes[0] & 0x7f) | 0x40;
  const Openssl<BIGNUM> number(BN_bin2bn(bytes.data(), bytes.size(), nullptr));
  return number != nullptr && BN_to_ASN1_INTEGER(number.get(), X509_get_serialNumber(certificate)) != nullptr;
}

bool SetName(X509* certificate, const std::string& name) {
  return X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate), "CN", MBSTRING_UTF8,
                                    reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1, 0) == 1;
}

bool SetDates(X509* certificate, const CertificateAuthority::Validity& validity) {
  return ASN1_TIME_set(X509_getm_notBefore(certificate), absl::ToTimeT(validity.from)) != nullptr &&
         ASN1_TIME_set(X509_getm_notAfter(certificate), absl::ToTimeT(validity.to)) != nullptr;
}

bool AddExtensions(X509* certificate, X509* issuer, absl::Span<const Extension> extensions) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  for (const Extension& extension : extensions) {
    const Openssl<X509_EXTENSION> made(X509V3_EXT_conf_nid(nullptr, &context, extension.kind, extension.value.c_str()));
    if (made == nullptr || X509_add_ext(certificate, made.get(), -1) != 1) return false;
  }
  return true;
}

// Creates a certificate without its issuer's name and signature.
absl::StatusOr<Openssl<X509>> Draft(const std::string& name, EVP_PKEY* key,
                                    const CertificateAuthority::Validity& validity) {
  Openssl<X509> certificate(X509_new());
  if (certificate == nullptr || X509_set_version(certificate.get(), X509_VERSION_3) != 1 ||
      !SetSerial(certificate.get()) || !SetName(certificate.get(), name) || !SetDates(certificate.get(), validity) ||
      X509_set_pubkey(certificate.get(), key) != 1) {
    return OpensslError("a certificate");
  }
  return certificate;
}

absl::Status Sign(X509* certificate, X509* issuer, EVP_PKEY* key, absl::Span<const Extension> extensions) {
  if (X509_set_issuer_name(certificate, X509_get_subject_name(issuer)) != 1 ||
      !AddExtensions(certificate, issuer, extensions) || X509_sign(certificate, key, EVP_sha256()) == 0) {
    return OpensslError("a certificate");
  }
  return absl::OkStatus();
}

std::string Contents(BIO* bio) {
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio, &data);
  return std::string(data, size);
}

absl::StatusOr<std::string> ToPem(X509* certificate) {
  const Openssl<BIO> bio(BIO_new(BIO_s_mem()));
  if (bio == nullptr || PEM_write_bio_X509(bio.get(), certificate) != 1) return OpensslError("a certificate's text");
  return Contents(bio.get());
}

absl::StatusOr<std::string> ToPem(EVP_PKEY* key) {
  const Openssl<BIO> bio(BIO_new(BIO_s_secmem()));
  if (bio == nullptr || PEM_write_bio_PrivateKey(bio.get(), key, nullptr, nullptr, 0, nullptr, nullptr) != 1) {
    return OpensslError("a key's text");
  }
  return Contents(bio.get());
}

}  // namespace

absl::StatusOr<CertificateAuthority> CertificateAuthority::Create(const std::string& name, const Validity& validity) {
  CertificateAuthority authority;
  authority.key_.reset(EVP_EC_gen("P-256"));
  if (authority.key_ == nullptr) return OpensslError("a key");
  absl::StatusOr<Openssl<X509>> draft = Draft(name, authority.key_.get(), validity);
  if (!draft.ok()) return draft.status();
  authority.certificate_ = *std::move(draft);
  X509* const own = authority.certificate_.get();
  const absl::Status signed_by_itself = Sign(own, own, authority.key_.get(),
                                             {{NID_basic_constraints, "critical,CA:TRUE,pathlen:0"},
                                              {NID_key_usage, "critical,keyCertSign,cRLSign"},
                                              {NID_subject_key_identifier, "hash"}});
  if (!signed_by_itself.ok()) return signed_by_itself;
  absl::StatusOr<std::string> pem = ToPem(own);
  if (!pem.ok()) return pem.status();
  authority.pem_ = *std::move(pem);
  return authority;
}

absl::StatusOr<CertificateAuthority::Identity> CertificateAuthority::Issue(const std::string& name,
                                                                           absl::Span<const std::string> hosts,
                                                                           const Validity& validity) const {
  const Openssl<EVP_PKEY> key(EVP_EC_gen("P-256"));
  if (key == nullptr) return OpensslError("a key");
  absl::StatusOr<Openssl<X509>> certificate = Draft(name, key.get(), validity);
  if (!certificate.ok()) return certificate.status();
  std::vector<Extension> extensions = {{NID_basic_constraints, "critical,CA:FALSE"},
                                       {NID_key_usage, "critical,digitalSignature"},
                                       {NID_ext_key_usage, "serverAuth,clientAuth"},
                                       {NID_authority_key_identifier, "keyid:always"}};
  if (!hosts.empty()) {
    extensions.push_back({NID_subject_alt_name, absl::StrJoin(hosts, ",", [](std::string* out, const std::string& h) {
                            absl::StrAppend(out, HostText(h));
                          })});
  }
  absl::Status status = Sign(certificate->get(), certificate_.get(), key_.get(), extensions);
  if (!status.ok()) return status;
  absl::StatusOr<std::string> certificate_pem = ToPem(certificate->get());
  if (!certificate_pem.ok()) return certificate_pem.status();
  absl::StatusOr<std::string> key_pem = ToPem(key.get());
  if (!key_pem.ok()) return key_pem.status();
  return Identity{*std::move(certificate_pem), *std::move(key_pem)};
}

}  // namespace ballast
