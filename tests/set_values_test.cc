// SPDX-License-Identifier: Apache-2.0
// Clients set the initial values of tensors on two servers that keep a log.
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/client.h"
#include "common/status/error_reason.h"
#include "gtest/gtest.h"
#include "server/server.h"
#include "tests/testing/cluster.h"

namespace ballast {
namespace {

// Several slices, on both servers.
constexpr int64_t kElements = int64_t{3} << 20;

class SetValuesTest : public testing::Test {
 protected:
  SetValuesTest() {
    StartServers();
    for (v1::TensorSpec& spec : specs_) spec.mutable_initializer()->mutable_provided();
  }

  // Starts the servers on their previous logs and addresses.
  void StartServers() {
    servers_.clear();
    for (uint32_t rank = 0; rank < 2; ++rank) {
      Server::Options options;
      options.rank = rank;
      options.servers = 2;
      options.workers = 2;
      options.max_state_bytes = uint64_t{1} << 28;
      options.state_dir = absl::StrCat(folder_, "/", rank);
      if (rank > 0) options.coordinator = servers_[0]->address();
      if (!addresses_[rank].empty()) options.listen = addresses_[rank];
      auto server = Server::Start(std::move(options));
      ASSERT_TRUE(server.ok()) << server.status();
      servers_.push_back(*std::move(server));
      addresses_[rank] = servers_[rank]->address();
    }
  }

  absl::StatusOr<std::unique_ptr<Client>> Connect(uint32_t worker, uint64_t incarnation = 1) {
    ClientOptions options;
    options.coordinator = addresses_[0];
    options.job = "tuned";
    options.policy.mutable_async();
    options.durability.set_mode(v1::Durability::WAL);
    options.workers = 2;
    options.worker = worker;
    options.incarnation = incarnation;
    return Join(std::move(options), specs_);
  }

  static std::vector<FirstValues> Views(const std::vector<std::vector<float>>& tensors) {
    std::vector<FirstValues> views;
    for (const std::vector<float>& values : tensors) {
      views.push_back({static_cast<uint32_t>(views.size() + 1), absl::MakeConstSpan(values)});
    }
    return views;
  }

  static std::vector<std::vector<float>> Tensors(float first) {
    std::vector<std::vector<float>> tensors = {std::vector<float>(kElements), std::vector<float>(5)};
    for (std::vector<float>& values : tensors) {
      for (size_t i = 0; i < values.size(); ++i) values[i] = first + static_cast<float>(i % 1000);
    }
    return tensors;
  }

  const std::string folder_ =
      absl::StrCat(testing::TempDir(), "/", testing::UnitTest::GetInstance()->current_test_info()->name());
  std::string addresses_[2];
  std::vector<v1::TensorSpec> specs_ = {Spec(1, "big", kElements), Spec(2, "small", 5)};
  std::vector<std::unique_ptr<Server>> servers_;
};

TEST_F(SetValuesTest, OthersBeginWithWhatOneSetsAndItOutlivesTheServers) {
  auto first = Connect(0), second = Connect(1);
  ASSERT_TRUE(first.ok()) << first.status();
  ASSERT_TRUE(second.ok()) << second.status();
  // The second waits for the values that the first has.
  std::vector<std::vector<float>> pulled = Tensors(-1);
  const std::vector<TensorValues> into = {{1, absl::MakeSpan(pulled[0]), {}}, {2, absl::MakeSpan(pulled[1]), {}}};
  const Future<PullResult> pull = (*second)->Pull(0, into);
  EXPECT_FALSE(pull.WaitFor(absl::ZeroDuration()));
  const std::vector<std::vector<float>> values = Tensors(0.5);
  const absl::StatusOr<SetResult> set = (*first)->SetValues(Views(values)).Get();
  ASSERT_TRUE(set.ok()) << set.status();
  EXPECT_EQ(set->set, 5) << "slices";
  ASSERT_TRUE(pull.Get().ok()) << pull.Get().status();
  EXPECT_EQ(pulled, values);
  const std::vector<float> ones(5, 1);
  ASSERT_TRUE((*second)->Push(0, 1, {{2, ones, {}}}).Get().ok());
  first = absl::UnknownError("gone");
  second = absl::UnknownError("gone");

  StartServers();
  first = Connect(0, 2);
  ASSERT_TRUE(first.ok()) << first.status();
  const absl::StatusOr<PullResult> after = (*first)->Pull(0, into).Get();
  ASSERT_TRUE(after.ok()) << after.status();
  EXPECT_EQ(pulled[0], values[0]);
  EXPECT_EQ(pulled[1][0], values[1][0] - 1);
  // A restarted worker sets them again, and nothing changes.
  const absl::StatusOr<SetResult> again = (*first)->SetValues(Views(values)).Get();
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->unchanged, 5);
  const absl::Status other = (*first)->SetValues(Views(Tensors(7))).Get().status();
  EXPECT_EQ(other.code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(SetValuesTest, RefusesMemoryThatIsNotTheTensors) {
  auto client = Connect(0);
  ASSERT_TRUE(client.ok()) << client.status();
  const std::vector<float> four(4, 1);
  EXPECT_EQ((*client)->SetValues({{2, four}}).Get().status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ((*client)->SetValues({{9, four}}).Get().status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace ballast
