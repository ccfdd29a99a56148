// SPDX-License-Identifier: Apache-2.0
#include <ballast_cuda_build.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <vector>

#include "cli/command/command.h"
#include "cli/doctor/machine_facts.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace ballast {
namespace {

using ::testing::ContainsRegex;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class DoctorCommandTest : public ::testing::Test {
 protected:
  void SetUp() override {
    Place("server", "[ \"$1\" = --help ]");
    Place("worker", "[ \"$1\" = --help ]");
  }

  // Installs a script in place of a Ballast program.
  void Place(const std::string& role, const std::string& script) {
    const std::string path = ::testing::TempDir() + "/doctor_" + role;
    std::ofstream(path) << "#!/bin/sh\n" << script << "\n";
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
    setenv(role == "server" ? "BALLAST_SERVER_BINARY" : "BALLAST_WORKER_BINARY", path.c_str(), 1);
  }

  int Run(std::vector<std::string> args) { return DoctorCommand(args, out_, err_); }

  std::ostringstream out_;
  std::ostringstream err_;
};

TEST_F(DoctorCommandTest, IsContentWhereBothProgramsStart) {
  EXPECT_EQ(Run({}), 0) << err_.str();
  EXPECT_THAT(out_.str(), HasSubstr("\nready: this machine can train on the CPU"));
  EXPECT_EQ(err_.str(), "");
}

TEST_F(DoctorCommandTest, PrintsOneJsonObject) {
  EXPECT_EQ(Run({"--json"}), 0);
  const auto json = nlohmann::json::parse(out_.str());
  EXPECT_EQ(json["ready"], true);
  EXPECT_GE(json["cpu"]["cores"], 1);
  EXPECT_GT(json["memory"]["total_bytes"], 1 << 20);
  EXPECT_EQ(json["loopback"]["usable"], true);
  EXPECT_EQ(json["version"], "0.1.0");
  for (const char* key : {"toolkit", "driver", "devices", "usable", "reason"}) {
    EXPECT_TRUE(json["cuda"].contains(key)) << key;
  }
  EXPECT_EQ(json["cuda"]["usable"].get<bool>(), json["cuda"]["reason"].is_null());
  // A GPU may be present but unusable.
  EXPECT_TRUE(!json["cuda"]["usable"].get<bool>() || !json["cuda"]["devices"].empty());
}

TEST_F(DoctorCommandTest, NamesEachLibraryOfNvidiasAndWhetherItIsNeeded) {
  EXPECT_EQ(Run({"--json"}), 0);
  const auto libraries = nlohmann::json::parse(out_.str())["cuda"]["libraries"];
  if (BALLAST_CUBLAS_MAJOR == 0) {
    EXPECT_TRUE(libraries.empty());
    return;
  }
  std::vector<std::string> names, needed;
  for (const auto& library : libraries) {
    const std::string name = library["name"];
    names.push_back(name.substr(0, name.find('.')));
    if (library["needed"]) needed.push_back(names.back());
    EXPECT_FALSE(library["use"].get<std::string>().empty());
    // A library that was found is a file with a version; another one has a reason.
    const std::string path = library["path"].is_null() ? "" : library["path"].get<std::string>();
    EXPECT_TRUE(path.empty() || std::filesystem::exists(path)) << name;
    EXPECT_EQ(path.empty(), library["version"].is_null()) << name;
    EXPECT_EQ(path.empty(), !library["reason"].is_null()) << name;
  }
  EXPECT_THAT(names, ElementsAre("libcublasLt", "libcublas", "libcudnn", "libnccl"));
  EXPECT_THAT(needed, ElementsAre("libcublasLt"));
  out_.str("");
  EXPECT_EQ(Run({}), 0);
  EXPECT_THAT(out_.str(), ContainsRegex("\nlibraries [^\n]*libcublas[.]so[^\n]*libcudnn[.]so[^\n]*libnccl[.]so"));
}

TEST(WhyLibraryMissingTest, OnlyANeededLibraryMakesAGpuUnusable) {
  EXPECT_EQ(WhyLibraryMissing({}), "");
  const LibraryFacts found = {"libcublasLt.so.13", "products", true, "/lib/libcublasLt.so.13", "13.1.0", ""};
  const LibraryFacts lost = {"libcublasLt.so.13", "products", true, "", "", "cuBLAS not found"};
  const LibraryFacts spared = {"libcudnn.so.9", "convolutions", false, "", "", "cuDNN not found"};
  EXPECT_EQ(WhyLibraryMissing({found, spared}), "");
  EXPECT_EQ(WhyLibraryMissing({spared, lost}), "cuBLAS not found");
}

TEST_F(DoctorCommandTest, NamesAProgramThatDoesNotStart) {
  Place("worker", "echo 'libopenblas.so.0: cannot open shared object file' >&2; exit 127");
  EXPECT_EQ(Run({"--json"}), 1);
  EXPECT_THAT(err_.str(), HasSubstr("doctor_worker ended with status 127: libopenblas.so.0: cannot open"));
  EXPECT_EQ(nlohmann::json::parse(out_.str())["ready"], false);
}

TEST_F(DoctorCommandTest, NamesAProgramThatIsMissing) {
  setenv("BALLAST_SERVER_BINARY", "/nonexistent/ballast_server", 1);
  EXPECT_EQ(Run({}), 1);
  EXPECT_THAT(err_.str(), HasSubstr("error: environment variable BALLAST_SERVER_BINARY: /nonexistent/ballast_server"));
  EXPECT_THAT(out_.str(), HasSubstr("server    not found\n"));
}

TEST_F(DoctorCommandTest, RefusesWordsItDoesNotKnow) {
  EXPECT_EQ(Run({"some", "runs"}), 2);
  EXPECT_THAT(err_.str(), HasSubstr("got 2 words, want at most one run directory"));
  EXPECT_EQ(Run({"/nonexistent/run"}), 2);
  EXPECT_THAT(err_.str(), HasSubstr("/nonexistent/run"));
  EXPECT_EQ(Run({"--jsno"}), 2);
  EXPECT_THAT(err_.str(), HasSubstr("did you mean \"--json\"?"));
}

}  // namespace
}  // namespace ballast
