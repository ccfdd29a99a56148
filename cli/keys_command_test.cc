// SPDX-License-Identifier: Apache-2.0
#include <filesystem>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "cli/command/command.h"
#include "common/security/key_folder.h"
#include "common/security/tls_files.h"
#include "common/security/tokens.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

using ::testing::HasSubstr;

class KeysCommandTest : public ::testing::Test {
 protected:
  void SetUp() override { std::filesystem::remove_all(folder_); }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  int Run(std::vector<std::string> args) {
    out_.str("");
    err_.str("");
    return KeysCommand(args, out_, err_);
  }

  const std::string folder_ = ::testing::TempDir() + "/keys_command_test";
  std::ostringstream out_, err_;
};

TEST_F(KeysCommandTest, MakesAFolderAndSaysHowToUseIt) {
  ASSERT_EQ(Run({folder_, "--hosts", "*.ballast-server,10.0.0.1", "--job", "mnist", "--days", "2"}), 0) << err_.str();
  const TlsFiles server = {folder_ + "/server.pem", folder_ + "/server.key", folder_ + "/ca.pem"};
  EXPECT_EQ(CheckTlsFiles(server, absl::Now() + absl::Hours(47)), absl::OkStatus());
  EXPECT_FALSE(CheckTlsFiles(server, absl::Now() + absl::Hours(49)).ok());
  EXPECT_TRUE(LoadClientToken(folder_ + "/worker.token").ok());
  EXPECT_THAT(out_.str(), HasSubstr("for servers at localhost, 127.0.0.1, *.ballast-server, 10.0.0.1"));
  EXPECT_THAT(out_.str(), HasSubstr("ballast_server --tls_cert " + folder_ + "/server.pem"));
  EXPECT_THAT(out_.str(), HasSubstr("--token_file " + folder_ + "/worker.token"));
}

TEST_F(KeysCommandTest, RefusesWhatDoesNotFit) {
  EXPECT_EQ(Run({folder_}), 2);
  EXPECT_THAT(err_.str(), HasSubstr("keys: flag --hosts is missing"));
  EXPECT_EQ(Run({folder_, "--hosts", "a b"}), 2);
  EXPECT_THAT(err_.str(), HasSubstr("flag --hosts: got \"a b\", want a host without a port"));
  EXPECT_EQ(Run({folder_, "--hosts", "a,email:x"}), 2);
  EXPECT_EQ(Run({folder_, "--hosts", "a", "--job", "No Job"}), 2);
  EXPECT_EQ(Run({folder_, "--hosts", "a", "--days", "0"}), 2);
  EXPECT_EQ(Run({"--hosts", "a"}), 2);
  EXPECT_FALSE(std::filesystem::exists(folder_));
}

TEST_F(KeysCommandTest, DoesNotReplaceAFolder) {
  ASSERT_EQ(Run({folder_, "--hosts", "a"}), 0) << err_.str();
  const std::string token = LoadClientToken(folder_ + "/admin.token").value();
  EXPECT_EQ(Run({folder_, "--hosts", "a"}), 2);
  EXPECT_THAT(err_.str(), HasSubstr("cannot create the directory"));
  EXPECT_EQ(LoadClientToken(folder_ + "/admin.token").value(), token);
}

}  // namespace
}  // namespace ballast
