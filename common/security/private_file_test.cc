// SPDX-License-Identifier: Apache-2.0
#include "common/security/private_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"

namespace ballast {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class PrivateFileTest : public ::testing::Test {
 protected:
  void SetUp() override { unlink(path_.c_str()); }
  void TearDown() override { unlink(path_.c_str()); }

  // In a directory that other users can enter.
  const std::string path_ = absl::StrCat("/tmp/ballast_private_file_test_", getpid());
};

TEST_F(PrivateFileTest, GivesBackWhatWasWrittenForItsOwnerAlone) {
  ASSERT_TRUE(WritePrivateFile(path_, "secret\n").ok());
  struct stat file = {};
  ASSERT_EQ(stat(path_.c_str(), &file), 0);
  EXPECT_EQ(file.st_mode & 07777, 0600u);
  EXPECT_EQ(ReadPrivateFile(path_, "--token_file").value(), "secret\n");
}

TEST_F(PrivateFileTest, RefusesAFileThatOthersMayReadAndSaysWhatToDo) {
  ASSERT_TRUE(WritePrivateFile(path_, "secret\n").ok());
  for (const mode_t mode : {0604, 0602, 0620, 0610, 0644, 0666}) {
    ASSERT_EQ(chmod(path_.c_str(), mode), 0);
    const absl::Status status = ReadPrivateFile(path_, "--token_file").status();
    EXPECT_TRUE(absl::IsPermissionDenied(status)) << mode << status;
  }
  ASSERT_EQ(chmod(path_.c_str(), 0644), 0);
  const std::string message(ReadPrivateFile(path_, "--token_file").status().message());
  EXPECT_THAT(message, AllOf(HasSubstr("--token_file " + path_), HasSubstr("mode 0644"), HasSubstr("chmod 600")));
}

TEST_F(PrivateFileTest, RefusesAFileOfThisUserThatItsGroupMayRead) {
  ASSERT_TRUE(WritePrivateFile(path_, "secret\n").ok());
  ASSERT_EQ(chmod(path_.c_str(), 0640), 0);
  EXPECT_TRUE(absl::IsPermissionDenied(ReadPrivateFile(path_, "--token_file").status()));
}

// Kubernetes mounts secrets like this.
TEST_F(PrivateFileTest, TakesAFileThatRootLetsOurOwnGroupRead) {
  if (geteuid() != 0) GTEST_SKIP() << "wants to be root";
  ASSERT_TRUE(WritePrivateFile(path_, "secret\n").ok());
  ASSERT_EQ(chown(path_.c_str(), 0, 65532), 0);
  ASSERT_EQ(chmod(path_.c_str(), 0440), 0);
  ASSERT_EQ(setegid(65532), 0);
  ASSERT_EQ(seteuid(65532), 0);
  const absl::StatusOr<std::string> read = ReadPrivateFile(path_, "--token_file");
  ASSERT_EQ(seteuid(0), 0);
  ASSERT_EQ(setegid(0), 0);
  EXPECT_EQ(read.value_or(std::string(read.status().message())), "secret\n");
}

TEST_F(PrivateFileTest, RefusesAFileOfAnotherUser) {
  if (geteuid() != 0) GTEST_SKIP() << "wants to be root";
  ASSERT_TRUE(WritePrivateFile(path_, "secret\n").ok());
  ASSERT_EQ(chown(path_.c_str(), 4242, 4242), 0);
  const absl::Status status = ReadPrivateFile(path_, "--token_file").status();
  EXPECT_TRUE(absl::IsPermissionDenied(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("belongs to user 4242"));
}

TEST_F(PrivateFileTest, NamesAFileThatIsNotThere) {
  const absl::Status status = ReadPrivateFile(path_, "--tls_key").status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("--tls_key " + path_ + ": cannot open: No such file"));
}

TEST_F(PrivateFileTest, RefusesWhatIsNoFileWithoutWaitingForIt) {
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  EXPECT_THAT(ReadPrivateFile(path_, "--tls_key").status().message(), HasSubstr("is not a regular file"));
}

TEST_F(PrivateFileTest, RefusesAFileOfMoreThanAMebibyte) {
  ASSERT_TRUE(WritePrivateFile(path_, std::string((1 << 20) + 1, 'x')).ok());
  EXPECT_THAT(ReadPrivateFile(path_, "--tls_key").status().message(), HasSubstr("more than 1048576"));
}

TEST_F(PrivateFileTest, NeverWritesOverAnotherFile) {
  ASSERT_TRUE(WritePrivateFile(path_, "first").ok());
  EXPECT_TRUE(absl::IsAlreadyExists(WritePrivateFile(path_, "second")));
  EXPECT_EQ(ReadPrivateFile(path_, "x").value(), "first");
}

}  // namespace
}  // namespace ballast
