// SPDX-License-Identifier: Apache-2.0
#include "tests/fault/overload/overload.h"

#include <atomic>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/client.h"
#include "tests/fault/oracle/server_process.h"
#include "tests/fault/overload/memory_group.h"

namespace ballast {
namespace {

constexpr uint64_t kMiB = 1 << 20;
constexpr uint32_t kTensors = 8;
constexpr size_t kElements = kMiB;
// Messages of 4 MiB in flight per client.
constexpr uint32_t kInFlight = 16;

std::vector<v1::TensorSpec> Specs() {
  std::vector<v1::TensorSpec> specs(kTensors);
  for (uint32_t i = 0; i < kTensors; ++i) {
    specs[i].set_id(i);
    specs[i].set_name(absl::StrCat("w", i));
    specs[i].add_shape(kElements);
    specs[i].mutable_optimizer()->mutable_sgd()->set_learning_rate(1);
  }
  return specs;
}

// Pushes and pulls all tensors, two calls at a time, until `stop`. Returns the first error.
absl::Status PushAndPull(Client& client, const std::vector<float>& gradient, const std::atomic<bool>& stop,
                         std::atomic<uint64_t>& calls) {
  std::vector<std::vector<float>> values(kTensors, std::vector<float>(kElements));
  std::vector<TensorGradient> from;
  std::vector<TensorValues> to;
  for (uint32_t i = 0; i < kTensors; ++i) {
    from.push_back({i, gradient});
    to.push_back({i, absl::MakeSpan(values[i])});
  }
  for (uint64_t step = 0; !stop; ++step) {
    const Future<PushResult> pushed = client.Push(step, 1, from);
    const Future<PullResult> pulled = client.Pull(0, to);
    absl::Status status = pushed.Get().status();
    status.Update(pulled.Get().status());
    if (!status.ok()) return status;
    calls += 2;
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<OverloadCounts> RunOverload(const OverloadOptions& options) {
  OverloadCounts counts;
  const uint64_t state = kTensors * kElements * sizeof(float);
  counts.limit_bytes = state + (options.budget_mib + 128) * kMiB;
  // Each client has twice kInFlight messages in flight, pushes and pulls, of its kTensors each.
  const uint64_t bytes_each = 2 * std::min(kInFlight, kTensors) * 4 * kMiB;
  const uint32_t clients =
      static_cast<uint32_t>((options.times * options.budget_mib * kMiB + bytes_each - 1) / bytes_each);
  auto group = MemoryGroup::Create(counts.limit_bytes);
  if (!group.ok()) return group.status();
  auto server = ServerProcess::Start(
      options.server, "127.0.0.1",
      {"--workers", absl::StrCat(clients), "--bytes_in_flight_mib", absl::StrCat(options.budget_mib)});
  if (!server.ok()) return server.status();
  if (absl::Status status = (*group)->Add((*server)->pid()); !status.ok()) return status;

  std::vector<std::unique_ptr<Client>> all;
  for (uint32_t worker = 0; worker < clients; ++worker) {
    ClientOptions one;
    one.shards = {(*server)->address()};
    one.job = "overload";
    one.policy.mutable_async();
    one.workers = clients;
    one.worker = worker;
    one.messages_in_flight = kInFlight;
    one.retry_timeout = absl::Seconds(120);
    // Uses the network, because shared memory would also count as the client's.
    one.shared_memory = false;
    auto client = Client::Connect(one);
    if (!client.ok()) return client.status();
    if (absl::Status status = (*client)->Declare(Specs()); !status.ok()) return status;
    all.push_back(*std::move(client));
  }
  const std::vector<float> gradient(kElements, 1);
  std::atomic<bool> stop = false;
  std::atomic<uint64_t> calls = 0;
  std::vector<absl::Status> ends(clients);
  std::vector<std::thread> threads;
  for (uint32_t i = 0; i < clients; ++i) {
    threads.emplace_back([&, i] { ends[i] = PushAndPull(*all[i], gradient, stop, calls); });
  }
  const absl::Time end = absl::Now() + options.time;
  // Ends early only if the server does.
  while (absl::Now() < end && (*server)->Runs()) {
    auto answers = all[0]->GetStatus();
    if (answers.ok()) counts.refused = (*answers)[0].refused();
    counts.peak_bytes = std::max(counts.peak_bytes, (*server)->use().peak_resident_bytes);
  }
  stop = true;
  counts.killed = !(*server)->Runs();
  if (counts.killed) {
    for (auto& client : all) client->Shutdown("the server has ended");
  }
  for (std::thread& thread : threads) thread.join();
  counts.calls = calls;
  counts.group_peak_bytes = (*group)->peak_bytes();
  all.clear();
  if (counts.killed) return counts;
  for (const absl::Status& status : ends) {
    if (!status.ok()) return status;
  }
  if (absl::Status status = (*server)->End(); !status.ok()) return status;
  return counts;
}

}  // namespace ballast
