// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <cmath>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "bench/bench_report.h"
#include "bench/peers/child_server.h"
#include "cli/command/command.h"
#include "client/client.h"
#include "common/program/arguments.h"
#include "common/run/model_description.h"
#include "worker/serve/model_follower.h"
#include "worker/serve/served_model.h"

namespace ballast {
namespace {

constexpr char kUsage[] =
    "usage: ballast bench serve [flags]\n\n"
    "Measures how long after a push a served model predicts with it. One process follows two servers, as\n"
    "`ballast serve` does. A worker pushes a gradient of one row, or of a layer's bias; the time counts from the\n"
    "push's response to the first prediction that differs. Meanwhile another worker pushes other rows.\n\n";

constexpr char kJob[] = "serve";
constexpr uint32_t kDim = 16;
constexpr uint32_t kFeatures = 13;
constexpr uint64_t kProbe = 7;
constexpr size_t kBatch = 1000;
// Between two trials at most, so that they begin at any time of a period.
constexpr int kMostPauseMs = 400;
constexpr absl::Duration kPoll = absl::Microseconds(200);
constexpr absl::Duration kTimeout = absl::Seconds(30);
constexpr double kWantedSeconds = 1;

std::vector<FlagSpec> Flags() {
  return {
      {"rows", "N", "Rows of the table, 1000 to 100000000 (100000)."},
      {"background", "N", "Rows that another worker pushes per second meanwhile, 0 to 10000000 (100000)."},
      {"pushes", "N", "Pushes of the row, and of the bias, 10 to 100000 (200)."},
  };
}

struct Options {
  int rows = 0;
  int background = 0;
  int pushes = 0;
};

v1::Job MakeJob() {
  v1::Job job;
  job.set_name(kJob);
  job.mutable_data()->mutable_train()->mutable_criteo();
  v1::EmbeddingTable* table = job.mutable_model()->add_tables();
  table->set_name("ids");
  table->set_dim(kDim);
  job.mutable_model()->add_layers()->mutable_embedding()->set_table("ids");
  job.mutable_model()->add_layers()->mutable_dense()->set_units(1);
  job.mutable_model()->mutable_loss()->mutable_sigmoid_cross_entropy();
  return job;
}

// Owns the servers, two workers and a model that follows them. Thread safety: confined to the main thread.
class ServeRing {
 public:
  static absl::StatusOr<std::unique_ptr<ServeRing>> Open(const Options& options) {
    absl::StatusOr<ScratchFolder> folder = ScratchFolder::Create();
    if (!folder.ok()) return folder.status();
    std::unique_ptr<ServeRing> ring(new ServeRing(options, *std::move(folder)));
    for (const auto& step : {&ServeRing::Connect, &ServeRing::Fill, &ServeRing::Follow}) {
      if (absl::Status status = (ring.get()->*step)(); !status.ok()) return status;
    }
    if (options.background > 0) ring->background_ = std::thread([owned = ring.get()] { owned->PushOthers(); });
    return ring;
  }
  ~ServeRing() {
    stopping_ = true;
    if (background_.joinable()) background_.join();
  }
  ServeRing(const ServeRing&) = delete;

  // Pushes the probe's row, or the bias, and returns the seconds until a prediction differs.
  absl::StatusOr<double> Measure(bool row, uint64_t step) {
    const absl::StatusOr<double> before = Predict();
    if (!before.ok()) return before.status();
    // Alternating signs keep the prediction where it changes most.
    const float sign = step % 4 < 2 ? 1 : -1;
    const absl::Status pushed = row ? PushProbe(step, sign) : PushBias(step, sign);
    if (!pushed.ok()) return pushed;
    const absl::Time begin = absl::Now();
    while (absl::Now() < begin + kTimeout) {
      const absl::StatusOr<double> now = Predict();
      if (!now.ok()) return now.status();
      if (*now != *before) return absl::ToDoubleSeconds(absl::Now() - begin);
      absl::SleepFor(kPoll);
    }
    return absl::DeadlineExceededError(absl::StrCat("a push was not served within ", absl::FormatDuration(kTimeout)));
  }

  absl::Status background_status() const { return background_status_; }
  uint64_t pushed_rows() const { return pushed_rows_; }

 private:
  ServeRing(const Options& options, ScratchFolder folder) : options_(options), folder_(std::move(folder)) {
    for (int i = 1; i <= 26; ++i) fields_.push_back(absl::StrCat("C", i));
  }

  absl::Status Connect() {
    absl::StatusOr<std::vector<ChildServer>> servers = StartServers(2, 2, folder_);
    if (!servers.ok()) return servers.status();
    servers_ = *std::move(servers);
    for (uint32_t worker = 0; worker < 2; ++worker) {
      ClientOptions options;
      options.coordinator = servers_[0].address();
      options.job = kJob;
      options.policy.mutable_async();
      options.workers = 2;
      options.worker = worker;
      absl::StatusOr<std::unique_ptr<Client>> client = Client::Connect(options);
      if (!client.ok()) return client.status();
      absl::Status status = (*client)->Declare(Specs());
      if (status.ok()) status = (*client)->DeclareTables({Table()});
      if (!status.ok()) return status;
      clients_.push_back(*std::move(client));
    }
    return absl::OkStatus();
  }

  static v1::Optimizer Sgd() {
    v1::Optimizer optimizer;
    optimizer.mutable_sgd()->set_learning_rate(1);
    return optimizer;
  }

  std::vector<v1::TensorSpec> Specs() const {
    std::vector<v1::TensorSpec> specs(2);
    specs[0].set_name("dense1/weight");
    specs[0].add_shape(1);
    specs[0].add_shape(kFeatures + fields_.size() * kDim);
    specs[0].mutable_initializer()->mutable_constant()->set_value(0.01f);
    specs[1].set_id(1);
    specs[1].set_name("dense1/bias");
    specs[1].add_shape(1);
    for (v1::TensorSpec& spec : specs) *spec.mutable_optimizer() = Sgd();
    return specs;
  }

  static v1::TableSpec Table() {
    v1::TableSpec table;
    table.set_id(2);
    table.set_name("ids");
    table.set_dim(kDim);
    table.mutable_initializer()->mutable_normal()->set_stddev(0.01f);
    *table.mutable_optimizer() = Sgd();
    return table;
  }

  absl::Status PushRows(uint32_t worker, uint64_t step, absl::Span<const uint64_t> ids, float gradient) {
    gradients_[worker].assign(ids.size() * kDim, gradient);
    return clients_[worker]->PushRows(step, 1, {RowPush{Table().id(), ids, gradients_[worker]}}).Get().status();
  }
  absl::Status PushProbe(uint64_t step, float sign) { return PushRows(0, step, {kProbe}, sign * 0.1f); }
  absl::Status PushBias(uint64_t step, float sign) {
    const float gradient = sign * 0.1f;
    return clients_[0]->Push(step, 1, {TensorGradient{.tensor_id = 1, .values = {&gradient, 1}}}).Get().status();
  }

  absl::Status Fill() {
    std::vector<uint64_t> ids;
    for (int row = 0; row < options_.rows; row += kBatch) {
      ids.clear();
      for (size_t i = 0; i < kBatch; ++i) ids.push_back(kProbe + 1 + row + i);
      if (absl::Status status = PushRows(1, next_step_++, ids, 0); !status.ok()) return status;
    }
    return absl::OkStatus();
  }

  absl::Status Follow() {
    const ModelDescription description = DescribeModel(MakeJob(), kFeatures, "", fields_);
    ModelFollower::Options follow;
    follow.coordinator = servers_[0].address();
    const auto tables = ModelFollower::AwaitTables(description, follow);
    if (!tables.ok()) return tables.status();
    absl::StatusOr<SavedModel> empty = SavedModel::Make(description, *tables, {.device = "cpu", .threads = 1});
    if (!empty.ok()) return empty.status();
    absl::StatusOr<std::unique_ptr<ServedModel>> model = ServedModel::Create(*std::move(empty), /*complete=*/false);
    if (!model.ok()) return model.status();
    model_ = *std::move(model);
    absl::StatusOr<std::unique_ptr<ModelFollower>> follower = ModelFollower::Start(model_.get(), follow);
    if (!follower.ok()) return follower.status();
    follower_ = *std::move(follower);
    // One id in the first field.
    probe_.count = 1;
    probe_.features.assign(kFeatures, 0);
    probe_.ids.ids = {kProbe};
    probe_.ids.ends.assign(fields_.size(), 1);
    return absl::OkStatus();
  }

  absl::StatusOr<double> Predict() {
    const absl::StatusOr<Prediction> prediction = model_->Predict(probe_);
    if (!prediction.ok()) return prediction.status();
    return prediction->values[0];
  }

  void PushOthers() {
    std::mt19937_64 random(3);
    std::vector<uint64_t> ids(kBatch);
    const absl::Duration period = absl::Seconds(static_cast<double>(kBatch) / options_.background);
    absl::Time next = absl::Now();
    while (!stopping_ && background_status_.ok()) {
      for (uint64_t& id : ids) id = kProbe + 1 + random() % options_.rows;
      background_status_ = PushRows(1, next_step_++, ids, 0.001f);
      pushed_rows_ += kBatch;
      next += period;
      absl::SleepFor(next - absl::Now());
    }
  }

  const Options options_;
  ScratchFolder folder_;
  std::vector<std::string> fields_;
  std::vector<ChildServer> servers_;
  std::vector<std::unique_ptr<Client>> clients_;
  // A gradient for each worker.
  std::vector<float> gradients_[2];
  uint64_t next_step_ = 0;
  std::unique_ptr<ServedModel> model_;
  std::unique_ptr<ModelFollower> follower_;
  Examples probe_;
  std::atomic<bool> stopping_{false};
  std::atomic<uint64_t> pushed_rows_{0};
  // Written by the thread, and read after it.
  absl::Status background_status_;
  std::thread background_;
};

absl::StatusOr<BenchReport> Run(const Options& options, std::ostream& out) {
  BenchReport report;
  report.benchmark = "serve";
  report.settings = {{"rows", options.rows}, {"background", options.background}, {"pushes", options.pushes}};
  absl::StatusOr<std::unique_ptr<ServeRing>> ring = ServeRing::Open(options);
  if (!ring.ok()) return ring.status();
  std::mt19937 random(5);
  std::vector<double> seconds[2];
  const absl::Time begin = absl::Now();
  for (int push = 0; push < 2 * options.pushes; ++push) {
    absl::SleepFor(absl::Milliseconds(static_cast<int>(random() % kMostPauseMs)));
    const absl::StatusOr<double> measured = (*ring)->Measure(push % 2 == 0, push);
    if (!measured.ok()) return measured.status();
    seconds[push % 2].push_back(*measured);
  }
  const double rate = static_cast<double>((*ring)->pushed_rows()) / absl::ToDoubleSeconds(absl::Now() - begin);
  out << absl::StrFormat("%-12s %8s %9s %9s %9s\n", "pushed", "pushes", "p50, ms", "p99, ms", "most, ms");
  for (int kind = 0; kind < 2; ++kind) {
    const char* const name = kind == 0 ? "row" : "bias";
    const double half = Percentile(seconds[kind], 0.5), p99 = Percentile(seconds[kind], 0.99),
                 most = Percentile(seconds[kind], 1);
    report.rows.push_back({{"pushed", name},
                           {"pushes", seconds[kind].size()},
                           {"p50_seconds", half},
                           {"p99_seconds", p99},
                           {"max_seconds", most}});
    out << absl::StrFormat("%-12s %8d %9.1f %9.1f %9.1f\n", name, seconds[kind].size(), half * 1e3, p99 * 1e3,
                           most * 1e3);
    report.ratios.push_back({absl::StrCat(name, "_p99_seconds"), p99, kWantedSeconds, true,
                             absl::StrCat("p99 from a push of a ", name, " to a prediction with it, in seconds")});
  }
  report.notes.push_back(absl::StrFormat("meanwhile another worker pushed %.0f rows/s", rate));
  return report;
}

}  // namespace

CommandResult ServeBenchCommand(absl::Span<const std::string> args, std::ostream& out, std::ostream& err) {
  const auto parse = [&](const Arguments& arguments) {
    const auto rows = arguments.GetInt("rows", 100000, 1000, 100000000);
    const auto background = arguments.GetInt("background", 100000, 0, 10000000);
    const auto pushes = arguments.GetInt("pushes", 200, 10, 100000);
    return RunUnless({rows.status(), background.status(), pushes.status()}, [=, &out] {
      return Run({*rows, *background, *pushes}, out);
    });
  };
  return RunBenchmark(kUsage, Flags(), args, parse, out, err);
}

}  // namespace ballast
