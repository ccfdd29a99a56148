// SPDX-License-Identifier: Apache-2.0
#include "common/security/tokens.h"

#include <sys/stat.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "common/security/private_file.h"
#include "gmock/gmock.h"

namespace ballast {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kAdmin[] = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
constexpr char kWorker[] = "wwwwwwwwwwwwwwwwwwwwwwwwwwwwwwww";
constexpr char kReader[] = "rrrrrrrrrrrrrrrrrrrrrrrrrrrrrrrr-._~+/=";

absl::StatusOr<TokenTable> Parse(absl::string_view text) { return TokenTable::Parse(text, "tokens"); }

TEST(TokenTableTest, KnowsWhatEachTokenStandsFor) {
  const TokenTable table = Parse(absl::StrCat("# Made by hand.\n\nadmin * ", kAdmin, "\n  worker\tmnist  ", kWorker,
                                              " # host 7\nreader mnist ", kReader))
                               .value();
  ASSERT_NE(table.Find(kWorker), nullptr);
  EXPECT_EQ(table.Find(kWorker)->role, AccessRole::kWorker);
  EXPECT_EQ(table.Find(kWorker)->job, "mnist");
  EXPECT_EQ(table.Find(kAdmin)->role, AccessRole::kAdmin);
  EXPECT_EQ(table.Find(kAdmin)->job, "*");
  EXPECT_EQ(table.Find(kReader)->role, AccessRole::kReader);
}

TEST(TokenTableTest, KnowsNoOtherToken) {
  const TokenTable table = Parse(absl::StrCat("worker mnist ", kWorker)).value();
  const std::string token = kWorker;
  for (const std::string& other : {std::string(), token.substr(1), token + "w", std::string(32, 'x'), "W" + token}) {
    EXPECT_EQ(table.Find(other), nullptr) << other;
  }
}

TEST(TokenTableTest, ShowsOtherServersTheAdminOfEveryJobFirst) {
  EXPECT_EQ(Parse(absl::StrCat("admin mnist ", kWorker, "\nadmin * ", kAdmin)).value().admin_token(), kAdmin);
  EXPECT_EQ(Parse(absl::StrCat("reader * ", kReader, "\nadmin mnist ", kWorker)).value().admin_token(), kWorker);
  EXPECT_EQ(Parse(absl::StrCat("reader * ", kReader)).value().admin_token(), "");
}

TEST(TokenTableTest, NamesTheLineThatIsWrongButNeverATokenInIt) {
  const std::pair<std::string, const char*> cases[] = {
      {absl::StrCat("worker ", kWorker), "line 1: got 2 words, want three"},
      {absl::StrCat("worker a b ", kWorker), "line 1: got 4 words"},
      {absl::StrCat("\nroot * ", kWorker), "line 2: the first word is not a role, want reader, worker or admin"},
      {absl::StrCat("worker MNIST! ", kWorker), "line 1: the second word is not a job name"},
      {"worker * wwwwwwwwwwwwwwwwwwwwwwwwwwwwwww", "line 1: got a token of 31 characters, want 32 to 512"},
      {absl::StrCat("worker * ", std::string(513, 'w')), "line 1: got a token of 513 characters"},
      {absl::StrCat("worker * ", kWorker, ","), "line 1: the token has characters other than A-Z"},
      {absl::StrCat("worker * ", kWorker, "\nreader * ", kWorker), "line 2: repeats an earlier token"},
      {"# nothing", "contains no token"}};
  for (const auto& [text, want] : cases) {
    const absl::Status status = Parse(text).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(want));
    EXPECT_THAT(std::string(status.message()), Not(HasSubstr("wwwwwwwwwwwwwwwwwwww")));
  }
}

class TokenFileTest : public ::testing::Test {
 protected:
  void TearDown() override { unlink(path_.c_str()); }
  void Write(const std::string& text) { ASSERT_TRUE(WritePrivateFile(path_, text).ok()); }

  const std::string path_ = ::testing::TempDir() + "/tokens_test";
};

TEST_F(TokenFileTest, IsReadByServersAndClients) {
  Write(absl::StrCat("worker mnist ", kWorker, "\n"));
  EXPECT_NE(TokenTable::Load(path_).value().Find(kWorker), nullptr);
  EXPECT_EQ(LoadClientToken(path_).value(), kWorker);
}

TEST_F(TokenFileTest, IsRefusedWhereOthersMayReadIt) {
  Write(absl::StrCat("worker mnist ", kWorker, "\n"));
  ASSERT_EQ(chmod(path_.c_str(), 0644), 0);
  for (const absl::Status& status : {TokenTable::Load(path_).status(), LoadClientToken(path_).status()}) {
    EXPECT_TRUE(absl::IsPermissionDenied(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("mode 0644"));
  }
}

TEST_F(TokenFileTest, OfAClientHoldsOneTokenOnly) {
  Write(absl::StrCat("worker mnist ", kWorker, "\nadmin * ", kAdmin, "\n"));
  const absl::Status status = LoadClientToken(path_).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("got 2 tokens, want one"));
}

}  // namespace
}  // namespace ballast
