// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <sstream>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "cli/command/command.h"
#include "cli/command/server_connection.h"
#include "cli/display/progress_display.h"
#include "cli/report/run_catalog.h"
#include "cli/target/run_target.h"
#include "common/metrics/test_metric.h"
#include "common/program/arguments.h"
#include "common/rpc/credentials.h"
#include "common/run/summary.h"
#include "common/text/json_fields.h"
#include "common/text/number_text.h"
#include "nlohmann/json.hpp"

namespace ballast {
namespace {

using Json = nlohmann::ordered_json;

constexpr absl::Duration kTimeout = absl::Seconds(5);
constexpr size_t kSlowestShown = 3;

constexpr char kUsage[] =
    "usage: ballast status [RUN_DIR|ADDRESS] [flags]\n\n"
    "Shows the progress of a run and its members; of the newest run under runs/ if no run is named. A run that has\n"
    "ended shows its result. ADDRESS (host:port) names a ballast_server instead, which reports its own shard, and the\n"
    "job if its rank is 0; for one of a launch, --run finds the certificates and the token.\n\n";

const std::vector<FlagSpec>& Flags() {
  static const auto* flags = new std::vector<FlagSpec>([] {
    std::vector<FlagSpec> all = {{"json", "", "Print one JSON object."},
                                 {"job", "NAME", "Fail if the server holds a job with another name."},
                                 {"run", "DIR", "Run directory of the launch that the server at ADDRESS belongs to."}};
    all.insert(all.end(), SecurityFlags().begin(), SecurityFlags().end());
    return all;
  }());
  return *flags;
}

std::string StateName(v1::JobState state) {
  switch (state) {
    case v1::JOB_STATE_GATHERING:
      return "gathering";
    case v1::JOB_STATE_RUNNING:
      return "running";
    case v1::JOB_STATE_FINISHED:
      return "finished";
    case v1::JOB_STATE_FAILED:
      return "failed";
    default:
      return "unknown";
  }
}

std::string RoleName(v1::Role role) {
  switch (role) {
    case v1::ROLE_SERVER:
      return "server";
    case v1::ROLE_STANDBY:
      return "standby";
    default:
      return "worker";
  }
}

double MeanOf(const v1::Histogram& histogram) {
  return histogram.count() == 0 ? 0 : histogram.sum() / static_cast<double>(histogram.count());
}

// Describes how many pulls waited for other workers, and for how long. Bucket 0 holds the pulls that did not wait.
std::string DescribeWaits(const v1::Histogram& waits) {
  const uint64_t waited = waits.count() - (waits.buckets_size() > 0 ? waits.buckets(0) : 0);
  if (waits.count() == 0 || waited == 0) return "none waited so far";
  return absl::StrFormat("%.0f%% waited, for %s on average and %s at most", 100.0 * waited / waits.count(),
                         absl::FormatDuration(absl::Microseconds(std::round(waits.sum() / waited))),
                         absl::FormatDuration(absl::Microseconds(waits.max())));
}

void PrintShard(std::ostream& out, const std::string& address, const v1::GetStatusResponse& shard) {
  out << absl::StrFormat("shard %d at %s, version %s, up for %s%s\n", shard.shard(), address, shard.version(),
                         FormatClock(absl::Seconds(shard.uptime_seconds())), shard.draining() ? ", draining" : "");
  if (shard.job().empty()) {
    out << "  no job declared yet\n";
    return;
  }
  out << absl::StrFormat("  job       %s, policy %s, workers %d\n", shard.job(), shard.policy(), shard.workers());
  out << absl::StrFormat("  holds     %d tensors in %d slices, %s\n", shard.tensors(), shard.slices(),
                         BytesText(shard.state_bytes()));
  for (const v1::GetStatusResponse::Table& table : shard.tables()) {
    out << absl::StrFormat("  table     %s: %s rows, %s, %s steps\n", table.name(), FormatCount(table.rows()),
                           BytesText(table.bytes()), FormatCount(table.clock()));
    if (table.waiting() + table.not_admitted() > 0) {
      out << absl::StrFormat("            %s ids wait for admission, %s gradients not used\n",
                             FormatCount(table.waiting()), FormatCount(table.not_admitted()));
    }
    const v1::EvictedRows& evicted = table.evicted();
    if (evicted.expired() + evicted.over_budget() + evicted.small_norm() > 0) {
      out << absl::StrFormat("            evicted: %s expired, %s over budget, %s of small norm; %s returned\n",
                             FormatCount(evicted.expired()), FormatCount(evicted.over_budget()),
                             FormatCount(evicted.small_norm()), FormatCount(evicted.returned()));
    }
  }
  out << absl::StrFormat("  pushes    %s (%s duplicates)\n", FormatCount(shard.pushes()),
                         FormatCount(shard.duplicates()));
  out << absl::StrFormat("  pulls     %s, %d waiting now; %s\n", FormatCount(shard.pulls()), shard.waiting(),
                         DescribeWaits(shard.wait_microseconds()));
  if (shard.has_longest_wait()) {
    out << absl::StrFormat("  waiting   for %s: %s\n", DurationText(shard.longest_wait().seconds()),
                           shard.longest_wait().reason());
  }
  out << absl::StrFormat("  slices    %s updates applied, %s gradients dropped, staleness mean %.3g, maximum %d\n",
                         FormatCount(shard.updates()), FormatCount(shard.dropped()), MeanOf(shard.staleness()),
                         shard.max_staleness());
  out << absl::StrFormat("  bytes     %s of gradients, %s of values; in flight %s of %s, %s calls refused\n",
                         BytesText(shard.push_bytes()), BytesText(shard.pull_bytes()),
                         BytesText(shard.bytes_in_flight()), BytesText(shard.bytes_in_flight_limit()),
                         FormatCount(shard.refused()));
  if (shard.has_recovery()) {
    const v1::GetStatusResponse::Recovery& recovery = shard.recovery();
    out << absl::StrFormat(
        "  recovered %s log records in %.1f s; %s refused as stale, %s truncated, %s updates lost with the machine\n",
        FormatCount(recovery.records()), recovery.seconds(), FormatCount(recovery.refused_records()),
        BytesText(recovery.cut_bytes()), FormatCount(recovery.lost_updates()));
  }
  if (shard.snapshot_failures() > 0) {
    out << absl::StrFormat("  snapshots %s written, %s failed\n", FormatCount(shard.snapshots()),
                           FormatCount(shard.snapshot_failures()));
  }
  if (shard.shared_calls() > 0) {
    out << absl::StrFormat("  shared    memory with %d clients on this machine, %s calls through it\n",
                           shard.shared_regions(), FormatCount(shard.shared_calls()));
  }
  if (shard.stream_calls() > 0) {
    out << absl::StrFormat("  streams   of data to %d clients, %s calls on them\n", shard.data_streams(),
                           FormatCount(shard.stream_calls()));
  }
}

void PrintCatchingUp(std::ostream& out, const v1::StandbyReport& standby) {
  out << absl::StrFormat("  %-10s catching up: %s of %s sent, %s/s; %s behind\n", "", BytesText(standby.bytes_done()),
                         BytesText(standby.bytes_total()), BytesText(standby.bytes_per_second()),
                         BytesText(standby.lag_bytes()));
}

// Returns whether clients use the servers without joining as workers: tensors are declared, and no worker has joined.
bool ServesClients(const v1::GetProgressResponse& response, const v1::GetStatusResponse& shard) {
  const bool workers = std::any_of(
      response.members().begin(), response.members().end(),
      [](const v1::GetProgressResponse::MemberStatus& member) { return member.member().role() == v1::ROLE_WORKER; });
  return response.progress().state() == v1::JOB_STATE_GATHERING && !workers && !shard.job().empty();
}

// Returns the current epoch, from 1; 0 without epochs.
uint32_t EpochOf(const v1::JobProgress& job) { return std::min(job.epoch() + 1, job.epochs()); }

// Names the workers for whom others waited longest, each at least 1% of the job's time; empty if there is none.
std::string DescribeCausedWaits(const v1::JobProgress& job) {
  std::vector<v1::CausedWait> waits(job.caused_waits().begin(), job.caused_waits().end());
  std::sort(waits.begin(), waits.end(),
            [](const v1::CausedWait& a, const v1::CausedWait& b) { return a.seconds() > b.seconds(); });
  std::vector<std::string> parts;
  for (const v1::CausedWait& wait : waits) {
    const double share = job.seconds() > 0 ? wait.seconds() / job.seconds() : 0;
    if (share < 0.01 || parts.size() == kSlowestShown) break;
    parts.push_back(
        absl::StrFormat("%s for worker %d (%.0f%%)", DurationText(wait.seconds()), wait.worker(), 100 * share));
  }
  return absl::StrJoin(parts, ", ");
}

void PrintJob(std::ostream& out, const v1::GetProgressResponse& response, bool serves_clients) {
  const v1::JobProgress& job = response.progress();
  out << absl::StrFormat("job %s: ", job.job().empty() ? "(none yet)" : job.job());
  if (serves_clients) {
    out << "serving clients that have not joined as workers\n";
  } else {
    out << StateName(job.state()) << (job.reason().empty() ? "" : ": ") << job.reason() << "\n";
  }
  if (job.epochs() > 0) {
    const std::string examples = FormatCount(std::min(job.examples(), job.total_examples()));
    const std::string progress = job.has_stream_position()
                                     ? absl::StrFormat("epoch %d  %s examples", EpochOf(job), examples)
                                     : absl::StrFormat("epoch %d/%d  %s of %s examples", EpochOf(job), job.epochs(),
                                                       examples, FormatCount(job.total_examples()));
    out << absl::StrFormat("  %s  %s  step %d of the furthest worker\n", progress,
                           FormatClock(absl::Seconds(job.seconds())), job.step());
    if (const v1::StreamPosition& position = job.stream_position(); !position.file().empty()) {
      out << absl::StrFormat("  stream: %s, line %s, byte %s\n", position.file(), FormatCount(position.lines()),
                             FormatCount(position.offset()));
    }
    if (job.line().examples() > 0) {
      out << absl::StrFormat("  last %s examples: loss %.4g  %s samples/s  workers waited %.0f%% of their time\n",
                             FormatCount(job.line().examples()), job.train_loss(),
                             FormatCount(job.samples_per_second()), 100 * job.wait_share());
    }
    if (const std::string waits = DescribeCausedWaits(job); !waits.empty()) {
      out << "  others waited " << waits << "\n";
    }
    out << absl::StrFormat("  %s  learning rate %.4g  maximum staleness %d updates\n", job.mode(), job.learning_rate(),
                           job.max_staleness());
  }
  if (job.workers_lost() + job.servers_lost() > 0) {
    out << absl::StrFormat("  lost so far: %d workers, %d servers; examples repeated because of it: %s\n",
                           job.workers_lost(), job.servers_lost(), FormatCount(job.examples_repeated()));
  }
  if (const v1::Evaluation& evaluation = job.last_evaluation(); job.has_last_evaluation()) {
    out << absl::StrFormat("  after epoch %d: test loss %.4g", evaluation.epoch(), evaluation.loss())
        << EvaluationText(evaluation) << "\n";
  }
  out << absl::StrFormat("members (the job has %d servers and %d workers):\n", response.servers(), response.workers());
  out << absl::StrFormat("  %-10s %-8s %12s %10s  %-22s %s\n", "member", "state", "heartbeat", "step", "address",
                         "process");
  for (const v1::GetProgressResponse::MemberStatus& member : response.members()) {
    const std::string who = absl::StrCat(RoleName(member.member().role()), " ", member.member().rank());
    const std::string heard = absl::StrFormat("%.1f s ago", member.seconds_since_heartbeat());
    const std::string state = member.in_step() ? "in step" : member.state();
    out << absl::StrFormat("  %-10s %-8s %12s %10d  %-22s %s%s%s\n", who, state, heard, member.step(), member.address(),
                           member.description(), member.reason().empty() ? "" : ": ", member.reason());
    if (member.standby().stage() == v1::StandbyReport::STAGE_CATCHING_UP) PrintCatchingUp(out, member.standby());
  }
}

Json HistogramJson(const v1::Histogram& histogram) {
  return {{"buckets", std::vector<uint64_t>(histogram.buckets().begin(), histogram.buckets().end())},
          {"mean", MeanOf(histogram)},
          {"max", histogram.max()}};
}

// The part of each table that is on this shard.
Json TablesJson(const v1::GetStatusResponse& shard) {
  Json tables = Json::array();
  for (const v1::GetStatusResponse::Table& table : shard.tables()) {
    tables.push_back({{"id", table.id()},
                      {"name", table.name()},
                      {"rows", table.rows()},
                      {"bytes", table.bytes()},
                      {"clock", table.clock()},
                      {"waiting", table.waiting()},
                      {"not_admitted", table.not_admitted()},
                      {"evicted",
                       {{"expired", table.evicted().expired()},
                        {"over_budget", table.evicted().over_budget()},
                        {"small_norm", table.evicted().small_norm()},
                        {"returned", table.evicted().returned()}}}});
  }
  return tables;
}

Json CausedWaitsJson(const google::protobuf::RepeatedPtrField<v1::CausedWait>& waits) {
  Json list = Json::array();
  for (const v1::CausedWait& wait : waits) list.push_back({{"worker", wait.worker()}, {"seconds", wait.seconds()}});
  return list;
}

Json ShardJson(const std::string& address, const v1::GetStatusResponse& shard) {
  return {{"address", address},
          {"shard", shard.shard()},
          {"version", shard.version()},
          {"uptime_seconds", shard.uptime_seconds()},
          {"draining", shard.draining()},
          {"job", shard.job()},
          {"policy", shard.policy()},
          {"workers", shard.workers()},
          {"tensors", shard.tensors()},
          {"slices", shard.slices()},
          {"tables", TablesJson(shard)},
          {"state_bytes", shard.state_bytes()},
          {"pushes", shard.pushes()},
          {"pulls", shard.pulls()},
          {"updates", shard.updates()},
          {"duplicates", shard.duplicates()},
          {"dropped", shard.dropped()},
          {"waiting", shard.waiting()},
          {"longest_wait_seconds", shard.longest_wait().seconds()},
          {"longest_wait_reason", shard.longest_wait().reason()},
          {"caused_waits", CausedWaitsJson(shard.caused_waits())},
          {"max_staleness", shard.max_staleness()},
          {"staleness", HistogramJson(shard.staleness())},
          {"wait_microseconds", HistogramJson(shard.wait_microseconds())},
          {"bytes_in_flight", shard.bytes_in_flight()},
          {"bytes_in_flight_limit", shard.bytes_in_flight_limit()},
          {"refused", shard.refused()},
          {"shared_regions", shard.shared_regions()},
          {"shared_calls", shard.shared_calls()},
          {"data_streams", shard.data_streams()},
          {"stream_calls", shard.stream_calls()},
          {"push_bytes", shard.push_bytes()},
          {"pull_bytes", shard.pull_bytes()},
          {"recovered_records", shard.recovery().records()},
          {"refused_records", shard.recovery().refused_records()},
          {"lost_updates", shard.recovery().lost_updates()},
          {"snapshots", shard.snapshots()},
          {"snapshot_failures", shard.snapshot_failures()}};
}

Json StandbyJson(const v1::StandbyReport& standby) {
  return {{"bytes_total", standby.bytes_total()},
          {"bytes_done", standby.bytes_done()},
          {"lag_bytes", standby.lag_bytes()},
          {"bytes_per_second", standby.bytes_per_second()}};
}

Json JobJson(const v1::GetProgressResponse& response, bool serves_clients) {
  const v1::JobProgress& job = response.progress();
  const v1::Evaluation& evaluation = job.last_evaluation();
  Json members = Json::array();
  for (const v1::GetProgressResponse::MemberStatus& member : response.members()) {
    Json one = {{"role", RoleName(member.member().role())},
                {"rank", member.member().rank()},
                {"state", member.state()},
                {"in_step", member.in_step()},
                {"address", member.address()},
                {"description", member.description()},
                {"reason", member.reason()},
                {"seconds_since_heartbeat", member.seconds_since_heartbeat()},
                {"step", member.step()}};
    if (member.has_standby()) one["standby"] = StandbyJson(member.standby());
    members.push_back(std::move(one));
  }
  return {{"name", job.job()},
          {"state", serves_clients ? "serving" : StateName(job.state())},
          {"reason", serves_clients ? "" : job.reason()},
          {"mode", job.mode()},
          {"epoch", EpochOf(job)},
          {"epochs", job.epochs()},
          {"step", job.step()},
          {"examples", job.examples()},
          {"total_examples", job.total_examples()},
          {"train_loss", job.train_loss()},
          {"samples_per_second", job.samples_per_second()},
          {"seconds", job.seconds()},
          {"learning_rate", job.learning_rate()},
          {"wait_share", job.wait_share()},
          {"caused_waits", CausedWaitsJson(job.caused_waits())},
          {"max_staleness", job.max_staleness()},
          {"workers_lost", job.workers_lost()},
          {"servers_lost", job.servers_lost()},
          {"examples_repeated", job.examples_repeated()},
          {"stream_file", job.stream_position().file()},
          {"stream_offset", job.stream_position().offset()},
          {"stream_lines", job.stream_position().lines()},
          {"notices", std::vector<std::string>(job.notices().begin(), job.notices().end())},
          {"test_accuracy", evaluation.has_accuracy() ? Json(evaluation.accuracy()) : Json()},
          {"test_auc", evaluation.has_auc() ? Json(evaluation.auc()) : Json()},
          {"bayes_auc", evaluation.has_bayes_auc() ? Json(evaluation.bayes_auc()) : Json()},
          {"calibration", evaluation.has_calibration() ? Json(evaluation.calibration()) : Json()},
          {"servers", response.servers()},
          {"workers", response.workers()},
          {"members", members}};
}

// Prints the result of a run that has ended.
void PrintRun(std::ostream& out, const RunInfo& run) {
  const Summary& summary = run.summary;
  out << absl::StrFormat("run %s: %s%s\n", run.directory, StateName(run.state),
                         run.error.empty() ? "" : absl::StrCat(": ", run.error));
  out << absl::StrFormat("  job %s: %s; started %s\n", summary.job, run.mode,
                         absl::FormatTime("%Y-%m-%d %H:%M:%S UTC", run.started, absl::UTCTimeZone()));
  if (summary.steps == 0) return;
  out << absl::StrFormat("  %s epochs in %.1f s: %s examples at %s samples/s\n", EpochsText(run), summary.seconds,
                         FormatCount(static_cast<double>(summary.examples)), FormatCount(summary.samples_per_second));
  // An earlier release did not say which epoch.
  const std::string epoch =
      summary.train_loss_epoch > 0 ? absl::StrCat("epoch ", summary.train_loss_epoch) : "the last epoch";
  out << absl::StrFormat("  train loss %.4g in %s; test %s\n", summary.train_loss, epoch, TestText(run));
}

// Prints the run's result and, for programs, the whole summary.
void ShowEnded(const RunInfo& run, bool json, std::ostream& out) {
  if (!json) return PrintRun(out, run);
  const absl::StatusOr<Json> summary = ParseJsonObject(SummaryToJson(run.summary));
  const bool known = run.state == RunState::kFinished || run.state == RunState::kInterrupted;
  out << JsonLine({{"run", RunToJson(run)},
                   {"summary", known && summary.ok() ? *summary : Json()},
                   {"shard", nullptr},
                   {"job", nullptr}})
      << std::endl;
}

// Asks the server, and prints what it says.
CommandResult ShowServer(const RunTarget& target, const std::string& job_name, bool json, std::ostream& out,
                         std::ostream& err) {
  const absl::StatusOr<Credentials> credentials = Credentials::Load(target.security);
  if (!credentials.ok()) return Fail(err, credentials.status(), kExitBadInput);
  if (absl::Status status = credentials->CheckTarget(target.address); !status.ok()) {
    return Fail(err, status, kExitBadInput);
  }
  const std::unique_ptr<ServerConnection> server =
      ServerConnection::Open(target.address, *credentials, /*patient=*/false, job_name);
  const absl::StatusOr<v1::GetStatusResponse> shard = server->GetStatus(kTimeout);
  if (!shard.ok()) return Fail(err, WithTokenHint("status", shard.status(), target), kExitFailure);
  const absl::StatusOr<v1::GetProgressResponse> job = server->GetProgress(kTimeout);
  // Servers that do not host the coordinator return UNIMPLEMENTED.
  if (!job.ok() && !absl::IsUnimplemented(job.status())) return Fail(err, job.status(), kExitFailure);
  const bool serves_clients = job.ok() && ServesClients(*job, *shard);
  if (json) {
    Json all;
    if (target.run.has_value()) all["run"] = RunToJson(*target.run);
    all["shard"] = ShardJson(target.address, *shard);
    all["job"] = job.ok() ? JobJson(*job, serves_clients) : Json();
    out << JsonLine(all) << std::endl;
    return kExitSuccess;
  }
  if (target.run.has_value()) out << "run " << target.run->directory << "\n";
  if (job.ok()) PrintJob(out, *job, serves_clients);
  PrintShard(out, target.address, *shard);
  return kExitSuccess;
}

}  // namespace

const std::vector<FlagSpec>& StatusFlags() { return Flags(); }

// `ballast status`: prints the status of a run or of one server and, if it hosts the coordinator, of the job and its
// members.
CommandResult StatusCommand(absl::Span<const std::string> args, std::ostream& out, std::ostream& err) {
  const absl::StatusOr<Arguments> arguments = Arguments::Parse(Flags(), args);
  if (!arguments.ok()) return Fail(err, arguments.status(), kExitBadInput);
  if (arguments->help()) {
    out << kUsage << DescribeFlags(Flags());
    return kExitSuccess;
  }
  const std::vector<std::string>& words = arguments->positional();
  if (words.size() > 1) {
    const std::string got = absl::StrCat("status: got ", words.size(), " words, want one run directory or address, ");
    return Fail(err, absl::InvalidArgumentError(got + "host:port; see --help"), kExitBadInput);
  }
  const absl::StatusOr<RunTarget> target =
      FindRunTarget("status", words.empty() ? std::nullopt : std::optional(words[0]), *arguments);
  if (!target.ok()) {
    return Fail(err, target.status(), absl::IsUnavailable(target.status()) ? kExitTemporary : kExitBadInput);
  }
  const bool json = arguments->Has("json");
  if (!target->address.empty()) {
    std::ostringstream errors;
    CommandResult result = ShowServer(*target, arguments->Get("job", ""), json, out, errors);
    // The run may have ended since its files were read.
    const absl::StatusOr<RunInfo> now =
        target->run.has_value() ? ReadRun(target->run->directory) : absl::NotFoundError("no run");
    if (result.exit_status == kExitSuccess || !now.ok() || now->state == RunState::kRunning) {
      err << errors.str();
      return result;
    }
    ShowEnded(*now, json, out);
    return kExitSuccess;
  }
  ShowEnded(*target->run, json, out);
  return kExitSuccess;
}

}  // namespace ballast
