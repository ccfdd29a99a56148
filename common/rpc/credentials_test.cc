// SPDX-License-Identifier: Apache-2.0
#include "common/rpc/credentials.h"

#include "gtest/gtest.h"

namespace ballast {
namespace {

TEST(CredentialsTest, TakesOnlyAHostAndAPortAsATarget) {
  const Credentials none;
  EXPECT_TRUE(none.CheckTarget("127.0.0.1:7700").ok());
  EXPECT_TRUE(none.CheckTarget("[::1]:65535").ok());
  for (const char* address :
       {"", "127.0.0.1", ":7700", "localhost:", "localhost:0", "localhost:65536", "localhost:x"}) {
    EXPECT_EQ(none.CheckTarget(address).message(),
              std::string("cannot connect to \"") + address + "\": want HOST:PORT with a port of 1 to 65535");
  }
}

}  // namespace
}  // namespace ballast
