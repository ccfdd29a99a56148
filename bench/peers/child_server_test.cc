// SPDX-License-Identifier: Apache-2.0
#include "bench/peers/child_server.h"

#include "gtest/gtest.h"

namespace ballast {
namespace {

// Runs a script whose $1 is the address file.
absl::StatusOr<ChildServer> Start(const std::string& script) {
  const absl::StatusOr<ScratchFolder> folder = ScratchFolder::Create();
  if (!folder.ok()) return folder.status();
  return ChildServer::Start({"/bin/sh", "-c", script}, *folder);
}

TEST(ChildServerTest, HasTheAddressThatItWrote) {
  const auto server = Start("echo 127.0.0.1:1 > \"$1.new\"; mv \"$1.new\" \"$1\"; exec sleep 600");
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_EQ(server->address(), "127.0.0.1:1");
}

TEST(ChildServerTest, ThatExitsAtOnceIsReportedWithItsStatusAndLastLines) {
  const absl::Status status = Start("echo starting; echo 'error: no port' >&2; exit 3").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(status.message(), "/bin/sh ended with status 3; it said: starting\nerror: no port");
}

TEST(ChildServerTest, ThatIsKilledAtOnceIsReportedWithTheSignal) {
  EXPECT_EQ(Start("kill -KILL $$").status().message(), "/bin/sh was killed by signal 9 (SIGKILL)");
}

}  // namespace
}  // namespace ballast
