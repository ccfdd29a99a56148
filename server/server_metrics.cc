// SPDX-License-Identifier: Apache-2.0
#include "server/server_metrics.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/metrics/metrics_text.h"

namespace ballast {
namespace {

// Workers, and shards, that have samples of their own.
constexpr uint32_t kMaxLabeled = 1000;

// Buckets: waits from 63 us to 134 s, phases of calls and syncs from 7 us to 33 s, staleness from 0 to 65,535 updates.
constexpr int kShortestWait = 6, kLongestWait = 27;
constexpr int kShortestPhase = 3, kLongestPhase = 25;
constexpr int kLongestStaleness = 16;

// Returns "running" for JOB_STATE_RUNNING.
std::string Word(absl::string_view name, absl::string_view prefix) {
  return absl::AsciiStrToLower(absl::StartsWith(name, prefix) ? name.substr(prefix.size()) : name);
}

void AddCausedWaits(absl::string_view name, absl::string_view help,
                    const google::protobuf::RepeatedPtrField<v1::CausedWait>& waits, MetricsText& out) {
  out.BeginCounters(name, help);
  for (const v1::CausedWait& wait : waits) {
    if (wait.worker() < kMaxLabeled) out.Sample({{"worker", absl::StrCat(wait.worker())}}, wait.seconds());
  }
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
  out.Counter("ballast_old_incarnation_pushes_total",
              "Pushes that were refused because they came from an earlier incarnation of their worker.",
              shard.old_incarnation());
  out.BeginCounters("ballast_payload_bytes_total", "Bytes of gradients received and of values sent, as encoded.");
  for (const auto& payload : shard.payloads()) {
    out.Sample({{"direction", payload.direction()}, {"codec", payload.codec()}}, payload.encoded_bytes());
  }
  out.BeginCounters("ballast_plain_bytes_total", "The same gradients and values as 32-bit floats.");
  for (const auto& payload : shard.payloads()) {
    out.Sample({{"direction", payload.direction()}, {"codec", payload.codec()}}, payload.plain_bytes());
  }
  out.Gauge("ballast_flight_bytes", "Bytes of requests and responses that the server holds now.",
            shard.bytes_in_flight());
  out.Gauge("ballast_flight_limit_bytes", "Limit on the bytes of requests and responses that the server holds.",
            shard.bytes_in_flight_limit());
  out.Gauge("ballast_shared_memory_clients", "Clients that exchange messages through shared memory now.",
            shard.shared_regions());
  out.Counter("ballast_shared_memory_calls_total", "Calls whose message was in shared memory.", shard.shared_calls());
  out.Gauge("ballast_data_streams", "Clients that have a data stream.", shard.data_streams());
  out.Counter("ballast_data_stream_calls_total", "Calls on data streams.", shard.stream_calls());
}

void AddCalls(const v1::GetStatusResponse& shard, MetricsText& out) {
  out.BeginHistograms("ballast_call_seconds",
                      "Time of each call in the server by phase: until a thread took it up, checking and applying it, "
                      "waiting for other workers or the disk, and encoding and sending the response.");
  for (const auto& call : shard.call_phases()) {
    for (const auto& [phase, histogram] : {std::pair("queue", &call.queue()), std::pair("apply", &call.apply()),
                                           std::pair("wait", &call.wait()), std::pair("send", &call.send())}) {
      out.SampleHistogram({{"method", call.method()}, {"phase", phase}}, *histogram, 1e-6, kShortestPhase,
                          kLongestPhase);
    }
  }
  out.Counter("ballast_apply_seconds_total", "Time of threads in applying gradients.", shard.apply_seconds());
  out.Counter("ballast_lock_wait_seconds_total",
              "Time of threads in waiting for another change to the same slice of a tensor.",
              shard.lock_wait_seconds());
  out.Counter("ballast_applied_bytes_total", "Bytes of weights that updates have changed.", shard.applied_bytes());
}

void AddWaits(const v1::GetStatusResponse& shard, MetricsText& out) {
  out.Gauge("ballast_waiting_pulls", "Pulls that wait for other workers now.", shard.waiting());
  out.Gauge("ballast_longest_wait_seconds", "Time for which the oldest waiting pull has waited; 0 if none waits.",
            shard.longest_wait().seconds());
  AddCausedWaits("ballast_caused_wait_seconds_total",
                 "Time that pulls of other workers waited at this shard for each worker's pushes.",
                 shard.caused_waits(), out);
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
    if (worker.worker() < kMaxLabeled) {
      out.Sample({{"worker", absl::StrCat(worker.worker())}}, worker.accepted());
    }
  }
}

void AddMemory(const v1::GetStatusResponse& shard, MetricsText& out) {
  const v1::GetStatusResponse::Memory& memory = shard.memory();
  // The bytes in flight include the waiting pulls.
  const auto requests = [&](uint64_t bytes, uint64_t waits) { return bytes - std::min(bytes, waits); };
  out.BeginGauges("ballast_memory_bytes",
                  "Memory by use: weights, optimizer slots, gradients and values that the policy keeps, tables, free "
                  "buffers, waiting pulls, and requests with their responses.");
  for (const auto& [use, bytes] : {std::pair("weights", memory.weights()), std::pair("slots", memory.slots()),
                                   std::pair("policy", memory.policy()), std::pair("tables", memory.tables()),
                                   std::pair("free_buffers", memory.free_buffers()), std::pair("waits", memory.waits()),
                                   std::pair("requests", requests(shard.bytes_in_flight(), memory.waits()))}) {
    out.Sample({{"use", use}}, bytes);
  }
  out.BeginGauges("ballast_memory_limit_bytes",
                  "Limits on memory: state is weights, slots and tables together; the others are as above.");
  for (const auto& [use, bytes] :
       {std::pair("state", memory.state_limit()), std::pair("waits", memory.waits_limit()),
        std::pair("requests", requests(shard.bytes_in_flight_limit(), memory.waits_limit()))}) {
    out.Sample({{"use", use}}, bytes);
  }
}

void AddLog(const v1::GetStatusResponse& shard, MetricsText& out) {
  if (!shard.has_log()) return;
  const v1::GetStatusResponse::Log& log = shard.log();
  out.Gauge("ballast_log_bytes", "Bytes of the log after the newest snapshot, which a recovery replays.", log.bytes());
  out.Gauge("ballast_log_unsynced_bytes", "Bytes of the log that a failure of the machine could lose now.",
            log.unsynced_bytes());
  out.BeginHistograms("ballast_log_sync_seconds", "Time of each sync of a log file to the disk.");
  out.SampleHistogram({}, log.sync_microseconds(), 1e-6, kShortestPhase, kLongestPhase);
  if (log.snapshot_unix_seconds() == 0) return;
  out.Gauge("ballast_snapshot_timestamp_seconds", "Time of the newest snapshot of the log, in seconds since 1970.",
            log.snapshot_unix_seconds());
  out.Gauge("ballast_snapshot_seconds", "Time that the newest snapshot took; 0 if an earlier process took it.",
            log.snapshot_seconds());
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

// A shard whose standby is missing has samples too, because that must not look like a standby in step.
void AddStandbys(const v1::GetProgressResponse& job, MetricsText& out) {
  std::vector<const v1::GetProgressResponse::MemberStatus*> standbys(std::min(job.servers(), kMaxLabeled));
  for (const auto& member : job.members()) {
    const uint32_t shard = member.member().rank();
    if (member.member().role() != v1::ROLE_STANDBY || shard >= standbys.size()) continue;
    if (standbys[shard] == nullptr || member.state() == "joined") standbys[shard] = &member;
  }
  out.BeginGauges("ballast_standby_in_step", "1 if the shard's standby could take over now.");
  for (size_t shard = 0; shard < standbys.size(); ++shard) {
    const bool in_step = standbys[shard] != nullptr && standbys[shard]->in_step();
    out.Sample({{"shard", absl::StrCat(shard)}}, in_step ? 1 : 0);
  }
  out.BeginGauges("ballast_standby_lag_bytes", "Bytes of changes that are queued for the shard's standby.");
  for (size_t shard = 0; shard < standbys.size(); ++shard) {
    if (standbys[shard] == nullptr) continue;
    out.Sample({{"shard", absl::StrCat(shard)}}, standbys[shard]->standby().lag_bytes());
  }
}

void AddCheckpoints(const JobView& job, MetricsText& out) {
  out.Gauge("ballast_checkpoint_interval_seconds",
            "Interval at which the job takes checkpoints; 0 if it takes none by itself.",
            absl::ToDoubleSeconds(job.checkpoint_interval));
  if (!job.described.progress().has_last_checkpoint()) return;
  const v1::JobProgress::Checkpoint& last = job.described.progress().last_checkpoint();
  out.Gauge("ballast_checkpoint_timestamp_seconds", "Time of the newest complete checkpoint, in seconds since 1970.",
            last.unix_seconds());
  out.Gauge("ballast_checkpoint_seconds", "Time that the newest checkpoint took, from its capture to its end.",
            last.seconds());
  out.Gauge("ballast_checkpoint_stall_seconds", "Part of that time in which no change was made.", last.stall_seconds());
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
    if (member.member().role() == v1::ROLE_WORKER && member.member().rank() < kMaxLabeled) {
      out.Sample({{"worker", absl::StrCat(member.member().rank())}}, member.step());
    }
  }
}

void AddJob(const JobView& job, bool with_standby, MetricsText& out) {
  const v1::JobProgress& progress = job.described.progress();
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
  AddCausedWaits("ballast_job_caused_wait_seconds_total",
                 "Time that pulls of other workers waited at all shards for each worker's pushes.",
                 progress.caused_waits(), out);
  if (job.staleness_bound.has_value()) {
    out.Gauge("ballast_max_staleness_bound_updates",
              "Largest staleness of a gradient that the policy allows while no worker is paused.",
              *job.staleness_bound);
  }
  AddCheckpoints(job, out);
  if (with_standby) AddStandbys(job.described, out);
  AddMembers(job.described, out);
}

}  // namespace

std::string ServerMetrics(const v1::GetStatusResponse& shard, const JobView* job) {
  MetricsText out;
  out.Gauge("ballast_build_info", "1; the label is the version.", 1, {{"version", shard.version()}});
  out.Gauge("ballast_shard_info", "1; the labels say what this server holds.", 1,
            {{"shard", absl::StrCat(shard.shard())},
             {"job", shard.job()},
             {"policy", shard.policy()},
             {"durability", Word(v1::Durability::Mode_Name(shard.durability()), "")}});
  AddTraffic(shard, out);
  AddCalls(shard, out);
  AddWaits(shard, out);
  AddWorkers(shard, out);
  AddState(shard, out);
  AddMemory(shard, out);
  AddLog(shard, out);
  if (job != nullptr) AddJob(*job, shard.durability() == v1::Durability::STANDBY, out);
  out.AddProcess();
  return out.text();
}

}  // namespace ballast
