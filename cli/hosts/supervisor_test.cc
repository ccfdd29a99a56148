// SPDX-License-Identifier: Apache-2.0
#include "cli/hosts/supervisor.h"

#include <map>
#include <string>

#include "gtest/gtest.h"

namespace ballast {
namespace {

class Recorder : public ProcessListener {
 public:
  void OnOutput(int child, absl::string_view bytes) override { output[child].append(bytes.data(), bytes.size()); }
  void OnEnd(int child, const ExitStatus& status) override { ends[child] = status.ToString(); }
  void OnSignal(int signal) override { signals.push_back(signal); }

  std::map<int, std::string> output;
  std::map<int, std::string> ends;
  std::vector<int> signals;
};

class SupervisorTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto created = Supervisor::Create(&heard_);
    ASSERT_TRUE(created.ok()) << created.status();
    supervisor_ = std::move(*created);
  }

  int Shell(const std::string& script) { return supervisor_->Start({"/bin/sh", "-c", script}).value(); }

  // Polls until `done` or for 10 seconds.
  template <typename Done>
  void PollUntil(Done done) {
    const absl::Time deadline = absl::Now() + absl::Seconds(10);
    while (!done() && absl::Now() < deadline) supervisor_->Poll(absl::Seconds(1));
    ASSERT_TRUE(done());
  }

  Recorder heard_;
  std::unique_ptr<Supervisor> supervisor_;
};

TEST_F(SupervisorTest, HearsOutputAndEndOfEachChild) {
  ASSERT_EQ(Shell("echo a"), 0);
  ASSERT_EQ(Shell("echo b; exit 4"), 1);
  PollUntil([&] { return heard_.ends.size() == 2; });
  EXPECT_EQ(heard_.output[0], "a\n");
  EXPECT_EQ(heard_.output[1], "b\n");
  EXPECT_EQ(heard_.ends[0], "ended with status 0");
  EXPECT_EQ(heard_.ends[1], "ended with status 4");
  EXPECT_FALSE(supervisor_->running(1));
}

TEST_F(SupervisorTest, HearsAllOutputBeforeTheEnd) {
  Shell("head -c 300000 /dev/zero");
  PollUntil([&] { return heard_.ends.size() == 1; });
  EXPECT_EQ(heard_.output[0].size(), 300000u);
}

TEST_F(SupervisorTest, HearsTheEndOfAChildWhosePipeLivesOnInAnother) {
  Shell("tail -f /dev/null & exit 5");
  PollUntil([&] { return heard_.ends.size() == 1; });
  EXPECT_EQ(heard_.ends[0], "ended with status 5");
}

TEST_F(SupervisorTest, HearsTheEndOfAChildThatClosedItsOutput) {
  Shell("exec >&- 2>&-; exit 6");
  PollUntil([&] { return heard_.ends.size() == 1; });
  EXPECT_EQ(heard_.ends[0], "ended with status 6");
}

TEST_F(SupervisorTest, HearsSignalsToItself) {
  raise(SIGINT);
  raise(SIGTERM);
  PollUntil([&] { return heard_.signals.size() == 2; });
  EXPECT_EQ(heard_.signals, (std::vector<int>{SIGINT, SIGTERM}));
}

TEST_F(SupervisorTest, PassesSignalsToOneChild) {
  Shell("echo ready; exec tail -f /dev/null");
  Shell("echo ready; exec tail -f /dev/null");
  PollUntil([&] { return heard_.output.size() == 2; });
  supervisor_->Signal(0, SIGKILL);
  PollUntil([&] { return heard_.ends.size() == 1; });
  EXPECT_EQ(heard_.ends[0], "was killed by signal 9 (SIGKILL)");
  EXPECT_TRUE(supervisor_->running(1));
}

TEST_F(SupervisorTest, KillsEveryChildWhenItGoes) {
  Shell("trap '' TERM INT; exec tail -f /dev/null");
  const pid_t child = supervisor_->pid(0);
  supervisor_.reset();
  EXPECT_EQ(kill(child, 0), -1);
  EXPECT_TRUE(heard_.ends.empty());
}

}  // namespace
}  // namespace ballast
