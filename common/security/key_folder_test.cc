// SPDX-License-Identifier: Apache-2.0
#include "common/security/key_folder.h"

#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <filesystem>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/security/private_file.h"
#include "common/security/tls_files.h"
#include "common/security/tokens.h"
#include "gmock/gmock.h"

namespace ballast {
namespace {

class KeyFolderTest : public ::testing::Test {
 protected:
  void SetUp() override { std::filesystem::remove_all(path_); }
  void TearDown() override { std::filesystem::remove_all(path_); }

  absl::StatusOr<KeyFolder> Make() const {
    const CertificateAuthority::Validity day = {now_ - absl::Hours(1), now_ + absl::Hours(24)};
    return KeyFolder::Make(path_, {"mnist", {"localhost"}, day, day});
  }
  std::string Read(const std::string& name) const {
    return ReadPrivateFile(absl::StrCat(path_, "/", name), "file").value();
  }

  const std::string path_ = ::testing::TempDir() + "/key_folder_test";
  const absl::Time now_ = absl::Now();
};

TEST_F(KeyFolderTest, IsForNobodyElseAndHasNoKeyOfTheAuthority) {
  ASSERT_TRUE(Make().ok());
  struct stat about = {};
  ASSERT_EQ(stat(path_.c_str(), &about), 0);
  EXPECT_EQ(about.st_mode & 0777, 0700u);
  std::vector<std::string> names;
  for (const auto& file : std::filesystem::directory_iterator(path_)) {
    names.push_back(file.path().filename().string());
    ASSERT_EQ(stat(file.path().c_str(), &about), 0);
    EXPECT_EQ(about.st_mode & 0777, 0600u) << file.path();
  }
  EXPECT_THAT(names, ::testing::UnorderedElementsAre("ca.pem", "server.pem", "server.key", "client.pem", "client.key",
                                                     "tokens", "admin.token", "worker.token", "reader.token"));
  EXPECT_FALSE(absl::StrContains(Read("ca.pem"), "PRIVATE KEY"));
}

TEST_F(KeyFolderTest, HoldsCertificatesThatTlsCanBeginWith) {
  ASSERT_TRUE(Make().ok());
  for (const char* who : {"server", "client"}) {
    const std::string file = absl::StrCat(path_, "/", who);
    EXPECT_EQ(CheckTlsFiles({file + ".pem", file + ".key", path_ + "/ca.pem"}, now_), absl::OkStatus());
  }
}

TEST_F(KeyFolderTest, EveryCertificateIsForThisMachineAndTheServersForTheirHosts) {
  const CertificateAuthority::Validity day = {now_ - absl::Hours(1), now_ + absl::Hours(24)};
  const KeyFolder folder = KeyFolder::Make(path_, {"mnist", {"*.ballast.default.svc"}, day, day}).value();
  for (const bool renewed : {false, true}) {
    if (renewed) {
      ASSERT_EQ(folder.Renew(day), absl::OkStatus());
    }
    for (const char* who : {"server", "client"}) {
      const std::string pem = Read(absl::StrCat(who, ".pem"));
      const Openssl<BIO> bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
      const Openssl<X509> certificate(PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr));
      ASSERT_NE(certificate, nullptr);
      EXPECT_EQ(X509_check_host(certificate.get(), "localhost", 0, 0, nullptr), 1) << who;
      EXPECT_EQ(X509_check_ip_asc(certificate.get(), "127.0.0.1", 0), 1) << who;
      const int at_hosts = X509_check_host(certificate.get(), "ballast-server-0-1.ballast.default.svc", 0, 0, nullptr);
      EXPECT_EQ(at_hosts, *who == 's' ? 1 : 0) << who;
    }
  }
}

TEST_F(KeyFolderTest, HoldsATokenForEachRoleThatTheTableKnows) {
  ASSERT_TRUE(Make().ok());
  const TokenTable table = TokenTable::Load(path_ + "/tokens").value();
  for (const AccessRole role : {AccessRole::kReader, AccessRole::kWorker, AccessRole::kAdmin}) {
    const std::string file = absl::StrCat(path_, "/", AccessRoleName(role), ".token");
    const TokenGrant* grant = table.Find(LoadClientToken(file).value());
    ASSERT_NE(grant, nullptr);
    EXPECT_EQ(grant->role, role);
    EXPECT_EQ(grant->job, "mnist");
  }
  EXPECT_EQ(table.admin_token(), LoadClientToken(path_ + "/admin.token").value());
}

TEST_F(KeyFolderTest, RenewsCertificatesOfTheSameAuthority) {
  const KeyFolder folder = Make().value();
  const std::string authority = Read("ca.pem"), certificate = Read("server.pem"), tokens = Read("tokens");
  const absl::Time next_week = now_ + absl::Hours(24 * 7);
  ASSERT_EQ(folder.Renew({now_, next_week + absl::Hours(1)}), absl::OkStatus());
  EXPECT_EQ(Read("ca.pem"), authority);
  EXPECT_EQ(Read("tokens"), tokens);
  EXPECT_NE(Read("server.pem"), certificate);
  EXPECT_EQ(CheckTlsFiles({path_ + "/server.pem", path_ + "/server.key", ""}, next_week), absl::OkStatus());
  EXPECT_EQ(CheckTlsFiles({path_ + "/client.pem", path_ + "/client.key", ""}, next_week), absl::OkStatus());
}

TEST_F(KeyFolderTest, LeavesNothingBehindIfTheDiskIsFull) {
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = signal(SIGXFSZ, SIG_IGN);
  const rlimit small = {300, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const absl::Status status = Make().status();
  setrlimit(RLIMIT_FSIZE, &before);
  signal(SIGXFSZ, handler);
  EXPECT_FALSE(status.ok());
  EXPECT_FALSE(std::filesystem::exists(path_)) << status;
}

TEST_F(KeyFolderTest, DoesNotReplaceAFolder) {
  ASSERT_TRUE(Make().ok());
  const std::string tokens = Read("tokens");
  EXPECT_TRUE(absl::IsAlreadyExists(Make().status())) << Make().status();
  EXPECT_EQ(Read("tokens"), tokens);
}

}  // namespace
}  // namespace ballast
