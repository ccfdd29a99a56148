// SPDX-License-Identifier: Apache-2.0
// `ballast table export` with servers in this process.
#include <cstring>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cli/table/table_command.h"
#include "common/storage/file.h"
#include "common/tables/table_spec_fixture.h"
#include "gmock/gmock.h"
#include "tests/testing/cluster.h"

namespace ballast {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

constexpr size_t kRows = 3000;

class TableExportTest : public testing::Test {
 protected:
  // Rows 0 to kRows - 1 have their ids as values.
  void SetUp() override {
    ClientOptions options = cluster_.Options(0);
    options.policy.mutable_async();
    const auto client = Client::Connect(options);
    ASSERT_TRUE(client.ok()) << client.status();
    ASSERT_EQ((*client)->DeclareTables({SgdTable(1, "users", 1)}), absl::OkStatus());
    std::vector<uint64_t> ids;
    std::vector<float> gradients;
    for (size_t id = 0; id < kRows; ++id) {
      ids.push_back(id);
      gradients.push_back(-static_cast<float>(id));
    }
    const auto pushed = (*client)->PushRows(0, 1, {{1, ids, gradients, {}}}, true).Get();
    ASSERT_TRUE(pushed.ok()) << pushed.status();
    std::filesystem::remove_all(folder_);
  }

  int Run(const std::vector<std::string>& args) {
    out_.str("");
    err_.str("");
    return TableCommand(args, out_, err_);
  }
  std::string address() const { return cluster_.Options(0).coordinator; }

  Cluster cluster_{2, 1};
  const std::string folder_ =
      absl::StrCat(testing::TempDir(), "/", testing::UnitTest::GetInstance()->current_test_info()->name());
  std::ostringstream out_, err_;
};

TEST_F(TableExportTest, WritesEachRowOnce) {
  ASSERT_EQ(Run({"export", address(), "users", "--out", folder_, "--json"}), kExitSuccess) << err_.str();
  const Json printed = Json::parse(out_.str());
  EXPECT_EQ(printed["rows"], kRows);
  EXPECT_EQ(printed["files"], 1);
  const absl::StatusOr<std::string> file = ReadFile(folder_ + "/rows-00000.safetensors");
  ASSERT_TRUE(file.ok()) << file.status();
  uint64_t header = 0;
  std::memcpy(&header, file->data(), 8);
  ASSERT_EQ(file->size(), 8 + header + kRows * 12);
  std::map<uint64_t, float> rows;
  for (size_t i = 0; i < kRows; ++i) {
    uint64_t id = 0;
    std::memcpy(&id, file->data() + 8 + header + i * 8, 8);
    std::memcpy(&rows[id], file->data() + 8 + header + kRows * 8 + i * 4, 4);
  }
  EXPECT_EQ(rows.size(), kRows);
  for (const auto& [id, value] : rows) EXPECT_EQ(value, static_cast<float>(id));
}

TEST_F(TableExportTest, WritesHalfTheBytesAsBf16) {
  ASSERT_EQ(Run({"export", address(), "users", "--out", folder_, "--encoding", "bf16"}), kExitSuccess) << err_.str();
  EXPECT_THAT(out_.str(), HasSubstr("table users: 3,000 rows in 1 file, "));
  const absl::StatusOr<std::string> manifest = ReadFile(folder_ + "/manifest.json");
  ASSERT_TRUE(manifest.ok());
  EXPECT_EQ(Json::parse(*manifest)["encoding"], "bf16");
}

TEST_F(TableExportTest, BadInputIsExplained) {
  const auto expect = [&](const std::vector<std::string>& args, int exit_status, const std::string& why) {
    EXPECT_EQ(Run(args), exit_status) << err_.str();
    EXPECT_THAT(err_.str(), HasSubstr(why));
  };
  expect({}, kExitBadInput, "got nothing, want export ADDRESS TABLE");
  expect({"import", address(), "users"}, kExitBadInput, "want export ADDRESS TABLE");
  expect({"export", address(), "users"}, kExitBadInput, "want --out DIR");
  expect({"export", address(), "users", "--out", folder_, "--encoding", "int8"}, kExitBadInput,
         "got int8, want fp32 or bf16");
  expect({"export", address(), "items", "--out", folder_}, kExitFailure,
         "got \"items\", want one of the job's tables: \"users\"");
  EXPECT_FALSE(std::filesystem::exists(folder_));
  ASSERT_EQ(Run({"export", address(), "users", "--out", folder_}), kExitSuccess);
  expect({"export", address(), "users", "--out", folder_}, kExitBadInput, "want a new or empty folder");
}

TEST_F(TableExportTest, HelpNamesTheSubcommands) {
  EXPECT_EQ(Run({"--help"}), kExitSuccess);
  EXPECT_THAT(out_.str(), HasSubstr("usage: ballast table export ADDRESS TABLE [flags]"));
}

}  // namespace
}  // namespace ballast
