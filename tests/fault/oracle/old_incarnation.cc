// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "client/client.h"
#include "tests/fault/oracle/push_faults.h"
#include "tests/fault/programs/program.h"
#include "tests/fault/proxy/fault_proxy.h"
#include "tests/testing/tensors.h"

namespace ballast {
namespace {

constexpr size_t kElements = 4;

class Trials {
 public:
  explicit Trials(const OldIncarnationOptions& options) : options_(options) {}

  absl::StatusOr<OldIncarnationCounts> Do() {
    auto server = ServerProcess::Start(options_.server, "127.0.0.1", {"--workers", "1"});
    if (!server.ok()) return server.status();
    server_ = *std::move(server);
    for (uint32_t round = 0; round < options_.rounds; ++round) {
      if (absl::Status status = Round(round); !status.ok()) return status;
      ++counts_.rounds;
    }
    if (absl::Status status = server_->End(); !status.ok()) return status;
    return counts_;
  }

 private:
  absl::Status Round(uint32_t round) {
    auto proxy = FaultProxy::Start(server_->address(), {}, options_.seed + round);
    if (!proxy.ok()) return proxy.status();
    const auto old = Connect((*proxy)->address(), 2 * round + 1), young = Connect(server_->address(), 2 * round + 2);
    if (!old.ok()) return old.status();
    if (!young.ok()) return young.status();
    absl::Status status = Push(**old, 0, ones_).Get().status();
    (*proxy)->Partition();
    std::vector<Future<PushResult>> late;
    for (uint32_t i = 1; i <= options_.late_pushes; ++i) late.push_back(Push(**old, i, ones_));
    // The successor becomes known by its first push.
    status.Update(Push(**young, 0, tens_).Get().status());
    (*proxy)->Heal();
    for (const auto& push : late) {
      const absl::Status answer = push.Get().status();
      if (answer.ok()) ++counts_.accepted;
      if (absl::IsFailedPrecondition(answer)) ++counts_.refused;
      if (!answer.ok() && !absl::IsFailedPrecondition(answer)) status.Update(answer);
    }
    status.Update(Push(**young, 1, tens_).Get().status());
    if (!status.ok()) return status;
    want_ -= 1 + 10 + 10;
    return CheckWeights(**young);
  }

  // Connects worker 0 by this address.
  absl::StatusOr<std::unique_ptr<Client>> Connect(const std::string& address, uint64_t incarnation) {
    ClientOptions options;
    options.shards = {address};
    options.job = "old";
    options.policy.mutable_async();
    options.incarnation = incarnation;
    options.shared_memory = false;
    options.rpc_timeout = absl::Seconds(1);
    return Join(std::move(options), {SgdSpec(0, "w", kElements)});
  }

  static Future<PushResult> Push(Client& client, uint64_t step, const std::vector<float>& gradient) {
    const std::vector<TensorGradient> from = {{0, gradient}};
    return client.Push(step, 1, from);
  }

  absl::Status CheckWeights(Client& client) {
    std::vector<float> values(kElements);
    const std::vector<TensorValues> to = {{0, absl::MakeSpan(values)}};
    const absl::StatusOr<PullResult> pulled = client.Pull(0, to).Get();
    if (!pulled.ok()) return pulled.status();
    counts_.wrong_weights += std::any_of(values.begin(), values.end(), [&](float value) { return value != want_; });
    return absl::OkStatus();
  }

  const OldIncarnationOptions options_;
  const std::vector<float> ones_ = std::vector<float>(kElements, 1), tens_ = std::vector<float>(kElements, 10);
  std::unique_ptr<ServerProcess> server_;
  float want_ = 0;
  OldIncarnationCounts counts_;
};

}  // namespace

nlohmann::ordered_json OldIncarnationCounts::ToJson() const { return JsonOf(*this); }

absl::StatusOr<OldIncarnationCounts> SendLatePushes(const OldIncarnationOptions& options) {
  return Trials(options).Do();
}

}  // namespace ballast
