// SPDX-License-Identifier: Apache-2.0
#include "cli/page/status_samples.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace ballast {
namespace {

using Labels = std::map<std::string, std::string>;

class SampleList {
 public:
  void Add(std::string name, double value, Labels labels = {}) {
    samples_.push_back({absl::StrCat("ballast_", name), std::move(labels), value});
  }

  // Buckets of powers of two, as the histogram has them.
  void AddHistogram(const std::string& name, const v1::Histogram& histogram, double unit, const Labels& labels = {}) {
    double count = 0;
    Labels bounded = labels;
    for (int i = 0; i < histogram.buckets_size(); ++i) {
      count += static_cast<double>(histogram.buckets(i));
      bounded["le"] = absl::StrCat((std::ldexp(1.0, i) - 1) * unit);
      Add(name + "_bucket", count, bounded);
    }
    bounded["le"] = "+Inf";
    Add(name + "_bucket", static_cast<double>(histogram.count()), bounded);
    Add(name + "_sum", histogram.sum() * unit, labels);
    Add(name + "_count", static_cast<double>(histogram.count()), labels);
  }

  std::vector<MetricSample> Take() { return std::move(samples_); }

 private:
  std::vector<MetricSample> samples_;
};

std::string StateWord(int state) {
  const std::string& name = v1::JobState_Name(static_cast<v1::JobState>(state));
  return absl::AsciiStrToLower(absl::StripPrefix(name, "JOB_STATE_"));
}

void AddMemory(const v1::GetStatusResponse& shard, SampleList& list) {
  if (!shard.has_memory()) return;
  const v1::GetStatusResponse::Memory& memory = shard.memory();
  const std::pair<const char*, uint64_t> uses[] = {{"weights", memory.weights()},
                                                   {"slots", memory.slots()},
                                                   {"policy", memory.policy()},
                                                   {"tables", memory.tables()},
                                                   {"free_buffers", memory.free_buffers()},
                                                   {"waits", memory.waits()},
                                                   {"requests", shard.bytes_in_flight()}};
  for (const auto& [use, bytes] : uses) list.Add("memory_bytes", static_cast<double>(bytes), {{"use", use}});
  list.Add("memory_limit_bytes", static_cast<double>(memory.state_limit()), {{"use", "state"}});
  list.Add("memory_limit_bytes", static_cast<double>(memory.waits_limit()), {{"use", "waits"}});
  list.Add("memory_limit_bytes", static_cast<double>(shard.bytes_in_flight_limit()), {{"use", "requests"}});
}

void AddTables(const v1::GetStatusResponse& shard, SampleList& list) {
  if (shard.tables().empty()) return;
  double rows = 0, evicted = 0, not_admitted = 0;
  for (const auto& table : shard.tables()) {
    rows += static_cast<double>(table.rows());
    not_admitted += static_cast<double>(table.not_admitted());
    evicted +=
        static_cast<double>(table.evicted().expired() + table.evicted().over_budget() + table.evicted().small_norm());
  }
  list.Add("table_rows", rows);
  list.Add("evicted_rows_total", evicted);
  list.Add("unadmitted_gradients_total", not_admitted);
}

// Seconds until the standby has everything.
void AddMembers(const v1::GetProgressResponse& job, SampleList& list) {
  double servers = 0, workers = 0;
  for (const auto& member : job.members()) {
    const v1::Role role = member.member().role();
    const bool joined = member.state() == "joined";
    if (role == v1::ROLE_SERVER && joined) ++servers;
    if (role == v1::ROLE_WORKER && joined) ++workers;
    if (role == v1::ROLE_STANDBY && joined) {
      const Labels shard = {{"shard", absl::StrCat(member.member().rank())}};
      list.Add("standby_in_step", member.in_step() ? 1 : 0, shard);
      list.Add("standby_lag_bytes", static_cast<double>(member.standby().lag_bytes()), shard);
    }
  }
  list.Add("members", servers, {{"role", "server"}, {"state", "joined"}});
  list.Add("members", workers, {{"role", "worker"}, {"state", "joined"}});
  list.Add("members_wanted", job.servers(), {{"role", "server"}});
  list.Add("members_wanted", job.workers(), {{"role", "worker"}});
}

}  // namespace

std::vector<MetricSample> SamplesOf(const v1::GetStatusResponse& shard) {
  SampleList list;
  list.Add("shard_info", 1, {{"shard", absl::StrCat(shard.shard())}});
  list.Add("pushes_total", static_cast<double>(shard.pushes()));
  list.Add("duplicate_pushes_total", static_cast<double>(shard.duplicates()));
  list.Add("dropped_gradients_total", static_cast<double>(shard.dropped()));
  list.Add("old_incarnation_pushes_total", static_cast<double>(shard.old_incarnation()));
  list.Add("refused_calls_total", static_cast<double>(shard.refused()));
  list.Add("flight_bytes", static_cast<double>(shard.bytes_in_flight()));
  list.Add("flight_limit_bytes", static_cast<double>(shard.bytes_in_flight_limit()));
  list.Add("waiting_pulls", static_cast<double>(shard.waiting()));
  list.Add("longest_wait_seconds", shard.longest_wait().seconds());
  list.Add("slices", shard.slices());
  list.Add("max_staleness_updates", static_cast<double>(shard.max_staleness()));
  list.Add("apply_seconds_total", shard.apply_seconds());
  list.Add("lock_wait_seconds_total", shard.lock_wait_seconds());
  list.Add("applied_bytes_total", static_cast<double>(shard.applied_bytes()));
  list.AddHistogram("staleness_updates", shard.staleness(), 1);
  for (const auto& wait : shard.caused_waits()) {
    list.Add("caused_wait_seconds_total", wait.seconds(), {{"worker", absl::StrCat(wait.worker())}});
  }
  for (const auto& payload : shard.payloads()) {
    const Labels labels = {{"direction", payload.direction()}, {"codec", payload.codec()}};
    list.Add("payload_bytes_total", static_cast<double>(payload.encoded_bytes()), labels);
    list.Add("plain_bytes_total", static_cast<double>(payload.plain_bytes()), labels);
  }
  if (shard.payloads().empty()) {
    list.Add("payload_bytes_total", static_cast<double>(shard.push_bytes()), {{"direction", "push"}});
    list.Add("payload_bytes_total", static_cast<double>(shard.pull_bytes()), {{"direction", "pull"}});
  }
  for (const auto& call : shard.call_phases()) {
    const std::pair<const char*, const v1::Histogram*> phases[] = {
        {"queue", &call.queue()}, {"apply", &call.apply()}, {"wait", &call.wait()}, {"send", &call.send()}};
    for (const auto& [phase, histogram] : phases) {
      list.AddHistogram("call_seconds", *histogram, 1e-6, {{"method", call.method()}, {"phase", phase}});
    }
  }
  if (shard.has_log()) {
    list.Add("log_bytes", static_cast<double>(shard.log().bytes()));
    list.Add("log_unsynced_bytes", static_cast<double>(shard.log().unsynced_bytes()));
    list.Add("snapshot_timestamp_seconds", shard.log().snapshot_unix_seconds());
    list.Add("snapshot_seconds", shard.log().snapshot_seconds());
    list.AddHistogram("log_sync_seconds", shard.log().sync_microseconds(), 1e-6);
  }
  AddMemory(shard, list);
  AddTables(shard, list);
  return list.Take();
}

std::vector<MetricSample> SamplesOf(const v1::GetProgressResponse& job) {
  SampleList list;
  const v1::JobProgress& progress = job.progress();
  list.Add("job_state", 1, {{"state", StateWord(progress.state())}});
  list.Add("job_step", static_cast<double>(progress.step()));
  list.Add("job_epoch", progress.epoch());
  list.Add("job_epochs", progress.epochs());
  list.Add("examples_total", static_cast<double>(progress.examples()));
  list.Add("job_examples", static_cast<double>(progress.total_examples()));
  if (progress.lines() > 0) list.Add("train_loss", progress.train_loss());
  list.Add("workers_lost_total", progress.workers_lost());
  list.Add("servers_lost_total", progress.servers_lost());
  if (progress.has_last_evaluation()) {
    list.Add("test_loss", progress.last_evaluation().loss());
    if (progress.last_evaluation().has_accuracy())
      list.Add("test_accuracy_ratio", progress.last_evaluation().accuracy());
  }
  if (progress.has_last_checkpoint()) {
    list.Add("checkpoint_timestamp_seconds", progress.last_checkpoint().unix_seconds());
    list.Add("checkpoint_seconds", progress.last_checkpoint().seconds());
    list.Add("checkpoint_stall_seconds", progress.last_checkpoint().stall_seconds());
  }
  const v1::Work& work = progress.total();
  list.Add("worker_seconds_total", work.wait_seconds(), {{"phase", "wait"}});
  list.Add("worker_seconds_total", std::max(0.0, work.seconds() - work.wait_seconds()), {{"phase", "compute"}});
  list.Add("worker_steps_total", static_cast<double>(work.steps()));
  AddMembers(job, list);
  return list.Take();
}

}  // namespace ballast
