// SPDX-License-Identifier: Apache-2.0
#include "tests/fault/overload/overload.h"

#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <fstream>
#include <memory>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "client/client.h"
#include "tests/fault/programs/program.h"
#include "tests/testing/tensors.h"

namespace ballast {
namespace {

constexpr uint64_t kMiB = 1 << 20;
constexpr uint32_t kTensors = 8;
constexpr size_t kElements = kMiB;
// Messages of 4 MiB in flight per client.
constexpr uint32_t kInFlight = 16;

bool Write(const std::string& path, const std::string& text) {
  std::ofstream file(path);
  return static_cast<bool>(file << text << std::flush);
}

// Returns this process's own control group: its directory (empty if none limits memory), and true for version 2.
std::pair<std::string, bool> OwnGroup() {
  std::ifstream file("/proc/self/cgroup");
  std::string line, unified;
  while (std::getline(file, line)) {
    const std::vector<std::string> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() != 3) continue;
    for (absl::string_view controller : absl::StrSplit(parts[1], ',')) {
      if (controller == "memory") return {absl::StrCat("/sys/fs/cgroup/memory", parts[2]), false};
    }
    if (parts[0] == "0") unified = absl::StrCat("/sys/fs/cgroup", parts[2]);
  }
  return {unified, true};
}

// Owns a kernel control group (version 1 or 2) below this process's own, with a hard memory limit: a process that
// exceeds it is killed. Its processes must have ended before it is destroyed. Thread safety: none.
class MemoryGroup {
 public:
  // UNAVAILABLE, with the reason, if this process may not make a control group.
  static absl::StatusOr<std::unique_ptr<MemoryGroup>> Create(uint64_t limit_bytes) {
    static int number = 0;
    const auto [parent, unified] = OwnGroup();
    const std::string folder = absl::StrCat(parent, "/ballast-", getpid(), "-", number++);
    if (parent.empty() || mkdir(folder.c_str(), 0755) != 0) {
      return absl::UnavailableError(absl::StrCat("no control group: cannot make ", folder, ": ", strerror(errno)));
    }
    std::unique_ptr<MemoryGroup> group(new MemoryGroup(folder, unified));
    const char* const limit = unified ? "/memory.max" : "/memory.limit_in_bytes";
    if (Write(folder + limit, absl::StrCat(limit_bytes))) return group;
    return absl::UnavailableError(absl::StrCat("no control group: cannot write ", folder, limit));
  }
  ~MemoryGroup() { rmdir(folder_.c_str()); }
  MemoryGroup(const MemoryGroup&) = delete;

  // Memory that the process takes from now on counts.
  absl::Status Add(pid_t pid) const {
    if (Write(folder_ + "/cgroup.procs", absl::StrCat(pid))) return absl::OkStatus();
    return absl::UnavailableError(absl::StrCat("no control group: cannot put process ", pid, " into ", folder_));
  }

  // Peak memory as counted by the kernel; 0 if the kernel does not count it.
  uint64_t peak_bytes() const {
    uint64_t bytes = 0;
    std::ifstream(folder_ + (unified_ ? "/memory.peak" : "/memory.max_usage_in_bytes")) >> bytes;
    return bytes;
  }

 private:
  MemoryGroup(std::string folder, bool unified) : folder_(std::move(folder)), unified_(unified) {}

  const std::string folder_;
  const bool unified_;
};

std::vector<v1::TensorSpec> Specs() {
  std::vector<v1::TensorSpec> specs;
  for (uint32_t i = 0; i < kTensors; ++i) specs.push_back(SgdSpec(i, absl::StrCat("w", i), kElements));
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
    auto client = Join(one, Specs());
    if (!client.ok()) return client.status();
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
