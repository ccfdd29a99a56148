// SPDX-License-Identifier: Apache-2.0
#include "bench/transfer_ring.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "bench/peers/tcp_stream.h"
#include "cli/command/binary_finder.h"

namespace ballast {
namespace {

constexpr char kJob[] = "bench";
constexpr uint64_t kMemoryBesides = uint64_t{64} << 20;

absl::string_view AsBytes(const std::vector<float>& values, uint64_t bytes) {
  return absl::string_view(reinterpret_cast<const char*>(values.data()), bytes);
}

}  // namespace

absl::StatusOr<std::unique_ptr<TransferRing>> TransferRing::Open(const std::vector<uint64_t>& sizes, int servers,
                                                                 int workers) {
  absl::StatusOr<ScratchFolder> folder = ScratchFolder::Create();
  if (!folder.ok()) return folder.status();
  std::unique_ptr<TransferRing> ring(new TransferRing(sizes, *std::move(folder)));
  // All processes start before the first thread.
  if (absl::Status status = ring->StartProcesses(servers, workers); !status.ok()) return status;
  if (absl::Status status = ring->Connect(workers); !status.ok()) return status;
  return ring;
}

absl::Status TransferRing::StartProcesses(int servers, int workers) {
  absl::StatusOr<std::vector<ChildServer>> started = StartServers(servers, 2 * workers, folder_);
  if (!started.ok()) return started.status();
  servers_ = *std::move(started);
  for (auto [word, child] : {std::pair("--tcp-sink", &tcp_sink_), std::pair("--stub-server", &stub_server_)}) {
    absl::StatusOr<ChildServer> peer = ChildServer::Start({OwnPath(), word}, folder_);
    if (!peer.ok()) return peer.status();
    child->push_back(*std::move(peer));
  }
  return absl::OkStatus();
}

absl::Status TransferRing::Connect(int workers) {
  std::vector<v1::TensorSpec> specs;
  for (size_t i = 0; i < sizes_.size(); ++i) {
    v1::TensorSpec& spec = specs.emplace_back();
    spec.set_id(i + 1);
    spec.set_name(absl::StrCat("tensor", i + 1));
    spec.add_shape(static_cast<int64_t>(sizes_[i] / sizeof(float)));
    spec.mutable_initializer()->mutable_zeros();
    spec.mutable_optimizer()->mutable_sgd()->set_learning_rate(1e-6f);
  }
  const uint64_t most = *std::max_element(sizes_.begin(), sizes_.end()) / sizeof(float);
  workers_.resize(workers);
  for (int rank = 0; rank < workers; ++rank) {
    Worker& worker = workers_[rank];
    for (const bool shared_memory : {true, false}) {
      absl::StatusOr<std::unique_ptr<Client>> client = Join(specs, 2 * rank + (shared_memory ? 0 : 1), shared_memory);
      if (!client.ok()) return client.status();
      (shared_memory ? worker.client : worker.tcp_client) = *std::move(client);
    }
    worker.stub = std::make_unique<StubClient>(stub_server_[0].address());
    worker.values.resize(most);
    worker.gradient.resize(most);
    for (size_t i = 0; i < most; ++i) worker.gradient[i] = static_cast<float>(i % 1000) / 1000 - 0.5f;
  }
  empty_ = std::make_unique<StubClient>(servers_[0].address());
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Client>> TransferRing::Join(const std::vector<v1::TensorSpec>& specs, uint32_t worker,
                                                           bool shared_memory) const {
  ClientOptions options;
  options.coordinator = servers_[0].address();
  options.job = kJob;
  options.policy.mutable_async();
  options.workers = 2 * workers_.size();
  options.worker = worker;
  options.shared_memory = shared_memory;
  absl::StatusOr<std::unique_ptr<Client>> client = Client::Connect(options);
  if (!client.ok()) return client.status();
  if (absl::Status status = (*client)->Declare(specs); !status.ok()) return status;
  return client;
}

absl::StatusOr<TransferRing::Memory> TransferRing::ServerMemory() {
  const absl::StatusOr<std::vector<v1::GetStatusResponse>> shards = workers_[0].client->GetStatus();
  if (!shards.ok()) return shards.status();
  Memory memory;
  for (const v1::GetStatusResponse& shard : *shards) {
    memory.allowed += shard.state_bytes() + shard.bytes_in_flight_limit() + kMemoryBesides;
  }
  for (const ChildServer& server : servers_) memory.peak += server.PeakMemoryBytes();
  return memory;
}

std::vector<Contestant> TransferRing::Contestants(size_t index) {
  const uint64_t bytes = sizes_[index];
  const uint64_t floats = bytes / sizeof(float);
  const uint32_t id = index + 1;
  const int workers = static_cast<int>(workers_.size());
  std::vector<Contestant> all;
  // One operation of every worker at once, with one in flight for each.
  const auto add = [&](const char* name, uint64_t moved, absl::Span<const ChildServer> servers,
                       std::function<absl::Status(Worker&)> operation) {
    auto run = [this, workers, moved, operation = std::move(operation)](absl::Duration duration) {
      return RepeatOnThreads(workers, duration, moved, [&](int rank) { return operation(workers_[rank]); });
    };
    all.push_back({name, std::move(run), servers});
  };
  // Operations through one of a worker's clients.
  const auto add_client = [&](absl::Span<const char* const> names, std::unique_ptr<Client> Worker::*client,
                              uint64_t Worker::*step) {
    add(names[0], bytes, servers_, [=](Worker& worker) {
      const TensorGradient gradient = {id, absl::MakeConstSpan(worker.gradient).first(floats)};
      return (worker.*client)->Push((worker.*step)++, 1, {gradient}).Get().status();
    });
    add(names[1], bytes, servers_, [=](Worker& worker) {
      const TensorValues values = {id, absl::MakeSpan(worker.values).first(floats)};
      return (worker.*client)->Pull(0, {values}).Get().status();
    });
    add(names[2], 2 * bytes, servers_, [=](Worker& worker) {
      const TensorGradient gradient = {id, absl::MakeConstSpan(worker.gradient).first(floats)};
      const TensorValues values = {id, absl::MakeSpan(worker.values).first(floats)};
      return (worker.*client)->PushPull((worker.*step)++, 1, {gradient}, {values}).Get().status();
    });
  };
  add_client({kPush, kPull, kPushPull}, &Worker::client, &Worker::step);
  add_client({kTcpPush, kTcpPull, kTcpPushPull}, &Worker::tcp_client, &Worker::tcp_step);
  auto stream = [this, bytes](absl::Duration duration) -> absl::StatusOr<Round> {
    absl::StatusOr<TcpRound> round =
        SendTcpStream(tcp_sink_[0].address(), AsBytes(workers_[0].gradient, bytes), duration);
    if (!round.ok()) return round.status();
    return Round{round->seconds, round->bytes, {}};
  };
  all.push_back({kTcpStream, std::move(stream), tcp_sink_});
  add(kStubPush, bytes, stub_server_, [=](Worker& worker) { return worker.stub->Push(worker.gradient, floats); });
  add(kStubPull, bytes, stub_server_, [=](Worker& worker) { return worker.stub->Pull(worker.values, floats); });
  add(kStubPushPull, 2 * bytes, stub_server_,
      [=](Worker& worker) { return worker.stub->PushPull(worker.values, floats); });
  // One thread, for any number of workers.
  auto call = [this](absl::Duration duration) { return Repeat(duration, 0, [this] { return empty_->Empty(kJob); }); };
  all.push_back({kEmptyCall, std::move(call), servers_});
  return all;
}

}  // namespace ballast
