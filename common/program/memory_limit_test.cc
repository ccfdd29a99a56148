// SPDX-License-Identifier: Apache-2.0
#include "common/program/memory_limit.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

class MemoryLimitTest : public testing::Test {
 protected:
  MemoryLimitTest() { std::filesystem::remove_all(root_); }
  ~MemoryLimitTest() override { std::filesystem::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) const {
    const std::filesystem::path file = root_ + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  void ExpectLimit(uint64_t bytes, const std::string& source) const {
    const MemoryLimit limit = ReadMemoryLimit(root_);
    EXPECT_EQ(limit.bytes, bytes);
    EXPECT_EQ(limit.source, source.empty() ? "" : root_ + source);
  }
  static uint64_t Machine() { return static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGE_SIZE); }

  const std::string root_ = absl::StrCat(testing::TempDir(), "/memory_limit_test");
};

TEST_F(MemoryLimitTest, IsTheMachinesMemoryWithoutAGroup) {
  ExpectLimit(Machine(), "");
  Write("/proc/self/cgroup", "0::/\n");
  ExpectLimit(Machine(), "");
}

TEST_F(MemoryLimitTest, IsThatOfAContainerThatSeesOnlyItsOwnGroup) {
  Write("/proc/self/cgroup", "0::/\n");
  Write("/sys/fs/cgroup/memory.max", "1048576\n");
  ExpectLimit(1048576, "/sys/fs/cgroup/memory.max");
}

TEST_F(MemoryLimitTest, IsTheSmallestOfTheGroupAndThoseThatContainIt) {
  Write("/proc/self/cgroup", "0::/pods/one/server\n");
  Write("/sys/fs/cgroup/pods/one/server/memory.max", "max\n");
  Write("/sys/fs/cgroup/pods/one/memory.max", "2097152\n");
  Write("/sys/fs/cgroup/pods/memory.max", "4194304\n");
  ExpectLimit(2097152, "/sys/fs/cgroup/pods/one/memory.max");
}

TEST_F(MemoryLimitTest, KnowsTheFirstVersionOfGroups) {
  Write("/proc/self/cgroup", "12:cpu,cpuacct:/docker/a\n11:memory:/docker/a\n");
  Write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "1048576\n");
  ExpectLimit(1048576, "/sys/fs/cgroup/memory/memory.limit_in_bytes");
  // Number that the file shows if there is no limit.
  Write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  ExpectLimit(Machine(), "");
}

TEST_F(MemoryLimitTest, DoesNotFailOnLinesThatItDoesNotKnow) {
  Write("/proc/self/cgroup", "\n0::\n0::x\n1:memory\nmemory\n0::/../..\n");
  Write("/sys/fs/cgroup/memory.max", "\n");
  ExpectLimit(Machine(), "");
}

}  // namespace
}  // namespace ballast
