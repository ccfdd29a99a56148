// SPDX-License-Identifier: Apache-2.0
// Checkpoints of a job whose programs bring their own data, and its continuation on other numbers of servers.
#include <filesystem>
#include <nlohmann/json.hpp>
#include <numeric>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cli/checkpoint/checkpoint_command.h"
#include "common/storage/checkpoint_folder.h"
#include "common/tables/table_spec_fixture.h"
#include "gmock/gmock.h"
#include "tests/testing/cluster.h"

namespace ballast {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;

constexpr uint32_t kTensor = 1;
constexpr uint32_t kTable = 2;
constexpr size_t kRows = 2000;

std::vector<uint64_t> Ids() {
  std::vector<uint64_t> ids(kRows);
  std::iota(ids.begin(), ids.end(), 0);
  return ids;
}

// A program of the job, the only one. Every update adds 1 to a weight: the learning rates are 1.
class Program {
 public:
  Program(const Cluster& cluster, uint64_t incarnation, const std::string& job = "cluster") {
    ClientOptions options = cluster.Options(0);
    options.job = job;
    options.incarnation = incarnation;
    auto client = Client::Connect(std::move(options));
    EXPECT_TRUE(client.ok()) << client.status();
    client_ = *std::move(client);
  }

  absl::Status Declare() {
    if (absl::Status status = client_->Declare({Spec(kTensor, "weights", 10)}); !status.ok()) return status;
    return client_->DeclareTables({SgdTable(kTable, "counts", 1)});
  }

  // Updates the tensor and those rows.
  void Step(uint64_t step, const std::vector<uint64_t>& ids) {
    const std::vector<float> tensor(10, -1), rows(ids.size(), -1);
    const auto pushed = client_->Push(step, 1, {{kTensor, tensor}});
    const auto pushed_rows = client_->PushRows(step, 1, {{kTable, ids, rows, {}}}, /*last_of_step=*/true);
    EXPECT_TRUE(pushed.Get().ok()) << pushed.Get().status();
    EXPECT_TRUE(pushed_rows.Get().ok()) << pushed_rows.Get().status();
  }

  std::vector<float> Rows(uint64_t step) {
    std::vector<float> values(kRows, -1);
    const auto pulled = client_->PullRows({{kTable, Ids(), absl::MakeSpan(values)}}, step);
    EXPECT_TRUE(pulled.Get().ok()) << pulled.Get().status();
    return values;
  }

  std::vector<float> Tensor(uint64_t step) {
    std::vector<float> values(10, -1);
    const auto pulled = client_->Pull(step, {{kTensor, absl::MakeSpan(values)}});
    EXPECT_TRUE(pulled.Get().ok()) << pulled.Get().status();
    return values;
  }

 private:
  std::unique_ptr<Client> client_;
};

class ProgramCheckpointTest : public testing::Test {
 protected:
  void SetUp() override { std::filesystem::remove_all(folder_); }

  std::unique_ptr<Cluster> Start(uint32_t servers, const std::string& resume = "") const {
    return std::make_unique<Cluster>(servers, 1, [&](Server::Options& options) {
      options.checkpoint_dir = folder_;
      options.resume = resume;
    });
  }

  // `ballast checkpoint save`.
  int Save(const Cluster& cluster, const std::vector<std::string>& flags = {}) {
    out_.str("");
    err_.str("");
    std::vector<std::string> args = {"save", cluster.Options(0).coordinator};
    args.insert(args.end(), flags.begin(), flags.end());
    return CheckpointCommand(args, out_, err_);
  }

  std::string Newest() const { return FindManifest(folder_).value_or(""); }

  const std::string folder_ =
      absl::StrCat(testing::TempDir(), "/", testing::UnitTest::GetInstance()->current_test_info()->name());
  std::ostringstream out_, err_;
};

TEST_F(ProgramCheckpointTest, AnyNumberOfServersContinuesFromIt) {
  {
    const auto cluster = Start(2);
    Program program(*cluster, 1);
    ASSERT_EQ(program.Declare(), absl::OkStatus());
    for (uint64_t step = 0; step < 3; ++step) program.Step(step, Ids());
    ASSERT_EQ(Save(*cluster), kExitSuccess) << err_.str();
    EXPECT_EQ(out_.str(), "checkpoint 1 saved\n");
    program.Step(3, Ids());
  }
  uint64_t steps = 3;
  for (uint32_t servers : {1, 2, 4}) {
    SCOPED_TRACE(servers);
    const auto cluster = Start(servers, Newest());
    Program program(*cluster, steps);
    ASSERT_EQ(program.Declare(), absl::OkStatus());
    EXPECT_THAT(program.Rows(steps), Each(steps)) << "a step after the checkpoint is gone";
    EXPECT_THAT(program.Tensor(steps), Each(100 + steps));
    program.Step(steps++, Ids());
    EXPECT_THAT(program.Rows(steps), Each(steps));
    ASSERT_EQ(Save(*cluster, {"--json"}), kExitSuccess) << err_.str();
    EXPECT_EQ(nlohmann::json::parse(out_.str())["id"], steps - 2);
    program.Step(steps, Ids());
  }
}

TEST_F(ProgramCheckpointTest, ASecondOneHasOnlyWhatHasChanged) {
  {
    const auto cluster = Start(2);
    Program program(*cluster, 1);
    ASSERT_EQ(program.Declare(), absl::OkStatus());
    program.Step(0, Ids());
    ASSERT_EQ(Save(*cluster), kExitSuccess) << err_.str();
    program.Step(1, {5, 6});
    ASSERT_EQ(Save(*cluster), kExitSuccess) << err_.str();
  }
  const auto manifest = ReadManifest(Newest());
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  for (const auto& file : manifest->files()) {
    ASSERT_EQ(file.increment_of_size(), 1);
    EXPECT_LT(file.bytes(), file.increment_of(0).bytes() / 2);
  }
  const auto cluster = Start(3, Newest());
  Program program(*cluster, 2);
  ASSERT_EQ(program.Declare(), absl::OkStatus());
  const std::vector<float> rows = program.Rows(2);
  for (size_t id = 0; id < kRows; ++id) EXPECT_EQ(rows[id], id == 5 || id == 6 ? 2 : 1) << id;
}

TEST_F(ProgramCheckpointTest, SaysWhyThereIsNone) {
  const auto cluster = Start(1);
  EXPECT_EQ(Save(*cluster), kExitFailure);
  EXPECT_THAT(err_.str(), HasSubstr("no checkpoint was saved: the job has not begun"));
  Program program(*cluster, 1);
  ASSERT_EQ(program.Declare(), absl::OkStatus());
  EXPECT_EQ(Save(*cluster, {"--job", "other"}), kExitFailure);
  EXPECT_THAT(err_.str(), HasSubstr("other"));
  const Cluster without(1, 1);
  Program elsewhere(without, 1);
  ASSERT_EQ(elsewhere.Declare(), absl::OkStatus());
  EXPECT_EQ(Save(without), kExitFailure);
  EXPECT_THAT(err_.str(), HasSubstr("server 0 has no --checkpoint_dir"));
}

TEST_F(ProgramCheckpointTest, AnotherJobDoesNotContinueFromIt) {
  {
    const auto cluster = Start(1);
    Program program(*cluster, 1);
    ASSERT_EQ(program.Declare(), absl::OkStatus());
    ASSERT_EQ(Save(*cluster), kExitSuccess) << err_.str();
  }
  const auto cluster = Start(1, Newest());
  Program program(*cluster, 1, "another");
  const absl::Status refused = program.Declare();
  EXPECT_THAT(std::string(refused.message()),
              HasSubstr("cannot resume from checkpoint 1: it belongs to job \"cluster\", got job \"another\""));
}

}  // namespace
}  // namespace ballast
