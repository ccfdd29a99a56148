// SPDX-License-Identifier: Apache-2.0
#include "common/security/tls_files.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "common/security/certificate_authority.h"
#include "common/security/private_file.h"
#include "gmock/gmock.h"

namespace ballast {
namespace {

using ::testing::HasSubstr;

class TlsFilesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
    files_.authorities = Write("ca.pem", authority_.certificate());
    const CertificateAuthority::Identity identity = Issue();
    files_.certificate = Write("server.pem", identity.certificate);
    files_.key = Write("server.key", identity.key);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  CertificateAuthority::Identity Issue() const {
    return authority_.Issue("server", {"localhost", "127.0.0.1"}, validity_).value();
  }
  std::string Write(const std::string& name, const std::string& content) {
    const std::string path = absl::StrCat(folder_, "/", name);
    unlink(path.c_str());
    EXPECT_TRUE(WritePrivateFile(path, content).ok());
    return path;
  }
  absl::Status Check() const { return CheckTlsFiles(files_, now_); }
  void ExpectError(const std::string& text, absl::StatusCode code = absl::StatusCode::kInvalidArgument) const {
    const absl::Status status = Check();
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(status.message(), HasSubstr(text));
  }

  const std::string folder_ = ::testing::TempDir() + "/tls_files_test";
  const absl::Time now_ = absl::FromUnixSeconds(1'800'000'000);
  const CertificateAuthority::Validity validity_ = {now_ - absl::Hours(1), now_ + absl::Hours(1)};
  const CertificateAuthority authority_ = CertificateAuthority::Create("test", validity_).value();
  TlsFiles files_;
};

TEST_F(TlsFilesTest, AreGoodAsTheAuthorityMakesThem) { EXPECT_EQ(Check(), absl::OkStatus()); }

TEST_F(TlsFilesTest, MayBeNoneOrAuthoritiesAlone) {
  EXPECT_EQ(CheckTlsFiles({}, now_), absl::OkStatus());
  EXPECT_EQ(CheckTlsFiles({"", "", files_.authorities}, now_), absl::OkStatus());
}

TEST_F(TlsFilesTest, RefuseACertificateWithoutItsKey) {
  files_.key.clear();
  ExpectError(absl::StrCat("--tls_cert ", files_.certificate, ": want its private"));
}

TEST_F(TlsFilesTest, RefuseAKeyWithoutItsCertificate) {
  files_.certificate.clear();
  ExpectError(absl::StrCat("--tls_key ", files_.key, ": want its certificate"));
}

TEST_F(TlsFilesTest, RefuseTheKeyOfAnotherCertificate) {
  Write("server.key", Issue().key);
  ExpectError("is not the key of the certificate in");
}

TEST_F(TlsFilesTest, RefuseFilesThatAreNotThere) {
  const TlsFiles good = files_;
  for (const auto& [file, flag] : {std::pair(&TlsFiles::certificate, "--tls_cert "),
                                   {&TlsFiles::key, "--tls_key "},
                                   {&TlsFiles::authorities, "--tls_ca "}}) {
    files_ = good;
    files_.*file = folder_ + "/none";
    ExpectError(absl::StrCat(flag, folder_, "/none"));
  }
}

TEST_F(TlsFilesTest, RefuseWhatHoldsNothingOfTheKind) {
  TlsFiles good = files_;
  files_.certificate = good.key;
  ExpectError("holds no certificate, want PEM");
  files_ = good;
  files_.key = good.certificate;
  ExpectError("holds no private key, want PEM");
  files_ = good;
  files_.authorities = Write("damaged.pem", authority_.certificate().substr(0, 300) + "\n-----END CERTIFICATE-----\n");
  ExpectError("damaged.pem: holds no certificate");
  files_.authorities =
      Write("damaged.pem", absl::StrCat(authority_.certificate(), "-----BEGIN CERTIFICATE-----\nMII\n"));
  ExpectError("damaged.pem: holds a damaged certificate");
}

TEST_F(TlsFilesTest, RefuseAnExpiredCertificateAndOneThatIsNotValidYet) {
  absl::Status status = CheckTlsFiles(files_, now_ + absl::Hours(2));
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("server.pem: expired at 2027-01-15T09:00:00+00:00"));
  status = CheckTlsFiles(files_, now_ - absl::Hours(2));
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("server.pem: is not valid before 2027-01-15T07:00:00+00:00"));
}

TEST_F(TlsFilesTest, RefuseAKeyThatOthersMayRead) {
  ASSERT_EQ(chmod(files_.key.c_str(), 0644), 0);
  ExpectError("server.key: got mode 0644", absl::StatusCode::kPermissionDenied);
}

TEST_F(TlsFilesTest, TakeAChainAndSeveralAuthorities) {
  const auto other = CertificateAuthority::Create("other", validity_);
  Write("ca.pem", absl::StrCat(authority_.certificate(), other->certificate()));
  const CertificateAuthority::Identity identity = Issue();
  Write("server.pem", absl::StrCat(identity.certificate, authority_.certificate()));
  Write("server.key", identity.key);
  EXPECT_EQ(Check(), absl::OkStatus());
}

}  // namespace
}  // namespace ballast
