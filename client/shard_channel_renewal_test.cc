// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "client/shard_channel.h"
#include "client/testing/fake_parameter_service.h"
#include "client/testing/fake_server.h"
#include "client/testing/send_slice.h"
#include "common/rpc/testing/host_name.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

// Time that the server is away. gRPC's pause after an unknown name exceeds the limit by then.
constexpr absl::Duration kAbsence = absl::Seconds(20);
constexpr absl::Duration kLimit = absl::Seconds(5);

// One test only, because a process must open its namespace before it has threads.
TEST(ShardChannelRenewalTest, AServerThatReturnsElsewhereAfterALongAbsenceIsFoundWithinSeconds) {
  HostName name("server.ballast.test");
  if (const std::string refused = name.Open(); !refused.empty()) {
    GTEST_SKIP() << "the kernel allows no mount namespaces: " << refused;
  }
  FakeParameterService shard;
  v1::DeclareTensorsRequest declare;
  declare.add_tensors()->add_slices()->set_elements(1);
  v1::DeclareTensorsResponse declared;
  shard.DeclareTensors(nullptr, &declare, &declared);
  auto server = std::make_unique<FakeServer>(&shard, nullptr, "127.0.0.2:0");
  const std::vector<std::string> parts = absl::StrSplit(server->address(), ':');
  name.MoveTo("127.0.0.2");

  ShardChannelOptions options;
  options.job = "test";
  options.rpc_timeout = options.retry_timeout = options.wait_timeout = absl::Minutes(2);
  ShardChannel channel(0, name.Target(std::stoi(parts[1])), options);
  const float gradient = 1;
  float value = 0;
  const auto push = [&] { return SendSlice(channel, ShardMessage::Kind::kPush, {&gradient, 1}, &value); };
  ASSERT_TRUE(push().Get()->status.ok());

  server.reset();
  name.Forget();
  const Future<ShardReply> delayed = push();
  absl::SleepFor(kAbsence);
  server = std::make_unique<FakeServer>(&shard, nullptr, "127.0.0.3:" + parts[1]);
  name.MoveTo("127.0.0.3");
  const absl::Time back = absl::Now();
  EXPECT_TRUE(delayed.Get()->status.ok()) << delayed.Get()->status;
  EXPECT_LT(absl::Now() - back, kLimit);
  EXPECT_EQ(shard.sequences(), (std::vector<uint64_t>{1, 2}));
}

}  // namespace
}  // namespace ballast
