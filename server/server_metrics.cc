// SPDX-License-Identifier: Apache-2.0
#include "server/server_metrics.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/metrics/metrics_text.h"

namespace ballast {
namespace {

// Workers that have samples of their own.
constexpr uint32_t kMaxLabeledWorkers = 1000;

// Microseconds have buckets from 63 us to 134 s, staleness from 0 to 65,535 updates.
constexpr int kShortestWait = 6, kLongestWait = 27;
constexpr int kLongestStaleness = 16;

// Returns "running" for JOB_STATE_RUNNING.
std::string Word(absl::string_view name, absl::string_view prefix) {
  return absl::AsciiStrToLower(absl::StartsWith(name, prefix) ? name.substr(prefix.size()) : name);
}

void AddTraffic(const v1::GetStatusResponse& shard, MetricsText& out) {
  out.Counter("ballast_pushes_total", "Pushes that the shard accepted.", shard.pushes());
  out.Counter("ballast_pulls_total", "Pulls that the shard answered.", shard.pulls());
  out.Counter("ballast_updates_total", "Updates of slices that the shard applied.", shard.updates());
  out.Counter("ballast_duplicate_pushes_total", "Repeated pushes, which were acknowledged and not applied again.",
              shard.duplicates());
  out.Counter("ballast_dropped_gradients_total", "Gradients of slices that came after their step was over.",
              shard.dropped());
  out.Counter("ballast_refused_calls_total", "Calls that were refused because a limit on memory was reached.",
              shard.refused());
  out.BeginCounters("ballast_payload_bytes_total", "Bytes of gradients received and of values sent, as encoded.");
  out.Sample({{"direction", "push"}}, shard.push_bytes());
  out.Sample({{"direction", "pull"}}, shard.pull_bytes());
  out.Gauge("ballast_flight_bytes", "Bytes of requests and responses that the server holds now.",
            shard.bytes_in_flight());
  out.Gauge("ballast_flight_limit_bytes", "Limit on the bytes of requests and responses that the server holds.",
            shard.bytes_in_flight_limit());
  out.Gauge("ballast_shared_memory_clients", "Clients that exchange messages through shared memory now.",
            shard.shared_regions());
  out.Counter("ballast_shared_memory_calls_total", "Calls whose message was in shared memory.", shard.shared_calls());
}

void AddWaits(const v1::GetStatusResponse& shard, MetricsText& out) {
  out.Gauge("ballast_waiting_pulls", "Pulls that wait for other workers now.", shard.waiting());
  out.BeginHistograms("ballast_pull_wait_seconds", "Time that each pull waited for other workers; 0 if it did not.");
  out.SampleHistogram({}, shard.wait_microseconds(), 1e-6, kShortestWait, kLongestWait);
  out.BeginHistograms(
      "ballast_staleness_updates",
      "Updates that were applied between the values that a gradient was computed from and the gradient.");
  out.SampleHistogram({}, shard.staleness(), 1, 0, kLongestStaleness);
  out.Gauge("ballast_max_staleness_updates", "Largest staleness of a gradient so far.", shard.max_staleness());
}

void AddWorkers(const v1::GetStatusResponse& shard, MetricsText& out) {
  out.BeginCounters("ballast_accepted_pushes_total", "Pushes of each worker that the shard accepted.");
  for (const auto& worker : shard.worker_pushes()) {
    if (worker.worker() < kMaxLabeledWorkers) {
      out.Sample({{"worker", absl::StrCat(worker.worker())}}, worker.accepted());
    }
  }
}

void AddState(const v1::GetStatusResponse& shard, MetricsText& out) {
  out.Gauge("ballast_state_bytes", "Memory of weights and optimizer state.", shard.state_bytes());
  out.Gauge("ballast_tensors", "Tensors of which the shard has a slice.", shard.tensors());
  out.Gauge("ballast_slices", "Slices of the shard.", shard.slices());
  out.Gauge("ballast_draining", "1 while the server shuts down.", shard.draining() ? 1 : 0);
  out.Counter("ballast_snapshots_total", "Snapshots of the log that were written.", shard.snapshots());
  out.Counter("ballast_snapshot_failures_total", "Snapshots of the log that failed.", shard.snapshot_failures());
  out.Gauge("ballast_recovered_records", "Log records that were applied when the process started.",
            shard.recovery().records());
  out.Gauge("ballast_recovery_lost_updates", "Updates of slices that workers had seen and that recovery lacked.",
            shard.recovery().lost_updates());
  uint64_t rows = 0, bytes = 0, evicted = 0, not_admitted = 0;
  for (const auto& table : shard.tables()) {
    rows += table.rows();
    bytes += table.bytes();
    not_admitted += table.not_admitted();
    evicted += table.evicted().expired() + table.evicted().over_budget() + table.evicted().small_norm();
  }
  out.Gauge("ballast_table_rows", "Rows of all tables.", rows);
  out.Gauge("ballast_table_bytes", "Memory of rows and index of all tables.", bytes);
  out.Counter("ballast_evicted_rows_total", "Rows of all tables that were evicted.", evicted);
  out.Counter("ballast_unadmitted_gradients_total", "Gradients of rows whose ids were not admitted yet.", not_admitted);
}

void AddMembers(const v1::GetProgressResponse& job, MetricsText& out) {
  std::map<std::pair<std::string, std::string>, int> counts;
  for (const char* role : {"server", "standby", "worker"}) {
    for (const char* state : {"joined", "left", "lost", "failed"}) counts[{role, state}] = 0;
  }
  double oldest = 0;
  for (const auto& member : job.members()) {
    ++counts[{Word(v1::Role_Name(member.member().role()), "ROLE_"), member.state()}];
    if (member.state() == "joined") oldest = std::max(oldest, member.seconds_since_heartbeat());
  }
  out.BeginGauges("ballast_members", "Members of the job by role and state.");
  for (const auto& [key, count] : counts) out.Sample({{"role", key.first}, {"state", key.second}}, count);
  out.BeginGauges("ballast_members_wanted", "Members that the job waits for.");
  out.Sample({{"role", "server"}}, job.servers());
  out.Sample({{"role", "worker"}}, job.workers());
  out.Gauge("ballast_oldest_heartbeat_seconds", "Age of the oldest last heartbeat of a member that has joined.",
            oldest);
  out.BeginGauges("ballast_member_step", "Steps that each worker has finished.");
  for (const auto& member : job.members()) {
    if (member.member().role() == v1::ROLE_WORKER && member.member().rank() < kMaxLabeledWorkers) {
      out.Sample({{"worker", absl::StrCat(member.member().rank())}}, member.step());
    }
  }
}

void AddJob(const v1::GetProgressResponse& job, MetricsText& out) {
  const v1::JobProgress& progress = job.progress();
  out.BeginGauges("ballast_job_state", "1 for the state of the job, 0 for the others.");
  for (int state = v1::JobState_MIN; state <= v1::JobState_MAX; ++state) {
    if (!v1::JobState_IsValid(state)) continue;
    out.Sample({{"state", Word(v1::JobState_Name(static_cast<v1::JobState>(state)), "JOB_STATE_")}},
               progress.state() == state ? 1 : 0);
  }
  out.Gauge("ballast_job_step", "Step of the worker that is furthest ahead.", progress.step());
  out.Gauge("ballast_job_epoch", "Newest epoch, counted from 1.", progress.epoch());
  out.Gauge("ballast_job_epochs", "Epochs of the job.", progress.epochs());
  out.Counter("ballast_examples_total", "Examples that workers have finished.", progress.examples());
  out.Gauge("ballast_job_examples", "Examples of all epochs together.", progress.total_examples());
  out.Gauge("ballast_train_loss", "Mean loss over the newest examples.", progress.train_loss());
  out.Gauge("ballast_learning_rate", "Newest learning rate.", progress.learning_rate());
  out.Gauge("ballast_wait_ratio", "Fraction of the workers' newest time that they waited for servers.",
            progress.wait_share());
  out.Counter("ballast_workers_lost_total", "Losses and failures of workers that the job survived.",
              progress.workers_lost());
  out.Counter("ballast_servers_lost_total", "Losses and failures of servers that the job survived.",
              progress.servers_lost());
  out.Counter("ballast_repeated_examples_total", "Examples in leases that were handed out again.",
              progress.examples_repeated());
  if (progress.has_last_evaluation()) {
    const v1::Evaluation& evaluation = progress.last_evaluation();
    out.Gauge("ballast_test_loss", "Loss of the last evaluation.", evaluation.loss());
    if (evaluation.has_accuracy()) {
      out.Gauge("ballast_test_accuracy_ratio", "Accuracy of the last evaluation.", evaluation.accuracy());
    }
  }
  AddMembers(job, out);
}

}  // namespace

std::string ServerMetrics(const v1::GetStatusResponse& shard, const v1::GetProgressResponse* job) {
  MetricsText out;
  out.Gauge("ballast_build_info", "1; the label is the version.", 1, {{"version", shard.version()}});
  out.Gauge("ballast_shard_info", "1; the labels say what this server holds.", 1,
            {{"shard", absl::StrCat(shard.shard())},
             {"job", shard.job()},
             {"policy", shard.policy()},
             {"durability", Word(v1::Durability::Mode_Name(shard.durability()), "")}});
  AddTraffic(shard, out);
  AddWaits(shard, out);
  AddWorkers(shard, out);
  AddState(shard, out);
  if (job != nullptr) AddJob(*job, out);
  out.AddProcess();
  return out.text();
}

}  // namespace ballast
