// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "bench/peers/child_server.h"
#include "bench/rows/rows_parts.h"
#include "cli/command/checkpoint_request.h"
#include "client/client.h"
#include "common/storage/checkpoint_folder.h"

namespace ballast {
namespace {

// Rows of a push whose time counts, and of one that only fills the table.
constexpr uint64_t kPushedRows = 1000;
constexpr uint64_t kFilledRows = 50'000;
// Rows that change between a checkpoint and its increment: 1 of so many.
constexpr uint64_t kRowsPerChanged = 100;
constexpr absl::Duration kTimeout = absl::Minutes(5);

// Cost of one checkpoint.
struct Saved {
  double seconds = 0;
  uint64_t bytes = 0;
  // Milliseconds of each push meanwhile.
  std::vector<double> pushes;

  double Slowest() const { return *std::max_element(pushes.begin(), pushes.end()); }
};

// Owns a server with a full table, and a client that changes the same rows over and over. Thread safety: confined to
// the main thread, except for one that asks for checkpoints.
class CheckpointRing {
 public:
  static absl::StatusOr<std::unique_ptr<CheckpointRing>> Open(uint64_t rows) {
    absl::StatusOr<ScratchFolder> folder = ScratchFolder::Create();
    if (!folder.ok()) return folder.status();
    std::unique_ptr<CheckpointRing> ring(new CheckpointRing(rows, *std::move(folder)));
    for (const auto& step : {&CheckpointRing::StartServer, &CheckpointRing::Connect, &CheckpointRing::Fill}) {
      if (absl::Status status = (ring.get()->*step)(); !status.ok()) return status;
    }
    return ring;
  }
  CheckpointRing(const CheckpointRing&) = delete;

  // Milliseconds of each push for so long.
  absl::StatusOr<std::vector<double>> PushFor(absl::Duration duration) {
    const absl::Time end = absl::Now() + duration;
    return PushUntil([&] { return absl::Now() >= end; });
  }

  // Changes each of the rows that PushFor and Save change.
  absl::Status ChangeAll() { return PushAll(changing_); }

  // Pushes until a checkpoint is saved.
  absl::StatusOr<Saved> Save() {
    absl::Status failure;
    std::atomic<bool> saved = false;
    const absl::Time start = absl::Now();
    std::thread asks([&] {
      const auto pause = [](absl::Duration duration) {
        absl::SleepFor(duration);
        return true;
      };
      failure = RequestCheckpoint(*coordinator_, /*stop=*/false, kTimeout, pause).status();
      saved = true;
    });
    absl::StatusOr<std::vector<double>> pushes = PushUntil([&] { return saved.load(); });
    asks.join();
    if (!failure.ok()) return failure;
    if (!pushes.ok()) return pushes.status();
    Saved result{absl::ToDoubleSeconds(absl::Now() - start), 0, *std::move(pushes)};
    const absl::StatusOr<std::string> path = FindManifest(checkpoints_);
    if (!path.ok()) return path.status();
    const auto manifest = ReadManifest(*path);
    if (!manifest.ok()) return manifest.status();
    for (const auto& file : manifest->files()) result.bytes += file.bytes();
    return result;
  }

 private:
  CheckpointRing(uint64_t rows, ScratchFolder folder)
      : rows_(rows),
        changing_(std::max(rows / kRowsPerChanged, uint64_t{1})),
        folder_(std::move(folder)),
        checkpoints_(absl::StrCat(folder_.path(), "/checkpoints")),
        gradients_(kFilledRows * kRowDim, 0.01f) {}

  absl::Status StartServer() {
    absl::StatusOr<std::vector<ChildServer>> servers = StartServers(1, 1, folder_, {"--checkpoint_dir", checkpoints_});
    if (!servers.ok()) return servers.status();
    servers_ = *std::move(servers);
    return absl::OkStatus();
  }

  absl::Status Connect() {
    ClientOptions options;
    options.coordinator = servers_[0].address();
    options.job = kRowsJob;
    options.policy.mutable_async();
    options.workers = 1;
    absl::StatusOr<std::unique_ptr<Client>> client = Client::Connect(options);
    if (!client.ok()) return client.status();
    client_ = *std::move(client);
    coordinator_ = ServerConnection::Open(servers_[0].address(), {}, /*patient=*/true, kRowsJob);
    return client_->DeclareTables({RowsTable()});
  }

  absl::Status Fill() { return PushAll(rows_); }

  // Pushes the first rows.
  absl::Status PushAll(uint64_t rows) {
    for (uint64_t first = 0; first < rows; first += kFilledRows) {
      if (absl::Status status = Push(first, std::min(kFilledRows, rows - first)); !status.ok()) return status;
    }
    return absl::OkStatus();
  }

  absl::Status Push(uint64_t first, uint64_t count) {
    std::vector<uint64_t> ids(count);
    std::iota(ids.begin(), ids.end(), first);
    const auto gradients = absl::MakeConstSpan(gradients_).first(count * kRowDim);
    return client_->PushRows(step_++, 1, {RowPush{kRowsTable, ids, gradients}}).Get().status();
  }

  absl::StatusOr<std::vector<double>> PushUntil(absl::FunctionRef<bool()> over) {
    const uint64_t pushed = std::min(kPushedRows, changing_);
    std::vector<double> times;
    do {
      const absl::Time start = absl::Now();
      next_ = next_ + pushed > changing_ ? 0 : next_;
      if (absl::Status status = Push(next_, pushed); !status.ok()) return status;
      next_ += pushed;
      times.push_back(absl::ToDoubleMilliseconds(absl::Now() - start));
    } while (!over());
    return times;
  }

  const uint64_t rows_, changing_;
  const ScratchFolder folder_;
  const std::string checkpoints_;
  const std::vector<float> gradients_;
  uint64_t step_ = 0;
  // First row of the next push.
  uint64_t next_ = 0;
  std::vector<ChildServer> servers_;
  std::unique_ptr<Client> client_;
  std::unique_ptr<ServerConnection> coordinator_;
};

void AddRow(const char* what, uint64_t rows, const Saved& saved, BenchReport& report, std::ostream& out) {
  const double p50 = Median(saved.pushes), p99 = Percentile(saved.pushes, 0.99);
  report.rows.push_back({{"part", "checkpoint"},
                         {"saves", what},
                         {"rows", rows},
                         {"seconds", saved.seconds},
                         {"bytes", saved.bytes},
                         {"pushes", saved.pushes.size()},
                         {"p50_milliseconds", p50},
                         {"p99_milliseconds", p99},
                         {"slowest_milliseconds", saved.Slowest()}});
  out << absl::StrFormat(
             "checkpoint %8d rows, saves %-12s: %7.1f MB in %5.2f s, ms of %d pushes: p50 %.2f, p99 %.2f, slowest "
             "%.2f\n",
             rows, what, saved.bytes / 1e6, saved.seconds, saved.pushes.size(), p50, p99, saved.Slowest())
      << std::flush;
}

}  // namespace

absl::Status MeasureCheckpoint(const RowsOptions& options, BenchReport& report, std::ostream& out) {
  const uint64_t rows = std::min(*std::max_element(options.rows.begin(), options.rows.end()), kMostServerRows);
  if (!HasMemoryFor(rows, kRowDim, report)) return absl::OkStatus();
  const absl::StatusOr<std::unique_ptr<CheckpointRing>> ring = CheckpointRing::Open(rows);
  if (!ring.ok()) return ring.status();
  absl::StatusOr<std::vector<double>> pushes = (*ring)->PushFor(absl::Seconds(options.seconds));
  if (!pushes.ok()) return pushes.status();
  AddRow("nothing", rows, {options.seconds, 0, *std::move(pushes)}, report, out);
  const absl::StatusOr<Saved> whole = (*ring)->Save();
  if (!whole.ok()) return whole.status();
  AddRow("all rows", rows, *whole, report, out);
  if (absl::Status status = (*ring)->ChangeAll(); !status.ok()) return status;
  const absl::StatusOr<Saved> increment = (*ring)->Save();
  if (!increment.ok()) return increment.status();
  AddRow("an increment", rows, *increment, report, out);
  const double slowest = std::max(whole->Slowest(), increment->Slowest());
  report.ratios.push_back({"checkpoint_slowest_milliseconds", slowest, 50, true,
                           absl::StrFormat("ms of the slowest push while a server saves %g rows", 1.0 * rows)});
  report.ratios.push_back({"increment_of_whole", 1.0 * increment->bytes / whole->bytes, 0.02, true,
                           "size of an increment after 1 % of the rows changed, of the whole checkpoint"});
  return absl::OkStatus();
}

}  // namespace ballast
