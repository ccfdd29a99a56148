// SPDX-License-Identifier: Apache-2.0
#include "cli/command/completion.h"

#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace ballast {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

const std::vector<FlagSpec>& LaunchFlags() {
  static const auto* flags = new std::vector<FlagSpec>{{"device", "auto|cpu|cuda", "The device."},
                                                       {"run-dir", "DIR", "A directory."},
                                                       {"trace", "FILE", "A file."},
                                                       {"servers", "N", "A number."},
                                                       {"gpus", "N|all", "A number, or all."},
                                                       {"json", "", "A switch."}};
  return *flags;
}

const std::vector<FlagSpec>& NoFlags() {
  static const auto* flags = new std::vector<FlagSpec>();
  return *flags;
}

constexpr Command kCommands[] = {{"launch", "", nullptr, "", "JOB", LaunchFlags},
                                 {"checkpoint", "", nullptr, "", "list|verify", NoFlags},
                                 {"status", "", nullptr, "", "RUN_DIR"},
                                 {"predict", "", nullptr, "", "MODEL_OR_RUN"}};

class CompletionTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = ::testing::TempDir() + "/completion";
    std::filesystem::remove_all(folder_);
    for (const char* name : {"runs", "my jobs"}) std::filesystem::create_directories(folder_ + "/" + name);
    for (const char* name : {"mnist.textproto", "moons.textproto", "notes.txt", "ballast.bash"}) {
      std::ofstream(folder_ + "/" + name) << "";
    }
    std::ofstream(folder_ + "/ballast.bash") << BashCompletion(kCommands);
    std::ofstream(folder_ + "/ballast") << "echo \"usage: ballast $*\n  --data FILE   Data.\n  --help   Help.\"";
    std::filesystem::permissions(folder_ + "/ballast", std::filesystem::perms::owner_all);
  }

  // Returns the proposals of bash for the last of these words, as bash splits them.
  std::vector<std::string> Complete(const std::vector<std::string>& words) {
    std::string script = "cd \"$1\" && PATH=.:$PATH && source ./ballast.bash && COMP_WORDS=(ballast";
    for (const std::string& word : words) absl::StrAppend(&script, " \"", word, "\"");
    absl::StrAppend(&script, ") && COMP_CWORD=", words.size(), " && _ballast; printf \"%s\\n\" \"${COMPREPLY[@]}\"");
    const std::string command = absl::StrCat("bash -uec '", script, "' bash '", folder_, "' 2>&1");
    FILE* const pipe = popen(command.c_str(), "r");
    std::string text;
    std::array<char, 4096> buffer;
    while (const size_t got = fread(buffer.data(), 1, buffer.size(), pipe)) text.append(buffer.data(), got);
    EXPECT_EQ(pclose(pipe), 0) << text;
    return absl::StrSplit(text, '\n', absl::SkipEmpty());
  }

  std::string folder_;
};

TEST_F(CompletionTest, CompletesCommands) {
  EXPECT_THAT(Complete({""}), ElementsAre("help", "launch", "checkpoint", "status", "predict", "--help", "--version"));
  EXPECT_THAT(Complete({"la"}), ElementsAre("launch"));
  EXPECT_THAT(Complete({"help", "sta"}), ElementsAre("status"));
  EXPECT_THAT(Complete({"unknown", "x"}), IsEmpty());
}

TEST_F(CompletionTest, CompletesTheFlagsOfTheCommand) {
  EXPECT_THAT(Complete({"launch", "--"}),
              ElementsAre("--device", "--run-dir", "--trace", "--servers", "--gpus", "--json", "--help"));
  EXPECT_THAT(Complete({"launch", "mnist.textproto", "--se"}), ElementsAre("--servers"));
  EXPECT_THAT(Complete({"checkpoint", "--"}), ElementsAre("--help"));
  EXPECT_THAT(Complete({"predict", "--"}), ElementsAre("--help", "--data")) << "flags of another program";
}

TEST_F(CompletionTest, CompletesTheValuesOfFlags) {
  EXPECT_THAT(Complete({"launch", "--device", "c"}), ElementsAre("cpu", "cuda"));
  EXPECT_THAT(Complete({"launch", "--device", "="}), ElementsAre("auto", "cpu", "cuda"));
  EXPECT_THAT(Complete({"launch", "--device", "=", "a"}), ElementsAre("auto"));
  EXPECT_THAT(Complete({"launch", "--run_dir", "r"}), ElementsAre("runs"));
  EXPECT_THAT(Complete({"launch", "--trace", "no"}), ElementsAre("notes.txt"));
  EXPECT_THAT(Complete({"launch", "--servers", ""}), IsEmpty());
  EXPECT_THAT(Complete({"launch", "--gpus", ""}), ElementsAre("all"));
}

TEST_F(CompletionTest, CompletesJobFilesAndDirectories) {
  EXPECT_THAT(Complete({"launch", "m"}), UnorderedElementsAre("mnist.textproto", "moons.textproto", "my jobs"));
  EXPECT_THAT(Complete({"launch", "--json", "mo"}), ElementsAre("moons.textproto"));
  EXPECT_THAT(Complete({"status", "r"}), ElementsAre("runs"));
  EXPECT_THAT(Complete({"predict", "n"}), ElementsAre("notes.txt"));
  EXPECT_THAT(Complete({"checkpoint", "v"}), ElementsAre("verify"));
}

}  // namespace
}  // namespace ballast
