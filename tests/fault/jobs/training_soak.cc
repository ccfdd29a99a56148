// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/run/summary.h"
#include "tests/fault/jobs/job_faults.h"
#include "tests/fault/jobs/job_files.h"
#include "tests/fault/programs/program.h"

namespace ballast {
namespace {

constexpr uint32_t kServers = 2;

// Servers may take five minutes to return: this tests the outcome, also on a busy machine.
std::string JobText(uint32_t epochs) {
  return FashionJobText({.name = "training_soak",
                         .epochs = epochs,
                         .schedule = "schedule { cosine {} }",
                         .durability = "return_seconds: 300"});
}

uint64_t Median(std::vector<uint64_t> values) {
  if (values.empty()) return 0;
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

// Owns one `ballast launch`.
class Launch {
 public:
  Launch(const TrainingSoakOptions& options, std::string name) : options_(options), run_(options.folder + "/" + name) {}

  absl::Status Start(uint32_t epochs, const std::vector<std::string>& flags) {
    std::filesystem::remove_all(run_);
    const std::string job = run_ + ".textproto";
    std::ofstream(job) << JobText(epochs);
    std::vector<std::string> words = {options_.ballast, "launch", job, "--run-dir", run_, "--json"};
    words.insert(words.end(), {"--servers", absl::StrCat(kServers), "--workers", "2", "--threads", "1"});
    words.insert(words.end(), {"--device", "cpu", "--durability", options_.durability});
    words.insert(words.end(), flags.begin(), flags.end());
    auto program = Program::Start(std::move(words));
    if (!program.ok()) return program.status();
    program_ = *std::move(program);
    return absl::OkStatus();
  }

  Program* program() { return program_.get(); }

  // Returns its summary after a successful end.
  absl::StatusOr<Summary> Finish() {
    const absl::StatusOr<ExitStatus> ended = program_->AwaitEnd(absl::Seconds(30));
    if (!ended.ok()) return ended.status();
    if (!ended->ok()) {
      const std::string& said = program_->output();
      return absl::InternalError(absl::StrCat("launch ", ended->ToString(), "; output:\n",
                                              said.substr(said.size() - std::min<size_t>(said.size(), 2000))));
    }
    return ReadSummary(run_ + "/summary.json");
  }

  // Samples the current use of its processes, unless a server is down.
  void Sample() {
    const std::vector<pid_t> servers = ChildrenOf(program_->pid(), "ballast_server");
    if (servers.size() != kServers) return;
    ProcessUse all;
    for (pid_t server : servers) {
      const ProcessUse use = ProcessUse::Of(server);
      all.resident_bytes += use.resident_bytes;
      all.descriptors += use.descriptors;
    }
    servers_.push_back(all);
    itself_.push_back(ProcessUse::Of(program_->pid()));
  }

  UseOverTime servers() const { return OverTime(servers_); }
  UseOverTime itself() const { return OverTime(itself_); }

 private:
  static UseOverTime OverTime(const std::vector<ProcessUse>& samples) {
    const size_t quarter = (samples.size() + 3) / 4;
    const auto median = [&](size_t begin, uint64_t ProcessUse::*field) {
      std::vector<uint64_t> values;
      for (size_t i = begin; i < begin + quarter; ++i) values.push_back(samples[i].*field);
      return Median(std::move(values));
    };
    const size_t last = samples.size() - quarter;
    return {samples.size(), median(0, &ProcessUse::resident_bytes), median(last, &ProcessUse::resident_bytes),
            median(0, &ProcessUse::descriptors), median(last, &ProcessUse::descriptors)};
  }

  const TrainingSoakOptions& options_;
  const std::string run_;
  std::unique_ptr<Program> program_;
  std::vector<ProcessUse> servers_, itself_;
};

// Owns two simultaneous runs until both have ended.
class Pair {
 public:
  explicit Pair(const TrainingSoakOptions& options) : with_(options, "with"), without_(options, "without") {}

  absl::Status Run(uint32_t epochs, const std::vector<std::string>& flags, absl::Duration timeout) {
    const absl::Time deadline = absl::Now() + timeout;
    absl::Status status = with_.Start(epochs, flags);
    status.Update(without_.Start(epochs, {}));
    if (!status.ok()) return status;
    Program* const both[] = {with_.program(), without_.program()};
    while (both[0]->Runs() || both[1]->Runs()) {
      if (absl::Now() >= deadline) {
        return absl::DeadlineExceededError(
            absl::StrCat("training hangs: ", epochs, " epochs did not finish within ", absl::FormatDuration(timeout)));
      }
      Program::Hear(both, absl::Now() + absl::Seconds(1));
      if (both[0]->Runs()) with_.Sample();
      if (both[1]->Runs()) without_.Sample();
    }
    return absl::OkStatus();
  }

  Launch& with() { return with_; }
  Launch& without() { return without_; }

 private:
  Launch with_, without_;
};

// Returns the number of epochs that fit into the time when both runs share the machine.
absl::StatusOr<uint32_t> FittingEpochs(const TrainingSoakOptions& options) {
  constexpr uint32_t kTried = 3;
  const absl::Time begun = absl::Now();
  Pair pair(options);
  if (absl::Status status = pair.Run(kTried, {}, absl::Minutes(10)); !status.ok()) return status;
  double seconds = 0;
  for (Launch* launch : {&pair.with(), &pair.without()}) {
    const absl::StatusOr<Summary> summary = launch->Finish();
    if (!summary.ok()) return summary.status();
    seconds = std::max(seconds, summary->seconds);
  }
  const double left = absl::ToDoubleSeconds(options.time - (absl::Now() - begun));
  return static_cast<uint32_t>(std::max(2.0, left / std::max(seconds, 0.1) * kTried));
}

}  // namespace

absl::StatusOr<TrainingSoakCounts> SoakTraining(const TrainingSoakOptions& options) {
  if (absl::Status status = FindFashionData(); !status.ok()) return status;
  setenv("BALLAST_SERVER_BINARY", std::filesystem::absolute(options.server).c_str(), 1);
  setenv("BALLAST_WORKER_BINARY", std::filesystem::absolute(options.worker).c_str(), 1);
  const absl::StatusOr<uint32_t> epochs = FittingEpochs(options);
  if (!epochs.ok()) return epochs.status();
  Pair pair(options);
  // The machine may have become slower; a run that hangs is still far from its end.
  const absl::Duration timeout = 3 * options.time + absl::Minutes(5);
  const std::string chaos =
      absl::StrCat("kill-server=", absl::ToInt64Milliseconds(std::min(options.kill_server, options.time / 4)),
                   "ms,kill-worker=", absl::ToInt64Milliseconds(std::min(options.kill_worker, options.time / 5)), "ms");
  if (absl::Status status = pair.Run(*epochs, {"--chaos", chaos}, timeout); !status.ok()) return status;
  const absl::StatusOr<Summary> with = pair.with().Finish();
  if (!with.ok()) return with.status();
  const absl::StatusOr<Summary> without = pair.without().Finish();
  if (!without.ok()) return without.status();

  TrainingSoakCounts counts;
  counts.epochs = with->epochs;
  counts.restarts = with->restarts;
  counts.workers_lost = with->workers_lost;
  counts.examples = with->examples;
  counts.examples_repeated = with->examples_repeated;
  // A missing count is as bad as a loss.
  counts.pushes_lost = static_cast<uint64_t>(with->pushes_lost.value_or(1) + without->pushes_lost.value_or(1));
  counts.pushes_duplicated =
      static_cast<uint64_t>(with->pushes_duplicated.value_or(1) + without->pushes_duplicated.value_or(1));
  counts.seconds = with->seconds;
  counts.seconds_without_kills = without->seconds;
  counts.accuracy = with->test_accuracy.value_or(0);
  counts.accuracy_without_kills = without->test_accuracy.value_or(1);
  counts.accuracy_tolerance = options.accuracy_tolerance;
  counts.servers = pair.with().servers();
  counts.servers_without_kills = pair.without().servers();
  counts.launch = pair.with().itself();
  return counts;
}

bool TrainingSoakCounts::good() const {
  return restarts > 0 && pushes_lost + pushes_duplicated == 0 &&
         accuracy >= accuracy_without_kills - accuracy_tolerance && servers.level() && servers_without_kills.level() &&
         launch.level();
}

nlohmann::ordered_json TrainingSoakCounts::ToJson() const {
  nlohmann::ordered_json json = JsonOf(*this);
  json["seconds"] = seconds;
  json["seconds_without_kills"] = seconds_without_kills;
  json["accuracy"] = accuracy;
  json["accuracy_without_kills"] = accuracy_without_kills;
  const std::pair<const char*, const UseOverTime&> uses[] = {
      {"servers", servers}, {"servers_without_kills", servers_without_kills}, {"launch", launch}};
  for (const auto& [name, use] : uses) {
    json[name] = {{"samples", use.samples},
                  {"resident_bytes_first_quarter", use.resident_bytes_first},
                  {"resident_bytes_last_quarter", use.resident_bytes_last},
                  {"descriptors_first_quarter", use.descriptors_first},
                  {"descriptors_last_quarter", use.descriptors_last},
                  {"level", use.level()}};
  }
  return json;
}

}  // namespace ballast
