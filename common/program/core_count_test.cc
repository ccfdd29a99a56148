// SPDX-License-Identifier: Apache-2.0
#include "common/program/core_count.h"

#include <sched.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

class CoreCountTest : public testing::Test {
 protected:
  CoreCountTest() { std::filesystem::remove_all(root_); }
  ~CoreCountTest() override { std::filesystem::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) const {
    const std::filesystem::path file = root_ + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  static int Allowed() {
    cpu_set_t allowed;
    EXPECT_EQ(sched_getaffinity(0, sizeof(allowed), &allowed), 0);
    return CPU_COUNT(&allowed);
  }

  const std::string root_ = absl::StrCat(testing::TempDir(), "/core_count_test");
};

TEST_F(CoreCountTest, CountsTheCoresThatTheThreadMayUse) {
  EXPECT_EQ(CoreCount(root_), Allowed());
  cpu_set_t before, one;
  ASSERT_EQ(sched_getaffinity(0, sizeof(before), &before), 0);
  CPU_ZERO(&one);
  for (int core = 0; CPU_COUNT(&one) == 0; ++core) {
    if (CPU_ISSET(core, &before)) CPU_SET(core, &one);
  }
  ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
  EXPECT_EQ(CoreCount(root_), 1);
  ASSERT_EQ(sched_setaffinity(0, sizeof(before), &before), 0);
}

TEST_F(CoreCountTest, IsAtMostTheSmallestLimitOfTheGroups) {
  Write("/proc/self/cgroup", "0::/pods/server\n");
  Write("/sys/fs/cgroup/pods/server/cpu.max", "max 100000\n");
  EXPECT_EQ(CoreCount(root_), Allowed());
  // Half a core counts as one.
  Write("/sys/fs/cgroup/pods/cpu.max", "50000 100000\n");
  EXPECT_EQ(CoreCount(root_), 1);
  Write("/sys/fs/cgroup/pods/cpu.max", "100000000 100000\n");
  EXPECT_EQ(CoreCount(root_), Allowed());
}

TEST_F(CoreCountTest, KnowsTheFirstVersionOfGroups) {
  Write("/proc/self/cgroup", "12:cpu,cpuacct:/docker/a\n");
  Write("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "100000\n");
  Write("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(CoreCount(root_), 1);
  Write("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
  EXPECT_EQ(CoreCount(root_), Allowed());
}

TEST_F(CoreCountTest, DoesNotFailOnWhatItDoesNotKnow) {
  Write("/proc/self/cgroup", "0::/\n");
  for (const char* text : {"", "\n", "100000", "0 0", "100000 0", "x y"}) {
    Write("/sys/fs/cgroup/cpu.max", text);
    EXPECT_EQ(CoreCount(root_), Allowed()) << text;
  }
}

}  // namespace
}  // namespace ballast
