// SPDX-License-Identifier: Apache-2.0
#include "common/program/network_link.h"

#include <filesystem>
#include <fstream>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

using ::testing::HasSubstr;

TEST(OwnAddressTest, IsTheOneThatTheSystemSendsFrom) {
  EXPECT_EQ(OwnAddressTowards("127.0.0.1").value(), "127.0.0.1");
  const absl::Status unknown = OwnAddressTowards("no-such-host.invalid").status();
  EXPECT_TRUE(absl::IsUnavailable(unknown)) << unknown;
  EXPECT_THAT(std::string(unknown.message()), HasSubstr("host no-such-host.invalid: its name cannot be resolved: "));
}

TEST(NetworkLinkTest, TheLoopbackInterfaceHasNoRate) {
  EXPECT_EQ(LinkBytesPerSecond("127.0.0.1:7700"), std::nullopt);
  EXPECT_EQ(LinkBytesPerSecond("[::1]:7700"), std::nullopt);
  EXPECT_EQ(LinkBytesPerSecond("no-such-host.invalid:7700"), std::nullopt);
}

TEST(NetworkLinkTest, OnlyADevicesRateCounts) {
  const std::string folder = testing::TempDir() + "/eth0";
  std::filesystem::create_directories(folder);
  EXPECT_EQ(InterfaceBytesPerSecond(folder), std::nullopt);
  std::ofstream(folder + "/speed") << "25000\n";
  EXPECT_EQ(InterfaceBytesPerSecond(folder), std::nullopt) << "a container's interface";
  std::ofstream(folder + "/device") << "";
  EXPECT_EQ(InterfaceBytesPerSecond(folder), 3.125e9);
  std::ofstream(folder + "/speed") << "-1\n";
  EXPECT_EQ(InterfaceBytesPerSecond(folder), std::nullopt) << "unknown";
}

}  // namespace
}  // namespace ballast
