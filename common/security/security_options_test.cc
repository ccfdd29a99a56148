// SPDX-License-Identifier: Apache-2.0
#include "common/security/security_options.h"

#include "gmock/gmock.h"

namespace ballast {
namespace {

using ::testing::HasSubstr;

SecurityOptions Secure() { return {{"cert", "key", "ca"}, "tokens"}; }

TEST(SecurityOptionsTest, KnowsWhatOnlyThisMachineReaches) {
  for (const char* address :
       {"127.0.0.1:0", "127.9.9.9:7700", "localhost:7700", "LocalHost:1", "[::1]:7700", "::1:7700"}) {
    EXPECT_TRUE(IsLoopback(address)) << address;
  }
  for (const char* address :
       {"0.0.0.0:0", "[::]:7700", "10.0.0.1:7700", "128.0.0.1:1", "localhost.example.com:1", "127.0.0.1.example.com:1",
        "ballast-server-0:7700", "[::ffff:10.0.0.1]:1", "dns:127.0.0.1:1", ""}) {
    EXPECT_FALSE(IsLoopback(address)) << address;
  }
}

TEST(SecurityOptionsTest, ALoopbackMayBeServedWithoutAnything) {
  EXPECT_EQ(CheckServing("127.0.0.1:7700", {}), absl::OkStatus());
}

TEST(SecurityOptionsTest, OtherMachinesAreServedWithTlsAndTokens) {
  EXPECT_EQ(CheckServing("0.0.0.0:7700", Secure()), absl::OkStatus());
  EXPECT_EQ(InsecurityWarning("0.0.0.0:7700", Secure()), "");
}

TEST(SecurityOptionsTest, OtherMachinesAreNotServedWithoutTlsOrTokens) {
  SecurityOptions no_tokens = Secure(), no_tls = Secure();
  no_tokens.token_file.clear();
  no_tls.tls = {};
  const std::pair<SecurityOptions, const char*> cases[] = {
      {{}, "without TLS and tokens:"}, {no_tokens, "without tokens:"}, {no_tls, "without TLS:"}};
  for (const auto& [options, want] : cases) {
    for (const char* address : {"0.0.0.0:0", "[::]:7700", "10.1.2.3:7700", "some-host:7700"}) {
      const absl::Status status = CheckServing(address, options);
      EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr(want));
      EXPECT_THAT(std::string(status.message()), HasSubstr("--insecure"));
    }
  }
}

TEST(SecurityOptionsTest, InsecureIsAllowedAndLoud) {
  const SecurityOptions options = {{}, "", true};
  EXPECT_EQ(CheckServing("0.0.0.0:7700", options), absl::OkStatus());
  EXPECT_THAT(InsecurityWarning("0.0.0.0:7700", options), HasSubstr("WARNING: --INSECURE: listening on 0.0.0.0:7700"));
  EXPECT_THAT(InsecurityWarning("0.0.0.0:7700", options), HasSubstr("without TLS and tokens"));
}

}  // namespace
}  // namespace ballast
