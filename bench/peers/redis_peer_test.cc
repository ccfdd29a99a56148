// SPDX-License-Identifier: Apache-2.0
#include "bench/peers/redis_peer.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

TEST(RedisPeerTest, ReturnsTheValuesOfSeveralCommands) {
  const absl::StatusOr<ScratchFolder> folder = ScratchFolder::Create();
  ASSERT_TRUE(folder.ok()) << folder.status();
  const absl::StatusOr<std::unique_ptr<RedisPeer>> redis = RedisPeer::Start(*folder);
  if (absl::IsNotFound(redis.status())) GTEST_SKIP() << redis.status();
  ASSERT_TRUE(redis.ok()) << redis.status();
  std::vector<uint64_t> ids(2500);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = i;
  EXPECT_EQ((*redis)->Set(absl::MakeConstSpan(ids).first(2499), std::string("a\0b\n", 4)), absl::OkStatus());
  EXPECT_EQ((*redis)->Set(absl::MakeConstSpan(ids).last(1), "last"), absl::OkStatus());
  std::string values(2500 * 4, '?');
  EXPECT_EQ((*redis)->Get(ids, 4, absl::MakeSpan(values.data(), values.size())), absl::OkStatus());
  EXPECT_EQ(values.substr(0, 8), std::string("a\0b\na\0b\n", 8));
  EXPECT_EQ(values.substr(2499 * 4), "last");
  EXPECT_EQ((*redis)->Get({2500}, 4, absl::MakeSpan(values.data(), 4)).message(),
            "Redis has no value of 4 bytes for id 2500");
}

}  // namespace
}  // namespace ballast
