// SPDX-License-Identifier: Apache-2.0
// `ballast table` with servers in this process.
#include "cli/table/table_command.h"

#include <cstring>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/storage/file.h"
#include "common/tables/table_spec_fixture.h"
#include "gmock/gmock.h"
#include "tests/testing/cluster.h"

namespace ballast {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

constexpr size_t kRows = 3000;

class TableCommandTest : public testing::Test {
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
    // Row 7 is updated five times more, and row 9 twice, by gradients that change nothing.
    for (uint64_t step = 1; step <= 5; ++step) {
      const std::vector<uint64_t> hot = step <= 2 ? std::vector<uint64_t>{7, 9} : std::vector<uint64_t>{7};
      const std::vector<float> zeros(hot.size(), 0);
      ASSERT_TRUE((*client)->PushRows(step, 1, {{1, hot, zeros, {}}}, true).Get().ok());
    }
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

TEST_F(TableCommandTest, WritesEachRowOnce) {
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

TEST_F(TableCommandTest, WritesHalfTheBytesAsBf16) {
  ASSERT_EQ(Run({"export", address(), "users", "--out", folder_, "--encoding", "bf16"}), kExitSuccess) << err_.str();
  EXPECT_THAT(out_.str(), HasSubstr("table users: 3,000 rows in 1 file, "));
  const absl::StatusOr<std::string> manifest = ReadFile(folder_ + "/manifest.json");
  ASSERT_TRUE(manifest.ok());
  EXPECT_EQ(Json::parse(*manifest)["encoding"], "bf16");
}

TEST_F(TableCommandTest, CountsRowsByTheirUpdates) {
  ASSERT_EQ(Run({"stats", address(), "users"}), kExitSuccess) << err_.str();
  EXPECT_THAT(out_.str(), HasSubstr("table users: 3,000 rows of 1 weights\n  updates   3,007, 1 for each row\n"));
  EXPECT_THAT(out_.str(), HasSubstr("norms     1.5e+03 on average, 3e+03 at most\n"));
  ASSERT_EQ(Run({"stats", address(), "users", "--json"}), kExitSuccess) << err_.str();
  const Json stats = Json::parse(out_.str());
  EXPECT_EQ(stats["updates"], 3007);
  EXPECT_EQ(
      stats["rows_by_updates"],
      Json::parse(R"([{"updates": "1", "rows": 2998}, {"updates": "3", "rows": 1}, {"updates": "6", "rows": 1}])"));
  EXPECT_EQ(stats["max_norm"], 2999);
}

TEST_F(TableCommandTest, FindsTheRowsWithTheMostUpdates) {
  ASSERT_EQ(Run({"top", address(), "users", "--top", "2", "--json"}), kExitSuccess) << err_.str();
  const Json top = Json::parse(out_.str())["top"];
  ASSERT_EQ(top.size(), 2);
  EXPECT_EQ(top[0]["id"], 7);
  EXPECT_EQ(top[0]["updates"], 6);
  EXPECT_EQ(top[0]["norm"], 7);
  EXPECT_EQ(top[1]["id"], 9);
  ASSERT_EQ(Run({"top", address(), "users"}), kExitSuccess) << err_.str();
  EXPECT_THAT(out_.str(), HasSubstr("table users: 3,000 rows, 3,007 updates\n"));
}

TEST_F(TableCommandTest, ForecastsWhatAdmissionLeaves) {
  ASSERT_EQ(Run({"dry-run", address(), "users", "--min_uses", "2,4,7", "--json"}), kExitSuccess) << err_.str();
  const Json forecasts = Json::parse(out_.str())["forecasts"];
  ASSERT_EQ(forecasts.size(), 3);
  // Rows 7 and 9 would be left, with 5 and 2 of their updates.
  EXPECT_DOUBLE_EQ(forecasts[0]["rows_share"][0], 2 / 3000.0);
  EXPECT_DOUBLE_EQ(forecasts[0]["updates_share"][0], 7 / 3007.0);
  EXPECT_DOUBLE_EQ(forecasts[1]["rows_share"][1], 1 / 3000.0);
  EXPECT_EQ(forecasts[2]["rows_share"][1], 0);
  ASSERT_EQ(Run({"dry-run", address(), "users"}), kExitSuccess) << err_.str();
  EXPECT_THAT(out_.str(), HasSubstr("  min_uses 2     would keep 0.1 % of the rows and 0.2 % of the updates\n"));
}

TEST_F(TableCommandTest, BadInputIsExplained) {
  const auto expect = [&](const std::vector<std::string>& args, int exit_status, const std::string& why) {
    EXPECT_EQ(Run(args), exit_status) << err_.str();
    EXPECT_THAT(err_.str(), HasSubstr(why));
  };
  expect({}, kExitBadInput, "got nothing, want stats|top|dry-run|export ADDRESS|RUN_DIR TABLE");
  expect({"import", address(), "users"}, kExitBadInput, "want stats|top|dry-run|export ADDRESS|RUN_DIR TABLE");
  expect({"export", address(), "users"}, kExitBadInput, "want --out DIR");
  expect({"export", address(), "users", "--out", folder_, "--encoding", "int8"}, kExitBadInput,
         "got int8, want fp32 or bf16");
  expect({"export", address(), "items", "--out", folder_}, kExitFailure,
         "got \"items\", want one of the job's tables: \"users\"");
  expect({"top", address(), "users", "--top", "0"}, kExitBadInput, "--top: got 0, want 1 to 10000");
  expect({"dry-run", address(), "users", "--min_uses", "2,x"}, kExitBadInput, "--min_uses: got \"2,x\"");
  EXPECT_FALSE(std::filesystem::exists(folder_));
  ASSERT_EQ(Run({"export", address(), "users", "--out", folder_}), kExitSuccess);
  expect({"export", address(), "users", "--out", folder_}, kExitBadInput, "want a new or empty folder");
}

TEST_F(TableCommandTest, HelpNamesTheSubcommands) {
  EXPECT_EQ(Run({"--help"}), kExitSuccess);
  EXPECT_THAT(out_.str(), HasSubstr("ballast table export ADDRESS|RUN_DIR TABLE [flags]"));
}

}  // namespace
}  // namespace ballast
