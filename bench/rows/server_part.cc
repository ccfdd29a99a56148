// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "bench/contestant.h"
#include "bench/peers/child_server.h"
#include "bench/peers/redis_peer.h"
#include "bench/peers/tcp_stream.h"
#include "bench/rows/row_sampler.h"
#include "bench/rows/rows_in_process.h"
#include "bench/rows/rows_parts.h"
#include "client/client.h"
#include "common/program/this_process.h"

namespace ballast {
namespace {

constexpr int kBatches = 40;
// An id and 16 weights in fp32.
constexpr uint64_t kRowBytes = 8 + kRowDim * sizeof(float);
constexpr uint64_t kStreamBytes = uint64_t{4} << 20;
constexpr uint64_t kMostRedisRows = 1'000'000;
// Calls in flight where rows per second count, as of a worker that asks for the next batches' rows; on these many
// threads, each with memory of its own.
constexpr int kInFlight = 4;

// A way for rows to travel.
struct Transport {
  const char* name;
  v1::Encoding encoding;
  bool shared_memory;
};
constexpr Transport kTransports[] = {{"fp32_tcp", v1::ENCODING_FP32, false},
                                     {"bf16_tcp", v1::ENCODING_BF16, false},
                                     {"fp32_shared_memory", v1::ENCODING_FP32, true}};
constexpr int kShared = 2;
constexpr char kStream[] = "tcp_stream";
constexpr char kInProcess[] = "_in_process";
constexpr char kRedis[] = "redis_mget";
constexpr char kAlone[] = "_one_at_a_time";

// Owns a server with a full table, a client for each transport, the same table in this process, and the peers. Thread
// safety: confined to the main thread.
class RowsRing {
 public:
  // Without memory for the table in this process, `report` gets a note instead.
  static absl::StatusOr<std::unique_ptr<RowsRing>> Open(uint64_t rows, size_t ids, BenchReport& report) {
    absl::StatusOr<ScratchFolder> folder = ScratchFolder::Create();
    if (!folder.ok()) return folder.status();
    std::unique_ptr<RowsRing> ring(
        new RowsRing(rows, std::min<uint64_t>(ids, std::max<uint64_t>(1, rows / 2)), *std::move(folder)));
    // All processes start before the first thread.
    for (const auto& step : {&RowsRing::StartProcesses, &RowsRing::Connect, &RowsRing::Fill}) {
      if (absl::Status status = (ring.get()->*step)(); !status.ok()) return status;
    }
    if (!HasMemoryFor(rows, kRowDim, report)) return ring;
    absl::StatusOr<std::unique_ptr<RowsInProcess>> in_process = RowsInProcess::Create(rows, ring->gradients_);
    if (!in_process.ok()) return in_process.status();
    ring->in_process_ = *std::move(in_process);
    return ring;
  }
  RowsRing(const RowsRing&) = delete;

  bool has_redis() const { return redis_ != nullptr; }
  size_t ids() const { return ids_; }

  // Bytes of all but the stream are rows * 72, so that ratios of bytes are ratios of rows.
  std::vector<Contestant> Contestants() {
    std::vector<Contestant> all;
    const auto add = [&](std::string name, absl::Span<const ChildServer> servers, int in_flight, auto operation) {
      auto run = [this, operation, in_flight](absl::Duration duration) {
        return RepeatOnThreads(in_flight, duration, ids_ * kRowBytes,
                               [&](int thread) { return operation(batches_[next_++ % kBatches], thread); });
      };
      all.push_back({std::move(name), std::move(run), servers});
    };
    const auto add_calls = [&](size_t i, int in_flight, absl::string_view suffix) {
      const auto name = [&](const char* what) { return absl::StrCat(what, kTransports[i].name, suffix); };
      add(name("pull_"), servers_, in_flight, [this, i](const std::vector<uint64_t>& ids, int thread) {
        const RowPull pull = {kRowsTable, ids, absl::MakeSpan(values_[thread])};
        return clients_[i]->PullRows({pull}).Get().status();
      });
      add(name("push_"), servers_, in_flight, [this, i](const std::vector<uint64_t>& ids, int) {
        return clients_[i]->PushRows(step_++, 1, {RowPush{kRowsTable, ids, gradients_}}).Get().status();
      });
    };
    for (size_t i = 0; i < clients_.size(); ++i) add_calls(i, kInFlight, "");
    add_calls(0, 1, kAlone);
    if (in_process_ != nullptr) {
      add(absl::StrCat("pull", kInProcess), {}, kInFlight, [this](const std::vector<uint64_t>& ids, int thread) {
        return in_process_->Pull(ids, absl::MakeSpan(values_[thread]));
      });
      add(absl::StrCat("push", kInProcess), {}, kInFlight,
          [this](const std::vector<uint64_t>& ids, int) { return in_process_->Push(ids, gradients_); });
    }
    auto stream = [this](absl::Duration duration) -> absl::StatusOr<Round> {
      absl::StatusOr<TcpRound> round = SendTcpStream(sink_[0].address(), bytes_, duration);
      if (!round.ok()) return round.status();
      return Round{round->seconds, round->bytes, {}};
    };
    all.push_back({kStream, std::move(stream), sink_});
    if (!has_redis()) return all;
    add(kRedis, {}, kInFlight, [this](std::vector<uint64_t> ids, int thread) {
      for (uint64_t& id : ids) id %= kMostRedisRows;
      std::vector<float>& values = values_[thread];
      const absl::Span<char> bytes(reinterpret_cast<char*>(values.data()), values.size() * sizeof(float));
      return redis_->Get(ids, kRowDim * sizeof(float), bytes, thread);
    });
    return all;
  }

 private:
  RowsRing(uint64_t rows, size_t ids, ScratchFolder folder)
      : rows_(rows),
        ids_(ids),
        folder_(std::move(folder)),
        bytes_(kStreamBytes, 'x'),
        gradients_(ids * kRowDim, 0.01f),
        values_(kInFlight, std::vector<float>(ids * kRowDim)) {}

  absl::Status StartProcesses() {
    absl::StatusOr<std::vector<ChildServer>> servers = StartServers(1, std::size(kTransports), folder_);
    if (!servers.ok()) return servers.status();
    servers_ = *std::move(servers);
    absl::StatusOr<ChildServer> sink = ChildServer::Start({OwnPath(), "--tcp-sink"}, folder_);
    if (!sink.ok()) return sink.status();
    sink_.push_back(*std::move(sink));
    absl::StatusOr<std::unique_ptr<RedisPeer>> redis = RedisPeer::Start(folder_, kInFlight);
    if (absl::IsNotFound(redis.status())) return absl::OkStatus();
    if (!redis.ok()) return redis.status();
    redis_ = *std::move(redis);
    return absl::OkStatus();
  }

  absl::Status Connect() {
    for (size_t i = 0; i < std::size(kTransports); ++i) {
      ClientOptions options;
      options.coordinator = servers_[0].address();
      options.job = kRowsJob;
      options.policy.mutable_async();
      options.workers = std::size(kTransports);
      options.worker = i;
      options.codec.set_gradients(kTransports[i].encoding);
      options.codec.set_values(kTransports[i].encoding);
      options.shared_memory = kTransports[i].shared_memory;
      absl::StatusOr<std::unique_ptr<Client>> client = Client::Connect(options);
      if (!client.ok()) return client.status();
      if (absl::Status status = (*client)->DeclareTables({RowsTable()}); !status.ok()) return status;
      clients_.push_back(*std::move(client));
    }
    return absl::OkStatus();
  }

  absl::Status Fill() {
    RowSampler sampler(rows_, 0, 5);
    for (int i = 0; i < kBatches; ++i) batches_.push_back(sampler.Draw(ids_));
    const std::string value(kRowDim * sizeof(float), 'v');
    for (uint64_t first = 0; first < rows_; first += ids_) {
      std::vector<uint64_t> ids(std::min<uint64_t>(ids_, rows_ - first));
      std::iota(ids.begin(), ids.end(), first);
      const auto gradients = absl::MakeConstSpan(gradients_).first(ids.size() * kRowDim);
      const auto pushed = clients_[kShared]->PushRows(step_++, 1, {RowPush{kRowsTable, ids, gradients}}).Get();
      if (!pushed.ok()) return pushed.status();
      if (!has_redis() || first >= kMostRedisRows) continue;
      if (absl::Status status = redis_->Set(ids, value); !status.ok()) return status;
    }
    return absl::OkStatus();
  }

  const uint64_t rows_;
  // Distinct ids of a call.
  const size_t ids_;
  const ScratchFolder folder_;
  const std::string bytes_;
  const std::vector<float> gradients_;
  // The rows of each thread.
  std::vector<std::vector<float>> values_;
  std::vector<std::vector<uint64_t>> batches_;
  std::atomic<uint64_t> next_ = 0;
  std::atomic<uint64_t> step_ = 0;
  std::vector<ChildServer> servers_;
  std::vector<ChildServer> sink_;
  // Null without memory for it.
  std::unique_ptr<RowsInProcess> in_process_;
  // Null without redis-server.
  std::unique_ptr<RedisPeer> redis_;
  // By transport.
  std::vector<std::unique_ptr<Client>> clients_;
};

const Contestant* Find(const std::vector<Contestant>& all, absl::string_view name) {
  const auto found = std::find_if(all.begin(), all.end(), [&](const Contestant& one) { return one.name == name; });
  return found == all.end() ? nullptr : &*found;
}

void AddRow(const Contestant& one, uint64_t rows, size_t ids, BenchReport& report, std::ostream& out) {
  const double rate = one.GbPerSecond() * 1e9 / kRowBytes;
  uint64_t bytes = 0;
  for (const Round& round : one.rounds) bytes += round.bytes;
  const double moved = static_cast<double>(bytes) / kRowBytes;
  const double server = 1e9 * one.server_cpu_seconds / moved;
  const double client = 1e9 * one.cpu_seconds / moved - server;
  const double p50 = 1e3 * one.LatencySeconds(0.5), p99 = 1e3 * one.LatencySeconds(0.99);
  // The CPU time of redis-server is not known.
  const bool has_server = !one.servers.empty();
  report.rows.push_back({{"part", "server"},
                         {"operation", one.name},
                         {"rows", rows},
                         {"ids", ids},
                         {"rows_per_second", rate},
                         {"p50_milliseconds", p50},
                         {"p99_milliseconds", p99},
                         {"client_cpu_nanoseconds_per_row", client},
                         {"server_cpu_nanoseconds_per_row", has_server ? Json(server) : Json()}});
  out << absl::StrFormat(
             "server    %9d rows, %-26s %7.2f M rows/s, ms per call p50 %6.2f p99 %6.2f, CPU ns per row: client "
             "%6.1f, server %s\n",
             rows, one.name, rate / 1e6, p50, p99, client, has_server ? absl::StrFormat("%6.1f", server) : "-")
      << std::flush;
}

void AddRatios(const std::vector<Contestant>& all, uint64_t rows, BenchReport& report) {
  const std::string size = absl::StrFormat("%g rows", static_cast<double>(rows));
  const auto add = [&](const std::string& ours, const std::string& peer, double wanted, const char* what) {
    if (Find(all, peer) == nullptr) return;
    report.ratios.push_back({absl::StrCat(ours, "_to_", peer, "_", RowsKey(rows)),
                             RatioOfRates(*Find(all, ours), *Find(all, peer)), wanted, false,
                             absl::StrCat(ours, ", ", size, ", ", what)});
  };
  // Small tables are in the cache.
  const double of_stream = rows <= 1'000'000 ? 0.45 : 0.3;
  for (const std::string operation : {"pull", "push"}) {
    const std::string tcp = operation + "_fp32_tcp";
    add(tcp, kStream, of_stream, "of a bare TCP stream");
    if (const Contestant* in_process = Find(all, operation + kInProcess); in_process != nullptr) {
      // Both keep all processors busy, so one after the other takes the sum of their times.
      const double most = 1 / (1 + RatioOfRates(*Find(all, kStream), *in_process));
      report.ratios.push_back(
          {absl::StrCat(operation, "_limit_to_", kStream, "_", RowsKey(rows)), most, of_stream, false,
           absl::StrCat(operation, ", ", size, ", in one process and then a bare stream, of that")});
      report.ratios.push_back({absl::StrCat(tcp, "_to_limit_", RowsKey(rows)),
                               RatioOfRates(*Find(all, tcp), *Find(all, kStream)) / most, 0.7, false,
                               absl::StrCat(tcp, ", ", size, ", of the limit before")});
    }
    add(operation + "_bf16_tcp", tcp, 1.15, "to fp32");
    add(operation + "_fp32_shared_memory", tcp, 1.25, "to TCP");
  }
  add("pull_fp32_tcp", kRedis, 8, "to MGET of Redis");
}

}  // namespace

absl::Status MeasureServer(const RowsOptions& options, BenchReport& report, std::ostream& out) {
  for (uint64_t rows : options.rows) {
    if (rows > kMostServerRows) {
      report.notes.push_back(absl::StrCat("not measured: a server with ", rows,
                                          " rows, because the part server has at most ", kMostServerRows));
      continue;
    }
    if (!HasMemoryFor(rows, kRowDim, report)) continue;
    absl::StatusOr<std::unique_ptr<RowsRing>> ring = RowsRing::Open(rows, options.ids, report);
    if (!ring.ok()) return ring.status();
    std::vector<Contestant> all = (*ring)->Contestants();
    if (absl::Status status = RunInTurn(absl::MakeSpan(all), options.seconds); !status.ok()) return status;
    for (const Contestant& one : all) AddRow(one, rows, (*ring)->ids(), report, out);
    AddRatios(all, rows, report);
    if ((*ring)->has_redis()) continue;
    report.rows.push_back({{"part", "server"},
                           {"operation", kRedis},
                           {"rows", rows},
                           {"ids", (*ring)->ids()},
                           {"rows_per_second", nullptr},
                           {"p50_milliseconds", nullptr},
                           {"p99_milliseconds", nullptr},
                           {"client_cpu_nanoseconds_per_row", nullptr},
                           {"server_cpu_nanoseconds_per_row", nullptr}});
    report.notes.push_back(
        absl::StrCat("not measured: Redis beside ", rows, " rows, because redis-server is not on PATH"));
  }
  return absl::OkStatus();
}

}  // namespace ballast
