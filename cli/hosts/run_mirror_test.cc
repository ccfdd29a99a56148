// SPDX-License-Identifier: Apache-2.0
#include "cli/hosts/run_mirror.h"

#include <fcntl.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "common/storage/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A mirror whose changes go through a pipe into the run directory of a launch.
class RunMirrorTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = ::testing::TempDir() + "/" + ::testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_ + "/there/logs");
    std::filesystem::create_directories(folder_ + "/here");
    ASSERT_EQ(pipe2(pipe_, O_CLOEXEC | O_NONBLOCK), 0);
    mirror_ = std::make_unique<RunMirror>(folder_ + "/there");
  }
  void TearDown() override {
    close(pipe_[0]);
    close(pipe_[1]);
  }

  void Write(const std::string& name, const std::string& text) {
    ASSERT_EQ(WriteFileAtomically(folder_ + "/there/" + name, {text}), absl::OkStatus());
  }
  void Append(const std::string& name, const std::string& text) {
    std::ofstream(folder_ + "/there/" + name, std::ios::app) << text;
  }
  std::string Here(const std::string& name) { return ReadFile(folder_ + "/here/" + name).value_or("absent"); }

  void Put(const std::string& name, const std::string& text) {
    internal::v1::AgentRequest::File file;
    file.set_path(name);
    file.set_content(text);
    ASSERT_EQ(mirror_->Put(file), absl::OkStatus());
  }

  void Receive(FrameChannel& out, std::vector<std::string>& parts) {
    for (bool more = true; more;) {
      more = out.unsent() > 0;
      out.Exchange();
      while (const auto bytes = out.NextMessage()) {
        internal::v1::AgentReply reply;
        EXPECT_TRUE(reply.ParseFromString(*bytes));
        EXPECT_EQ(ReceivePart(folder_ + "/here", reply.file()), absl::OkStatus());
        parts.push_back(
            absl::StrCat(reply.file().path(), " ", reply.file().offset(), " ", reply.file().content().size()));
      }
    }
  }

  // Sends what has changed, and writes it. Returns "path offset size" of each part.
  std::vector<std::string> Send() {
    std::vector<std::string> parts;
    FrameChannel out(pipe_[0], pipe_[1]);
    bool done = false;
    do {
      done = mirror_->SendChanges(out);
      Receive(out, parts);
    } while (!done);
    return parts;
  }

  std::string folder_;
  int pipe_[2] = {-1, -1};
  std::unique_ptr<RunMirror> mirror_;
};

TEST_F(RunMirrorTest, SendsEachFileOnceAndAgainWhenItWasReplaced) {
  Write("logs/server-0.address", "127.0.0.1:1\n");
  EXPECT_THAT(Send(), ElementsAre("logs/server-0.address 0 12"));
  EXPECT_EQ(Here("logs/server-0.address"), "127.0.0.1:1\n");
  EXPECT_THAT(Send(), IsEmpty());
  Write("logs/server-0.address", "127.0.0.1:2\n");
  EXPECT_THAT(Send(), ElementsAre("logs/server-0.address 0 12"));
  EXPECT_EQ(Here("logs/server-0.address"), "127.0.0.1:2\n");
}

TEST_F(RunMirrorTest, SendsOnlyWhatIsNewInAGrowingFile) {
  for (const std::string name : {"metrics.jsonl", "events.out.tfevents.1.host"}) {
    Append(name, "one\n");
    EXPECT_THAT(Send(), ElementsAre(name + " 0 4"));
    Append(name, "two\n");
    EXPECT_THAT(Send(), ElementsAre(name + " 4 4"));
    EXPECT_EQ(Here(name), "one\ntwo\n");
  }
}

TEST_F(RunMirrorTest, ContinuesAFileThatTheLaunchHadFromAnEarlierConnection) {
  std::ofstream(folder_ + "/here/metrics.jsonl") << "one\n";
  Put("metrics.jsonl", "one\n");
  EXPECT_THAT(Send(), IsEmpty());
  Append("metrics.jsonl", "two\n");
  EXPECT_THAT(Send(), ElementsAre("metrics.jsonl 4 4"));
  EXPECT_EQ(Here("metrics.jsonl"), "one\ntwo\n");
}

TEST_F(RunMirrorTest, SendsAFileOfManyParts) {
  std::string text(9'000'000, 'x');
  text[5'000'000] = 'y';
  Write("model.safetensors", text);
  EXPECT_EQ(Send().size(), 9u);
  EXPECT_EQ(Here("model.safetensors"), text);
}

TEST_F(RunMirrorTest, NeverSendsKeysNorUnfinishedFiles) {
  Put("security/server.key", "secret");
  std::ofstream(folder_ + "/there/security/other.key") << "secret";
  std::ofstream(folder_ + "/there/summary.json.17.tmp") << "{";
  EXPECT_THAT(Send(), IsEmpty());
}

TEST_F(RunMirrorTest, KeepsTheLaunchsFilesForThisUser) {
  Put("security/server.key", "secret");
  Put("security/server.key", "renewed");
  const std::string path = folder_ + "/there/security/server.key";
  EXPECT_EQ(std::filesystem::status(path).permissions(), std::filesystem::perms(0600));
  EXPECT_EQ(ReadFile(path).value(), "renewed");
}

TEST_F(RunMirrorTest, LetsAHostWriteNoOtherFile) {
  for (const char* path : {"../job.textproto", "/etc/passwd", "logs/../../x", "security/ca.pem", "", "logs//x", "."}) {
    internal::v1::AgentReply::FilePart part;
    part.set_path(path);
    part.set_last(true);
    const absl::Status status = ReceivePart(folder_ + "/here", part);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << path << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("want one inside the run directory"));
  }
}

}  // namespace
}  // namespace ballast
