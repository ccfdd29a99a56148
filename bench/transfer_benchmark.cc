// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/time/clock.h"
#include "absl/types/span.h"
#include "bench/bench_report.h"
#include "bench/contestant.h"
#include "bench/peers/child_server.h"
#include "bench/peers/stub_peer.h"
#include "bench/peers/tcp_stream.h"
#include "cli/command/command.h"
#include "client/client.h"
#include "common/program/core_count.h"
#include "common/rpc/credentials.h"
#include "common/security/key_folder.h"
#include "common/shared_memory/shared_floats.h"

namespace ballast {
namespace {

constexpr char kUsage[] =
    "usage: ballast bench transfer [flags]\n\n"
    "Pushes and pulls tensors of several sizes through the client to real servers, which apply SGD (async), with one\n"
    "operation in flight per worker. GB/s counts payload, both ways for a push-pull; CPU seconds are the client's and\n"
    "the servers' together. On one machine, client and servers exchange messages through shared memory; the -tcp\n"
    "lines use loopback TCP instead. In turn with them, in the same run:\n"
    "  bare TCP stream  one loopback connection, blocks of 1 MiB, two processes, the bytes are not processed\n"
    "  SGD stream       the same, and the receiver subtracts each block, scaled, from weights and answers each tensor\n"
    "  asked stream     the bare TCP stream, but the receiver asks for each tensor, as a pull does\n"
    "  plain stub       the generated stub and messages, one message per tensor, a server that only copies\n"
    "  empty call       a Pull of no slices from our server with a generated stub, one at a time\n"
    "  memcpy           one copy of the same bytes by one thread, the limit within a machine\n"
    "  SGD copy         one copy of each block, which is then subtracted, scaled, from weights, by a thread for each\n"
    "                   processor: the least that a push within a machine is for\n"
    "With --tls the -tls lines use loopback TCP with certificates on both sides and tokens, like `ballast launch`, in\n"
    "turn with:\n"
    "  bare TLS stream  the bare TCP stream, encrypted by OpenSSL alone with the cipher of our data streams\n"
    "  TLS SGD stream   the SGD stream, encrypted likewise\n"
    "  TLS asked stream the asked stream, encrypted likewise\n"
    "Each figure is the median over the rounds, each ratio the median of the ratios of the rounds.\n\n";

constexpr char kSizes[] = "4KiB,64KiB,1MiB,4MiB,16MiB,64MiB,256MiB";

std::vector<FlagSpec> Flags() {
  return {
      {"sizes", "LIST", "Sizes of tensors (4KiB,64KiB,1MiB,4MiB,16MiB,64MiB,256MiB)."},
      {"servers", "N", "Servers, 1 to 16 (1)."},
      {"workers", "N", "Workers, one thread and client each, 1 to 16 (1)."},
      {"tls", "", "Push and pull also with TLS and tokens, compared with a bare TLS stream."},
      {"seconds", "S", "Seconds for each measurement, 0.01 to 600 (1.5)."},
  };
}

constexpr char kJob[] = "bench";
constexpr uint64_t kMemoryBesides = uint64_t{64} << 20;

absl::string_view AsBytes(absl::Span<const float> values, uint64_t bytes) {
  return absl::string_view(reinterpret_cast<const char*>(values.data()), bytes);
}

// Names of the contestants that a transfer of one size compares.
inline constexpr char kPush[] = "push";
inline constexpr char kPull[] = "pull";
inline constexpr char kPushPull[] = "push-pull";
inline constexpr char kTcpPush[] = "push-tcp";
inline constexpr char kTcpPull[] = "pull-tcp";
inline constexpr char kTcpPushPull[] = "push-pull-tcp";
inline constexpr char kTlsPush[] = "push-tls";
inline constexpr char kTlsPull[] = "pull-tls";
inline constexpr char kTlsPushPull[] = "push-pull-tls";
inline constexpr char kTlsStream[] = "bare TLS stream";
inline constexpr char kTcpStream[] = "bare TCP stream";
inline constexpr char kSgdStream[] = "SGD stream";
inline constexpr char kAskedStream[] = "asked stream";
inline constexpr char kTlsSgdStream[] = "TLS SGD stream";
inline constexpr char kTlsAskedStream[] = "TLS asked stream";
inline constexpr char kStubPush[] = "plain stub push";
inline constexpr char kStubPull[] = "plain stub pull";
inline constexpr char kStubPushPull[] = "plain stub push-pull";
inline constexpr char kEmptyCall[] = "empty call";
inline constexpr char kMemcpy[] = "memcpy";
inline constexpr char kSgdCopy[] = "SGD copy";

// Owns the processes and connections that transfers are measured with: our servers, with a tensor of each size under
// async SGD, a client for each worker, and the peers. Thread safety: confined to the main thread.
class TransferRing {
 public:
  static absl::StatusOr<std::unique_ptr<TransferRing>> Open(const std::vector<uint64_t>& sizes, int servers,
                                                            int workers, bool tls) {
    absl::StatusOr<ScratchFolder> folder = ScratchFolder::Create();
    if (!folder.ok()) return folder.status();
    std::unique_ptr<TransferRing> ring(new TransferRing(sizes, *std::move(folder), tls));
    // All processes start before the first thread.
    if (absl::Status status = ring->StartProcesses(servers, workers); !status.ok()) return status;
    if (absl::Status status = ring->Connect(workers); !status.ok()) return status;
    return ring;
  }
  TransferRing(const TransferRing&) = delete;

  // Contestants for the tensor of sizes[index]. They share the ring's memory, so use one set at a time.
  std::vector<Contestant> Contestants(size_t index) {
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
                                uint64_t Worker::*step, absl::Span<const ChildServer> servers) {
      add(names[0], bytes, servers, [=](Worker& worker) {
        const TensorGradient gradient = {id, worker.gradient.span().first(floats)};
        return (worker.*client)->Await((worker.*client)->Push((worker.*step)++, 1, {gradient})).status();
      });
      add(names[1], bytes, servers, [=](Worker& worker) {
        const TensorValues values = {id, absl::MakeSpan(worker.values).first(floats)};
        return (worker.*client)->Await((worker.*client)->Pull(0, {values})).status();
      });
      add(names[2], 2 * bytes, servers, [=](Worker& worker) {
        const TensorGradient gradient = {id, worker.gradient.span().first(floats)};
        const TensorValues values = {id, absl::MakeSpan(worker.values).first(floats)};
        return (worker.*client)->Await((worker.*client)->PushPull((worker.*step)++, 1, {gradient}, {values})).status();
      });
    };
    add_client({kPush, kPull, kPushPull}, &Worker::client, &Worker::step, servers_);
    add_client({kTcpPush, kTcpPull, kTcpPushPull}, &Worker::tcp_client, &Worker::tcp_step, servers_);
    const auto add_stream = [&](const char* name, absl::Span<const ChildServer> sink, auto send) {
      auto stream = [this, bytes, sink, send](absl::Duration duration) -> absl::StatusOr<Round> {
        absl::StatusOr<TcpRound> round = send(sink[0].address(), AsBytes(workers_[0].gradient.span(), bytes), duration);
        if (!round.ok()) return round.status();
        return Round{round->seconds, round->bytes, {}};
      };
      all.push_back({name, std::move(stream), sink});
    };
    add_stream(kTcpStream, tcp_sink_, SendTcpStream);
    add_stream(kSgdStream, sgd_sink_, SendTensors);
    add_stream(kAskedStream, asking_sink_, SendTensors);
    if (tls_) {
      add_client({kTlsPush, kTlsPull, kTlsPushPull}, &Worker::tls_client, &Worker::tls_step, tls_servers_);
      add_stream(kTlsStream, tls_sink_, SendTlsStream);
      add_stream(kTlsSgdStream, tls_sgd_sink_, SendTlsTensors);
      add_stream(kTlsAskedStream, tls_asking_sink_, SendTlsTensors);
    }
    add(kStubPush, bytes, stub_server_,
        [=](Worker& worker) { return worker.stub->Push(worker.gradient.span(), floats); });
    add(kStubPull, bytes, stub_server_, [=](Worker& worker) { return worker.stub->Pull(worker.values, floats); });
    add(kStubPushPull, 2 * bytes, stub_server_,
        [=](Worker& worker) { return worker.stub->PushPull(worker.values, floats); });
    // One thread, for any number of workers.
    auto call = [this](absl::Duration duration) { return Repeat(duration, 0, [this] { return empty_->Empty(kJob); }); };
    all.push_back({kEmptyCall, std::move(call), servers_});
    auto copy = [this, bytes](absl::Duration duration) {
      return Repeat(duration, bytes, [this, bytes] {
        std::memcpy(workers_[0].values.data(), workers_[0].gradient.data(), bytes);
        return absl::OkStatus();
      });
    };
    all.push_back({kMemcpy, std::move(copy), {}});
    all.push_back({kSgdCopy, [this, floats](absl::Duration duration) { return CopyAndApply(floats, duration); }, {}});
    return all;
  }

  // Memory of all our servers together: peak resident bytes, and the promised limit: state, budget of bytes in
  // flight, and 64 MiB per server.
  struct Memory {
    uint64_t peak = 0;
    uint64_t allowed = 0;
  };
  absl::StatusOr<Memory> ServerMemory() {
    const absl::StatusOr<std::vector<v1::GetStatusResponse>> shards = workers_[0].client->GetStatus();
    if (!shards.ok()) return shards.status();
    Memory memory;
    for (const v1::GetStatusResponse& shard : *shards) {
      memory.allowed += shard.state_bytes() + shard.bytes_in_flight_limit() + kMemoryBesides;
    }
    for (const ChildServer& server : servers_) memory.peak += server.PeakMemoryBytes();
    return memory;
  }

 private:
  // State of one worker.
  struct Worker {
    // `client` uses shared memory, `tcp_client` TCP as between machines; each is its own worker of the job.
    std::unique_ptr<Client> client;
    std::unique_ptr<Client> tcp_client;
    // Client of other servers, which use TLS; null without TLS.
    std::unique_ptr<Client> tls_client;
    std::unique_ptr<StubClient> stub;
    // In the memory in which training has its gradients, too.
    SharedFloats gradient{0};
    std::vector<float> values;
    uint64_t step = 0;
    uint64_t tcp_step = 0;
    uint64_t tls_step = 0;
  };

  // Each thread has its part of the floats.
  absl::StatusOr<Round> CopyAndApply(uint64_t floats, absl::Duration duration) {
    constexpr float kRate = 1e-6f;
    constexpr uint64_t kBlock = 64 << 10;
    const int threads = CoreCount();
    const uint64_t part = (floats + threads - 1) / threads;
    const absl::Span<const float> gradient = workers_[0].gradient.span();
    const absl::Span<float> weights = absl::MakeSpan(workers_[0].values);
    std::vector<std::vector<float>> blocks(threads, std::vector<float>(kBlock));
    return RepeatOnThreads(threads, duration, part * sizeof(float), [&](int thread) {
      float* const block = blocks[thread].data();
      const uint64_t end = std::min(part * (thread + 1), floats);
      for (uint64_t at = part * thread; at < end; at += kBlock) {
        const uint64_t count = std::min(kBlock, end - at);
        std::memcpy(block, gradient.data() + at, count * sizeof(float));
        float* const to = weights.data() + at;
        for (uint64_t i = 0; i < count; ++i) to[i] -= kRate * block[i];
      }
      return absl::OkStatus();
    });
  }

  TransferRing(std::vector<uint64_t> sizes, ScratchFolder folder, bool tls)
      : sizes_(std::move(sizes)), folder_(std::move(folder)), tls_(tls) {}
  absl::Status StartProcesses(int servers, int workers) {
    absl::StatusOr<std::vector<ChildServer>> started = StartServers(servers, 2 * workers, folder_);
    if (!started.ok()) return started.status();
    servers_ = *std::move(started);
    if (tls_) {
      const CertificateAuthority::Validity validity = {absl::Now() - absl::Hours(1), absl::Now() + absl::Hours(24)};
      const std::string path = absl::StrCat(folder_.path(), "/security");
      const absl::StatusOr<KeyFolder> keys = KeyFolder::Make(path, {"*", {"127.0.0.1"}, validity, validity});
      if (!keys.ok()) return keys.status();
      absl::StatusOr<std::vector<ChildServer>> encrypted = StartServers(servers, workers, folder_, keys->ServerFlags());
      if (!encrypted.ok()) return encrypted.status();
      tls_servers_ = *std::move(encrypted);
      security_ = keys->AdminOptions();
    }
    std::vector<std::pair<const char*, std::vector<ChildServer>*>> peers = {{"--tcp-sink", &tcp_sink_},
                                                                            {"--sgd-sink", &sgd_sink_},
                                                                            {"--asking-sink", &asking_sink_},
                                                                            {"--stub-server", &stub_server_}};
    if (tls_) {
      peers.emplace_back("--tls-sink", &tls_sink_);
      peers.emplace_back("--tls-sgd-sink", &tls_sgd_sink_);
      peers.emplace_back("--tls-asking-sink", &tls_asking_sink_);
    }
    for (const auto& [word, child] : peers) {
      absl::StatusOr<ChildServer> peer = ChildServer::Start({OwnPath(), word}, folder_);
      if (!peer.ok()) return peer.status();
      child->push_back(*std::move(peer));
    }
    return absl::OkStatus();
  }
  absl::Status Connect(int workers) {
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
      if (tls_) {
        absl::StatusOr<std::unique_ptr<Client>> client = JoinWithTls(specs, rank);
        if (!client.ok()) return client.status();
        worker.tls_client = *std::move(client);
      }
      worker.stub = std::make_unique<StubClient>(stub_server_[0].address());
      worker.values.resize(most);
      worker.gradient = SharedFloats(most);
      for (size_t i = 0; i < most; ++i) worker.gradient.span()[i] = static_cast<float>(i % 1000) / 1000 - 0.5f;
    }
    empty_ = std::make_unique<StubClient>(servers_[0].address());
    return absl::OkStatus();
  }
  absl::StatusOr<std::unique_ptr<Client>> Join(const std::vector<v1::TensorSpec>& specs, uint32_t worker,
                                               bool shared_memory) const {
    ClientOptions options;
    options.coordinator = servers_[0].address();
    options.job = kJob;
    options.policy.mutable_async();
    options.workers = 2 * workers_.size();
    options.worker = worker;
    options.shared_memory = shared_memory;
    return ConnectAndDeclare(std::move(options), specs);
  }
  absl::StatusOr<std::unique_ptr<Client>> JoinWithTls(const std::vector<v1::TensorSpec>& specs, uint32_t worker) const {
    absl::StatusOr<Credentials> credentials = Credentials::Load(security_);
    if (!credentials.ok()) return credentials.status();
    ClientOptions options;
    options.coordinator = tls_servers_[0].address();
    options.credentials = *std::move(credentials);
    options.job = kJob;
    options.policy.mutable_async();
    options.workers = workers_.size();
    options.worker = worker;
    options.shared_memory = false;
    return ConnectAndDeclare(std::move(options), specs);
  }
  static absl::StatusOr<std::unique_ptr<Client>> ConnectAndDeclare(ClientOptions options,
                                                                   const std::vector<v1::TensorSpec>& specs) {
    absl::StatusOr<std::unique_ptr<Client>> client = Client::Connect(std::move(options));
    if (!client.ok()) return client.status();
    if (absl::Status status = (*client)->Declare(specs); !status.ok()) return status;
    return client;
  }

  const std::vector<uint64_t> sizes_;
  const ScratchFolder folder_;
  const bool tls_;
  SecurityOptions security_;
  std::vector<ChildServer> servers_, tls_servers_;
  std::vector<ChildServer> tcp_sink_, sgd_sink_, asking_sink_, tls_sink_, tls_sgd_sink_, tls_asking_sink_;
  std::vector<ChildServer> stub_server_;
  std::vector<Worker> workers_;
  std::unique_ptr<StubClient> empty_;
};

struct Options {
  std::vector<uint64_t> sizes;
  int servers = 1;
  int workers = 1;
  bool tls = false;
  // Duration of each measurement.
  double seconds = 1;
};

const Contestant& Find(const std::vector<Contestant>& all, absl::string_view name) {
  return *std::find_if(all.begin(), all.end(), [&](const Contestant& one) { return one.name == name; });
}

// Result of one operation at one size, relative to its limits.
struct Row {
  uint64_t bytes = 0;
  std::string operation;
  // Relative to the bare stream: with TLS if the operation has it.
  double to_tcp = 0;
  // Relative to the stream that applies SGD, likewise.
  double to_sgd = 0;
  double to_stub = 0;
  double p50_to_empty = 0;
  double to_memcpy = 0;
  double to_sgd_copy = 0;
  // Relative to the stream whose receiver asks, likewise.
  double to_asked = 0;
};

Row AddRow(const std::vector<Contestant>& all, uint64_t bytes, const char* name, const char* stub_name, Json& rows,
           std::ostream& out) {
  const Contestant& ours = Find(all, name);
  const bool encrypted = absl::EndsWith(name, "-tls");
  const Contestant& tcp = Find(all, encrypted ? kTlsStream : kTcpStream);
  const Contestant& sgd = Find(all, encrypted ? kTlsSgdStream : kSgdStream);
  const Contestant& asked = Find(all, encrypted ? kTlsAskedStream : kAskedStream);
  const Contestant& stub = Find(all, stub_name);
  const Contestant& empty = Find(all, kEmptyCall);
  const Contestant& copy = Find(all, kMemcpy);
  const Contestant& sgd_copy = Find(all, kSgdCopy);
  const Row row = {bytes,
                   name,
                   RatioOfRates(ours, tcp),
                   RatioOfRates(ours, sgd),
                   RatioOfRates(ours, stub),
                   ours.LatencySeconds(0.5) / empty.LatencySeconds(0.5),
                   RatioOfRates(ours, copy),
                   RatioOfRates(ours, sgd_copy),
                   RatioOfRates(ours, asked)};
  rows.push_back({{"bytes", bytes},
                  {"operation", name},
                  {"gb_per_second", ours.GbPerSecond()},
                  {"p50_microseconds", ours.LatencySeconds(0.5) * 1e6},
                  {"p99_microseconds", ours.LatencySeconds(0.99) * 1e6},
                  {"cpu_seconds_per_gb", ours.CpuSecondsPerGb()},
                  {"tcp_gb_per_second", tcp.GbPerSecond()},
                  {"tcp_cpu_seconds_per_gb", tcp.CpuSecondsPerGb()},
                  {"to_tcp", row.to_tcp},
                  {"sgd_gb_per_second", sgd.GbPerSecond()},
                  {"sgd_cpu_seconds_per_gb", sgd.CpuSecondsPerGb()},
                  {"to_sgd", row.to_sgd},
                  {"asked_gb_per_second", asked.GbPerSecond()},
                  {"to_asked", row.to_asked},
                  {"stub_gb_per_second", stub.GbPerSecond()},
                  {"stub_p50_microseconds", stub.LatencySeconds(0.5) * 1e6},
                  {"stub_cpu_seconds_per_gb", stub.CpuSecondsPerGb()},
                  {"to_stub", row.to_stub},
                  {"empty_call_p50_microseconds", empty.LatencySeconds(0.5) * 1e6},
                  {"p50_to_empty_call", row.p50_to_empty},
                  {"memcpy_gb_per_second", copy.GbPerSecond()},
                  {"to_memcpy", row.to_memcpy},
                  {"sgd_copy_gb_per_second", sgd_copy.GbPerSecond()},
                  {"to_sgd_copy", row.to_sgd_copy}});
  out << absl::StrFormat("%-9s %-13s %7.3f %11.1f %11.1f %8.2f | %7.3f %6.2f | %7.3f %6.2f | %9.1f %6.2f\n",
                         FormatSize(bytes), name, ours.GbPerSecond(), ours.LatencySeconds(0.5) * 1e6,
                         ours.LatencySeconds(0.99) * 1e6, ours.CpuSecondsPerGb(), tcp.GbPerSecond(), row.to_tcp,
                         stub.GbPerSecond(), row.to_stub, empty.LatencySeconds(0.5) * 1e6, row.p50_to_empty)
      << std::flush;
  return row;
}

// Adds the ratios that the sizes allow, the worst value for each target.
void AddRatios(const std::vector<Row>& rows, BenchReport& report) {
  constexpr uint64_t kMiB = uint64_t{1} << 20;
  const auto worst = [&](absl::string_view operation, uint64_t least, uint64_t most, double Row::*figure) {
    double found = std::numeric_limits<double>::infinity();
    for (const Row& row : rows) {
      if (row.operation == operation && row.bytes >= least && row.bytes <= most) found = std::min(found, row.*figure);
    }
    return found;
  };
  const auto add = [&](std::string name, double value, double wanted, bool at_most, std::string what) {
    if (value < std::numeric_limits<double>::infinity()) {
      report.ratios.push_back({std::move(name), value, wanted, at_most, std::move(what)});
    }
  };
  for (const std::string operation : {kPush, kPull, kTcpPush, kTcpPull}) {
    const std::string name = absl::StrReplaceAll(operation, {{"-", "_"}});
    add(name + "_to_tcp_16mib_up", worst(operation, 16 * kMiB, 1024 * kMiB, &Row::to_tcp), 0.8, false,
        operation + " at 16 MiB and above, relative to a bare TCP stream");
    add(name + "_to_tcp_1_to_4mib", worst(operation, kMiB, 4 * kMiB, &Row::to_tcp), 0.6, false,
        operation + " at 1 to 4 MiB, relative to a bare TCP stream");
    add(name + "_to_stub_16mib", worst(operation, 16 * kMiB, 16 * kMiB, &Row::to_stub), 2, false,
        operation + " at 16 MiB, relative to the plain stub");
    add(name + "_to_stub_64mib", worst(operation, 64 * kMiB, 64 * kMiB, &Row::to_stub), 5, false,
        operation + " at 64 MiB, relative to the plain stub");
  }
  add("push_tcp_to_sgd_16mib_up", worst(kTcpPush, 16 * kMiB, 1024 * kMiB, &Row::to_sgd), 0.8, false,
      "push-tcp at 16 MiB and above, relative to a TCP stream whose receiver applies SGD and answers");
  add("push_tcp_to_sgd_1_to_4mib", worst(kTcpPush, kMiB, 4 * kMiB, &Row::to_sgd), 0.6, false,
      "push-tcp at 1 to 4 MiB, relative to a TCP stream whose receiver applies SGD and answers");
  add("pull_tcp_to_asked_16mib_up", worst(kTcpPull, 16 * kMiB, 1024 * kMiB, &Row::to_asked), 0.8, false,
      "pull-tcp at 16 MiB and above, relative to a TCP stream whose receiver asks for each tensor");
  add("pull_tcp_to_asked_1_to_4mib", worst(kTcpPull, kMiB, 4 * kMiB, &Row::to_asked), 0.6, false,
      "pull-tcp at 1 to 4 MiB, relative to a TCP stream whose receiver asks for each tensor");
  for (const std::string operation : {kTlsPush, kTlsPull}) {
    const std::string name = absl::StrReplaceAll(operation, {{"-", "_"}});
    add(name + "_to_openssl_1mib_up", worst(operation, kMiB, 1024 * kMiB, &Row::to_tcp), 0.8, false,
        operation + " at 1 MiB and above, relative to a bare stream by OpenSSL alone");
  }
  add("push_tls_to_sgd_1mib_up", worst(kTlsPush, kMiB, 1024 * kMiB, &Row::to_sgd), 0.8, false,
      "push-tls at 1 MiB and above, relative to a stream by OpenSSL alone whose receiver applies SGD and answers");
  add("pull_tls_to_asked_1mib_up", worst(kTlsPull, kMiB, 1024 * kMiB, &Row::to_asked), 0.8, false,
      "pull-tls at 1 MiB and above, relative to a stream by OpenSSL alone whose receiver asks for each tensor");
  for (const std::string operation : {kPush, kPull}) {
    add(operation + "_to_memcpy_64mib", worst(operation, 64 * kMiB, 64 * kMiB, &Row::to_memcpy), 0.6, false,
        operation + " at 64 MiB, relative to memcpy of the same bytes");
  }
  add("push_to_sgd_copy_64mib", worst(kPush, 64 * kMiB, 64 * kMiB, &Row::to_sgd_copy), 0.6, false,
      "push at 64 MiB, relative to one copy of the same bytes that is applied, by all processors");
  add("push_pull_p50_to_empty_call_4kib", worst(kPushPull, 4096, 4096, &Row::p50_to_empty), 0.25, true,
      "p50 of a 4 KiB push-pull, relative to an empty call");
  add("push_pull_tcp_p50_to_empty_call_4kib", worst(kTcpPushPull, 4096, 4096, &Row::p50_to_empty), 0.8, true,
      "p50 of a 4 KiB push-pull-tcp, relative to an empty call");
}

absl::StatusOr<BenchReport> Run(const Options& options, std::ostream& out) {
  absl::StatusOr<std::unique_ptr<TransferRing>> ring =
      TransferRing::Open(options.sizes, options.servers, options.workers, options.tls);
  if (!ring.ok()) return ring.status();
  BenchReport report;
  report.benchmark = "transfer";
  report.settings = {{"servers", options.servers}, {"workers", options.workers}, {"seconds", options.seconds}};
  out << absl::StrFormat("%-9s %-13s %7s %11s %11s %8s | %7s %6s | %7s %6s | %9s %6s\n", "size", "operation", "GB/s",
                         "p50 us", "p99 us", "CPU s/GB", "TCP", "of it", "stub", "times", "empty us", "times");
  std::vector<Row> rows;
  for (size_t index = 0; index < options.sizes.size(); ++index) {
    std::vector<Contestant> all = (*ring)->Contestants(index);
    if (absl::Status status = RunInTurn(absl::MakeSpan(all), options.seconds); !status.ok()) return status;
    const uint64_t bytes = options.sizes[index];
    rows.push_back(AddRow(all, bytes, kPush, kStubPush, report.rows, out));
    rows.push_back(AddRow(all, bytes, kPull, kStubPull, report.rows, out));
    rows.push_back(AddRow(all, bytes, kPushPull, kStubPushPull, report.rows, out));
    rows.push_back(AddRow(all, bytes, kTcpPush, kStubPush, report.rows, out));
    rows.push_back(AddRow(all, bytes, kTcpPull, kStubPull, report.rows, out));
    rows.push_back(AddRow(all, bytes, kTcpPushPull, kStubPushPull, report.rows, out));
    if (!options.tls) continue;
    rows.push_back(AddRow(all, bytes, kTlsPush, kStubPush, report.rows, out));
    rows.push_back(AddRow(all, bytes, kTlsPull, kStubPull, report.rows, out));
    rows.push_back(AddRow(all, bytes, kTlsPushPull, kStubPushPull, report.rows, out));
  }
  AddRatios(rows, report);
  const absl::StatusOr<TransferRing::Memory> memory = (*ring)->ServerMemory();
  if (!memory.ok()) return memory.status();
  report.settings["server_peak_memory_bytes"] = memory->peak;
  report.settings["server_allowed_memory_bytes"] = memory->allowed;
  report.ratios.push_back({"server_memory_of_allowed",
                           static_cast<double>(memory->peak) / static_cast<double>(memory->allowed), 1, true,
                           "peak memory of the servers, relative to state + bytes in flight + 64 MiB"});
  return report;
}

}  // namespace

CommandResult TransferCommand(absl::Span<const std::string> args, std::ostream& out, std::ostream& err) {
  const auto parse = [&](const Arguments& arguments) {
    const auto sizes = GetSizes(arguments, "sizes", kSizes);
    const auto servers = arguments.GetInt("servers", 1, 1, 16);
    const auto workers = arguments.GetInt("workers", 1, 1, 16);
    const auto seconds = arguments.GetNumber("seconds", 1.5, 0.01, 600);
    const bool tls = arguments.Has("tls");
    return RunUnless({sizes.status(), servers.status(), workers.status(), seconds.status()}, [=, &out] {
      return Run({*sizes, *servers, *workers, tls, *seconds}, out);
    });
  };
  return RunBenchmark(kUsage, Flags(), args, parse, out, err);
}

}  // namespace ballast
