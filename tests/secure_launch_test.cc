// SPDX-License-Identifier: Apache-2.0
// Security that the programs set up or require by themselves.
#include "absl/strings/match.h"
#include "gmock/gmock.h"
#include "tests/testing/job_test.h"

namespace ballast {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class SecureLaunchTest : public JobTest {
 protected:
  void SetUp() override {
    JobTest::SetUp();
    // Takes longer than any test.
    WriteEndlessJob();
  }

  // Returns the address of server 0 from the output of a verbose launch.
  static std::string Address(ChildProcess& launch) {
    constexpr char kServes[] = "server 0 serves on ";
    EXPECT_TRUE(launch.AwaitOutput(kServes)) << launch.output();
    EXPECT_TRUE(launch.AwaitOutput("epoch 1")) << launch.output();
    const size_t begin = launch.output().find(kServes) + sizeof(kServes) - 1;
    return launch.output().substr(begin, launch.output().find_first_of(" \n", begin) - begin);
  }

  // Returns the output of `ballast status`, followed by how it ended.
  static std::string Status(const std::vector<std::string>& words) {
    std::vector<std::string> argv = {Binary("cli/ballast"), "status"};
    argv.insert(argv.end(), words.begin(), words.end());
    ChildProcess status(argv);
    const ExitStatus end = status.Wait();
    return absl::StrCat(status.output(), "exit ", end.number);
  }
};

TEST_F(SecureLaunchTest, LetsNobodyInButWhoMayReadItsRunFolder) {
  ChildProcess launch = Launch({"--servers", "2", "--workers", "1", "--verbose"});
  const std::string address = Address(launch);
  const std::string outsider = Status({address});
  EXPECT_THAT(outsider, HasSubstr("error: "));
  EXPECT_THAT(outsider, HasSubstr("exit 1"));
  const std::string insider = Status({address, "--run", Path("run")});
  EXPECT_THAT(insider, HasSubstr("job blobs: running"));
  EXPECT_THAT(insider, HasSubstr("exit 0"));
  launch.Signal(SIGINT);
  EXPECT_EQ(launch.Wait().number, 130) << launch.output();
}

TEST_F(SecureLaunchTest, LeavesNoSecretsBehind) {
  ChildProcess launch = Launch({"--verbose"});
  Address(launch);
  std::vector<std::string> secrets;
  for (const char* role : {"admin", "worker", "reader"}) {
    const std::vector<std::string> words =
        absl::StrSplit(Read(absl::StrCat("run/security/", role, ".token")), absl::ByAnyChar(" \n"));
    ASSERT_GE(words.size(), 3u);
    ASSERT_EQ(words[2].size(), 64u);
    secrets.push_back(words[2]);
  }
  launch.Signal(SIGINT);
  EXPECT_EQ(launch.Wait().number, 130) << launch.output();
  EXPECT_FALSE(std::filesystem::exists(Path("run/security")));
  int files = 0;
  for (const auto& file : std::filesystem::recursive_directory_iterator(Path("run"))) {
    if (!file.is_regular_file()) continue;
    ++files;
    const std::string text = Read("run/" + std::filesystem::relative(file.path(), Path("run")).string());
    for (const std::string& secret : secrets) EXPECT_FALSE(absl::StrContains(text, secret)) << file.path();
    EXPECT_FALSE(absl::StrContains(text, "PRIVATE KEY")) << file.path();
  }
  EXPECT_GE(files, 5);
  for (const std::string& secret : secrets) EXPECT_THAT(launch.output(), Not(HasSubstr(secret)));
}

TEST_F(SecureLaunchTest, GoesWithoutWhenToldToAndSaysSo) {
  ChildProcess launch = Launch({"--insecure", "--verbose"});
  const std::string address = Address(launch);
  EXPECT_THAT(launch.output(), HasSubstr("WARNING: --insecure"));
  EXPECT_FALSE(std::filesystem::exists(Path("run/security")));
  EXPECT_THAT(Status({address}), HasSubstr("job blobs: running"));
  launch.Signal(SIGINT);
  EXPECT_EQ(launch.Wait().number, 130) << launch.output();
}

TEST(ServerProgramTest, RefusesToServeOtherMachinesWithoutTlsAndSaysWhatToDo) {
  ChildProcess server({"server/ballast_server", "--listen", "0.0.0.0:0"});
  EXPECT_EQ(server.Wait().number, 2);
  EXPECT_THAT(server.last_line(), HasSubstr("error: refusing to listen on 0.0.0.0:0 without TLS and tokens"));
  EXPECT_THAT(server.last_line(), HasSubstr("--tls_cert"));
}

TEST(ServerProgramTest, WarnsLoudlyAtAnInsecureStart) {
  ChildProcess server({"server/ballast_server", "--listen", "0.0.0.0:0", "--insecure"});
  EXPECT_TRUE(server.AwaitOutput("serves on 0.0.0.0:")) << server.output();
  EXPECT_THAT(server.output(), HasSubstr("WARNING: --INSECURE: listening on 0.0.0.0:0 without TLS and tokens"));
  server.Signal(SIGTERM);
  EXPECT_EQ(server.Wait().number, 0);
}

TEST(ServerProgramTest, RefusesACertificateWithoutItsKeyAndATokenFileThatOthersMayRead) {
  ChildProcess keyless({"server/ballast_server", "--listen", "127.0.0.1:0", "--tls_cert", "server.pem"});
  EXPECT_EQ(keyless.Wait().number, 2);
  EXPECT_THAT(keyless.last_line(), HasSubstr("--tls_cert server.pem: want its private key too"));
  const std::string tokens = ::testing::TempDir() + "/tokens";
  std::ofstream(tokens) << "admin * " << std::string(64, 'a') << "\n";
  std::filesystem::permissions(tokens, std::filesystem::perms(0644));
  ChildProcess open({"server/ballast_server", "--listen", "127.0.0.1:0", "--token_file", tokens});
  EXPECT_NE(open.Wait().number, 0);
  EXPECT_THAT(open.last_line(), HasSubstr("tokens: got mode 0644"));
  EXPECT_THAT(open.last_line(), HasSubstr("chmod 600"));
}

TEST(WorkerProgramTest, RefusesToSpeakToOtherMachinesWithoutTls) {
  ChildProcess worker(
      {"worker/ballast_worker", "--job", "examples/fashion_mnist.textproto", "--coordinator", "192.0.2.1:7700"});
  EXPECT_EQ(worker.Wait().number, 2);
  EXPECT_THAT(worker.last_line(), HasSubstr("refusing to connect to 192.0.2.1:7700 without TLS"));
}

}  // namespace
}  // namespace ballast
