// SPDX-License-Identifier: Apache-2.0
#include "cli/hosts/host_list.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

using ::testing::HasSubstr;

// Returns "login address workers" of each host, with "here" for a local one.
std::string Parsed(const std::string& text) {
  const absl::StatusOr<std::vector<JobHost>> hosts = ParseHosts(text);
  if (!hosts.ok()) return std::string(hosts.status().message());
  return absl::StrJoin(*hosts, "; ", [](std::string* out, const JobHost& host) {
    absl::StrAppend(out, host.login, " ", host.address, " ", host.workers, host.local ? " here" : "");
  });
}

TEST(ParseHostsTest, AcceptsNamesAddressesUsersAndNumbersOfWorkers) {
  const std::pair<const char*, const char*> cases[] = {
      {"a", "a a 1"},
      {"a,b:2,c:0", "a a 1; b b 2; c c 0"},
      {"me@gpu-1.example.com:4", "me@gpu-1.example.com gpu-1.example.com 4"},
      {"localhost:2", "localhost localhost 2 here"},
      {"127.0.0.1", "127.0.0.1 127.0.0.1 1 here"},
      {"me@localhost", "me@localhost localhost 1"},
      {"192.0.2.10:64", "192.0.2.10 192.0.2.10 64"},
      {"2001:db8::1", "2001:db8::1 2001:db8::1 1"},
      {"me@[2001:db8::1]:3", "me@2001:db8::1 2001:db8::1 3"},
  };
  for (const auto& [text, want] : cases) EXPECT_EQ(Parsed(text), want) << text;
}

TEST(ParseHostsTest, NamesTheBadEntry) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "got \"\", want a host's name or address"},
      {"a,", "got \"\", want a host's name or address"},
      {"a:65", "got \"a:65\", want a number of workers from 0 to 64 after the colon"},
      {"a:", "got \"a:\", want a number of workers"},
      {"a:-1", "want a number of workers"},
      {"-oProxyCommand=x", "want a host's name or address"},
      {"-v@a", "want a user's name"},
      {"a b", "want a host's name or address"},
      {"*.example.com", "want a host's name or address"},
      {"a,b,a:2", "want each host once; a:2 has two workers"},
      {"localhost,127.0.0.1", "want each host once"},
      {"[::1", "want \"]\" after the address"},
  };
  for (const auto& [text, want] : cases) EXPECT_THAT(Parsed(text), HasSubstr(want)) << text;
}

TEST(WithPortTest, PutsBracketsAroundSixthVersionAddresses) {
  EXPECT_EQ(WithPort("a", "7700"), "a:7700");
  EXPECT_EQ(WithPort("2001:db8::1", "0"), "[2001:db8::1]:0");
}

}  // namespace
}  // namespace ballast
