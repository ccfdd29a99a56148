// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/security/certificate_authority.h"
#include "common/security/private_file.h"
#include "common/security/security_options.h"
#include "gtest/gtest.h"

namespace ballast {

// Owns a certificate authority and a directory of the files that it issued, for servers and clients of a test.
// Thread safety: confined to one thread.
class SecurityFolder {
 public:
  SecurityFolder() {
    std::string path = ::testing::TempDir() + "/security_XXXXXX";
    EXPECT_NE(mkdtemp(path.data()), nullptr);
    path_ = path;
    Write("ca.pem", authority_.certificate());
  }
  ~SecurityFolder() { std::filesystem::remove_all(path_); }
  SecurityFolder(const SecurityFolder&) = delete;

  static CertificateAuthority::Validity Now() { return {absl::Now() - absl::Hours(1), absl::Now() + absl::Hours(1)}; }
  static CertificateAuthority::Validity Past() { return {absl::Now() - absl::Hours(2), absl::Now() - absl::Hours(1)}; }

  const CertificateAuthority& authority() const { return authority_; }
  std::string path(const std::string& name) const { return absl::StrCat(path_, "/", name); }

  // Replaces a file atomically; returns its path.
  std::string Write(const std::string& name, const std::string& content) const {
    std::filesystem::remove(path(name + ".new"));
    EXPECT_TRUE(WritePrivateFile(path(name + ".new"), content).ok());
    std::filesystem::rename(path(name + ".new"), path(name));
    return path(name);
  }

  // Writes NAME.pem and NAME.key, which trust this directory's authority.
  TlsFiles Issue(const std::string& name, const std::vector<std::string>& hosts,
                 const CertificateAuthority::Validity& validity = Now()) const {
    return Issue(authority_, name, hosts, validity);
  }
  TlsFiles Issue(const CertificateAuthority& authority, const std::string& name, const std::vector<std::string>& hosts,
                 const CertificateAuthority::Validity& validity = Now()) const {
    const CertificateAuthority::Identity identity = authority.Issue(name, hosts, validity).value();
    const std::string key = Write(name + ".key", identity.key);
    return {Write(name + ".pem", identity.certificate), key, path("ca.pem")};
  }

  // A token is its role and job, padded: Token("worker", "mine").
  static std::string Token(const std::string& role, const std::string& job) {
    const std::string name = absl::StrCat(role, "-", job == "*" ? "all" : job, "-");
    return name + std::string(64 - name.size(), 'x');
  }
  // Writes the token file of a client.
  std::string TokenFile(const std::string& role, const std::string& job) const {
    return Write(absl::StrCat(role, ".token"), absl::StrCat(role, " ", job, " ", Token(role, job), "\n"));
  }

 private:
  std::string path_;
  const CertificateAuthority authority_ = CertificateAuthority::Create("test", Now()).value();
};

}  // namespace ballast
