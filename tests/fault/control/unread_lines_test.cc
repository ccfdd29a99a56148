// SPDX-License-Identifier: Apache-2.0
// A server whose log lines nobody reads (a blocked terminal, a full pipe) still responds, and ends.
#include <memory>
#include <string>

#include "gtest/gtest.h"
#include "tests/fault/control/control_probe.h"
#include "tests/fault/oracle/server_process.h"

namespace ballast {
namespace {

constexpr char kServer[] = "server/ballast_server";
// The server logs a line of 26 bytes in each round; a pipe holds 64 KiB.
constexpr int kRounds = 4000;
constexpr absl::Duration kTimeout = absl::Seconds(20);

TEST(UnreadLinesTest, DoNotHoldControlCallsUp) {
  absl::StatusOr<std::unique_ptr<ServerProcess>> server =
      ServerProcess::Start(kServer, "127.0.0.1", {"--workers", "2"});
  ASSERT_TRUE(server.ok()) << server.status();
  absl::StatusOr<std::unique_ptr<ControlProbe>> probe = ControlProbe::Start((*server)->address(), v1::Durability());
  ASSERT_TRUE(probe.ok()) << probe.status();
  for (int round = 0; round < kRounds; ++round) ASSERT_EQ((*probe)->CallEach(kTimeout), absl::OkStatus()) << round;
  probe->reset();
  // End reads these lines and all later ones.
  EXPECT_EQ((*server)->End(), absl::OkStatus());
  EXPECT_NE((*server)->output().find("has ended"), std::string::npos);
  EXPECT_GT((*server)->output().size(), size_t{64} << 10);
}

}  // namespace
}  // namespace ballast
