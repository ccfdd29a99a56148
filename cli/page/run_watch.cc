// SPDX-License-Identifier: Apache-2.0
#include "cli/page/run_watch.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "cli/launch/job_launch.h"
#include "cli/launch/launch_security.h"
#include "cli/page/status_samples.h"
#include "common/job/job_file.h"
#include "common/job/job_overrides.h"
#include "common/rpc/credentials.h"
#include "common/run/run_folder.h"
#include "common/storage/file.h"

namespace ballast {
namespace {

// Timeout of each question of a round.
constexpr absl::Duration kTimeout = absl::Milliseconds(1500);
// Longest time that a round reads metrics.jsonl.
constexpr absl::Duration kReading = absl::Milliseconds(300);
constexpr absl::Duration kRecordInterval = absl::Seconds(30);
// Rounds that a page may miss without reading everything again.
constexpr size_t kTicks = 120;
// Pulls that wait longer are explained.
constexpr double kLongWait = 1;

double Seconds(absl::Time time) { return absl::ToDoubleSeconds(time - absl::UnixEpoch()); }

std::string RecordPath(const std::string& directory) { return directory + "/page_history.json"; }

// The place of a series that metrics.jsonl fills.
std::pair<int, int> SeriesOf(const char* metric) {
  const std::vector<Panel>& panels = Panels();
  for (size_t panel = 0; panel < panels.size(); ++panel) {
    if (panels[panel].id != "loss" && panels[panel].id != "speed") continue;
    for (size_t i = 0; i < panels[panel].series.size(); ++i) {
      if (panels[panel].series[i].metric == metric) return {static_cast<int>(panel), static_cast<int>(i)};
    }
  }
  return {0, 0};
}

PanelHistory::LineName LineOf(const char* metric, const char* legend = nullptr) {
  const auto [panel, series] = SeriesOf(metric);
  return {panel, series, legend == nullptr ? Panels()[panel].series[series].legend : legend};
}

// The lines that metrics.jsonl fills.
struct FileLines {
  PanelHistory::LineName train_loss = LineOf("ballast_train_loss");
  PanelHistory::LineName test_loss = LineOf("ballast_test_loss");
  PanelHistory::LineName accuracy = LineOf("ballast_test_accuracy_ratio");
  PanelHistory::LineName auc = LineOf("ballast_test_accuracy_ratio", "test AUC");
  PanelHistory::LineName speed = LineOf("ballast_examples_total");

  bool Has(int panel, int series) const {
    for (const auto& name : {train_loss, test_loss, accuracy, speed}) {
      if (std::get<0>(name) == panel && std::get<1>(name) == series) return true;
    }
    return false;
  }
};

const FileLines& Lines() {
  static const auto* const lines = new FileLines();
  return *lines;
}

// Appends the points that were added, as [[panel id, series, legend, buckets]...].
class MoreLines {
 public:
  void Add(const PanelHistory::LineName& name, const DownsampledLine::Bucket& bucket) {
    lines_.try_emplace(name, 32).first->second.Add(bucket);
  }
  std::string Json() const {
    std::string json = "[";
    for (const auto& [name, line] : lines_) {
      if (json.size() > 1) json.push_back(',');
      PanelHistory::AppendLine(name, line, json);
    }
    return absl::StrCat(json, "]");
  }

 private:
  std::map<PanelHistory::LineName, DownsampledLine> lines_;
};

}  // namespace

// Results of one round.
struct RunWatch::Round {
  absl::Time now;
  RunHead head;
  std::vector<SeriesFigures> figures;
  // Points of metrics.jsonl.
  MoreLines more;
  // Earlier points have changed.
  bool reset = false;
  bool complete = false;
};

RunWatch::RunWatch(Options options)
    : options_(std::move(options)),
      wanted_(WantedSamples(Panels())),
      scraper_(options_.directory, [this](absl::string_view name) { return wanted_.contains(name); }),
      follower_(RunFolder(options_.directory).metrics()),
      epoch_(static_cast<uint64_t>(absl::ToUnixMillis(absl::Now()))) {
  head_.name = options_.directory.empty() ? options_.address : options_.directory;
  head_.state = "starting";
  head_.started = Seconds(absl::Now());
}

RunWatch::~RunWatch() = default;

void RunWatch::Step() {
  Round round{.now = absl::Now()};
  {
    const absl::MutexLock lock(&mutex_);
    round.head = head_;
  }
  round.head.error.clear();
  round.head.waits.clear();
  round.head.silent.clear();
  round.head.processes = 0;
  if (options_.directory.empty()) {
    AskJob(options_.address, round);
    AskServers(round);
    if (!progress_.has_value()) round.head.time_left = -1;
  } else {
    StepDirectory(round);
  }
  round.head.updated = Seconds(absl::Now());
  samples_.Prune(round.head.updated);
  Publish(round);
}

void RunWatch::StepDirectory(Round& round) {
  RunHead& head = round.head;
  const RunFolder folder(options_.directory);
  const absl::StatusOr<LaunchState> launch = LaunchRecord::Read(options_.directory);
  if (!began_) {
    began_ = true;
    // A program's job file is no whole job.
    if (const auto job = JobText::ReadFile(folder.job()); job.ok()) job_ = (*job)->job();
    head.job = job_.name();
    if (job_.has_model()) head.mode = DescribeMode(job_);
    head.epochs = job_.training().epochs();
    head.started = launch.ok() ? Seconds(launch->started) : Seconds(round.now);
    if (!launch.ok()) {
      // Written once, at the start.
      std::error_code error;
      const auto written = std::filesystem::last_write_time(folder.job(), error);
      if (!error) head.started = Seconds(absl::FromChrono(std::chrono::file_clock::to_sys(written)));
    }
    PanelHistory history, sketch;
    if (absl::Status status = history.Read(RecordPath(options_.directory)); !status.ok() && !absl::IsNotFound(status)) {
      head.notices.push_back(std::string(status.message()));
    }
    for (const TrainMetrics& line : follower_.Sketch()) {
      const double time = head.started + line.seconds, x = static_cast<double>(line.examples);
      sketch.Line(Lines().train_loss)->Add(time, x, static_cast<float>(line.loss));
      sketch.Line(Lines().speed)->Add(time, x, static_cast<float>(line.samples_per_second));
    }
    std::string lines;
    sketch.AppendLines(lines);
    const absl::MutexLock lock(&mutex_);
    figures_ = history.last();
    history_ = std::move(history);
    sketch_ = std::move(sketch);
    sketched_ = !lines.empty();
    if (sketched_) {
      // Shown before the rest is read.
      head.read = 0;
      return;
    }
  }
  const bool running = launch.ok() && launch->running;
  if (running && !ended_) {
    head.live = true;
    const std::string address(
        absl::StripAsciiWhitespace(ReadFile(CoordinatorAddressPath(options_.directory)).value_or("")));
    std::thread asking;
    if (!address.empty()) asking = std::thread([&] { AskJob(address, round); });
    std::vector<ProcessScraper::Scrape> scrapes = scraper_.ScrapeAll(kTimeout);
    if (asking.joinable()) asking.join();
    for (const ProcessScraper::Scrape& scrape : scrapes) {
      ++head.processes;
      if (scrape.status.ok()) {
        samples_.Add(scrape.process, scrape.time, scrape.samples);
      } else {
        head.silent.push_back(absl::StrCat(scrape.process, ": ", scrape.status.message()));
      }
    }
    AskWaits(round);
  }
  ReadFiles(round);
  if (running) return;
  const bool was_live = head.live;
  head.live = false;
  head.missing.clear();
  if (!summary_.has_value()) {
    absl::StatusOr<Summary> summary = ReadSummary(folder.summary());
    if (summary.ok()) summary_ = *std::move(summary);
  }
  head.time_left = -1;
  if (summary_.has_value()) UseSummary(*summary_, head);
  if (launch.ok()) {
    head.state = launch->exit_status == 0 ? "finished" : launch->exit_status == 130 ? "interrupted" : "failed";
    head.error = launch->exit_status.has_value() ? launch->error : "the launch was killed";
  } else {
    head.state = summary_.has_value() ? (summary_->interrupted ? "interrupted" : "finished") : "unfinished";
  }
  ended_ = launch.ok();
  round.complete = head.read >= 1;
  if (was_live) Finish();
}

void RunWatch::ReadFiles(Round& round) {
  const absl::Time until = round.now + kReading;
  bool first, sketched;
  {
    const absl::MutexLock lock(&mutex_);
    sketched = sketched_;
    first = tick_ == 0 && !sketched;
  }
  // Lines that the file had at the start are not news; nor are those that follow a sketch.
  const bool whole = first || sketched;
  bool rest = true;
  do {
    const int64_t before = follower_.unfinished_bytes();
    const Metrics metrics = follower_.Next();
    rest = follower_.unfinished_bytes() != before && follower_.unfinished_bytes() > 0;
    if (metrics.train.empty() && metrics.test.empty()) break;
    const absl::MutexLock lock(&mutex_);
    AddToFile(metrics, file_, round);
    round.reset |= first;
  } while (rest && (absl::Now() < until || first));
  round.head.read = rest && whole ? std::min(0.99, follower_.share()) : 1;
  const absl::MutexLock lock(&mutex_);
  if (sketched_ && !rest) {
    sketched_ = false;
    sketch_ = PanelHistory();
    round.reset = true;
  }
}

void RunWatch::AddToFile(const Metrics& metrics, PanelHistory& history, Round& round) {
  const FileLines& lines = Lines();
  const double start = round.head.started;
  const auto add = [&](const PanelHistory::LineName& name, double seconds, double value) {
    const auto number = static_cast<float>(value);
    history.Line(name)->Add(start + seconds, file_x_, number);
    round.more.Add(name, {start + seconds, file_x_, number, number});
  };
  size_t tests = 0;
  const auto add_tests = [&](double until) {
    for (; tests < metrics.test.size() && metrics.test[tests].seconds <= until; ++tests) {
      const TestMetrics& test = metrics.test[tests];
      add(lines.test_loss, test.seconds, test.loss);
      if (test.accuracy.has_value()) add(lines.accuracy, test.seconds, *test.accuracy);
      if (test.auc.has_value()) add(lines.auc, test.seconds, *test.auc);
    }
  };
  for (const TrainMetrics& line : metrics.train) {
    add_tests(line.seconds);
    const auto x = static_cast<double>(line.examples);
    if (x < file_x_) {
      // The job has returned to a checkpoint, or to its beginning.
      const double begin = static_cast<double>(line.examples - line.over_examples);
      for (const auto& name : {lines.train_loss, lines.test_loss, lines.accuracy, lines.auc, lines.speed}) {
        history.Line(name)->DropAfter(begin);
      }
      round.reset = true;
    }
    file_x_ = x;
    add(lines.train_loss, line.seconds, line.loss);
    add(lines.speed, line.seconds, line.samples_per_second);
    round.head.epoch = line.epoch;
    round.head.step = line.step;
    round.head.examples = line.examples;
    round.head.seconds = line.seconds;
    round.head.examples_per_second = line.samples_per_second;
  }
  add_tests(INFINITY);
}

ServerConnection* RunWatch::Server(const std::string& address) {
  std::unique_ptr<ServerConnection>& server = servers_[address];
  if (server == nullptr) {
    SecurityOptions security = options_.security;
    if (!options_.directory.empty()) {
      // A launch with --insecure has none.
      security = LaunchSecurity::OfReader(options_.directory).value_or(SecurityOptions{.insecure = true});
    }
    const absl::StatusOr<Credentials> credentials = Credentials::Load(security);
    if (credentials.ok()) server = ServerConnection::Open(address, *credentials, /*patient=*/true, "");
  }
  return server.get();
}

void RunWatch::AskJob(const std::string& address, Round& round) {
  ServerConnection* const server = Server(address);
  if (server == nullptr) return;
  absl::StatusOr<v1::GetProgressResponse> job = server->GetProgress(kTimeout);
  progress_.reset();
  if (job.ok()) {
    progress_ = *std::move(job);
    UseProgress(*progress_, round.head);
    // Its own processes say when a run ends.
    if (!options_.directory.empty()) round.head.live = true;
    return;
  }
  // A run's own processes tell more about it.
  if (!options_.directory.empty()) {
    round.head.error = std::string(job.status().message());
    return;
  }
  // Servers that do not host the coordinator do not know the job.
  round.head.live = absl::IsUnimplemented(job.status());
  round.head.state = round.head.live ? "running" : "unreachable";
  if (!round.head.live) round.head.error = std::string(job.status().message());
}

void RunWatch::AskServers(Round& round) {
  RunHead& head = round.head;
  std::vector<std::string> addresses = {options_.address};
  if (progress_.has_value()) {
    for (const auto& member : progress_->members()) {
      const bool serves = member.member().role() == v1::ROLE_SERVER && member.state() == "joined";
      if (serves && member.member().rank() > 0) addresses.push_back(member.address());
    }
  }
  for (const std::string& address : addresses) {
    ServerConnection* const server = Server(address);
    if (server == nullptr) continue;
    const absl::StatusOr<v1::GetStatusResponse> shard = server->GetStatus(kTimeout);
    ++head.processes;
    if (!shard.ok()) {
      head.silent.push_back(std::string(shard.status().message()));
      if (head.state == "unreachable") return;
      continue;
    }
    head.live = true;
    if (head.job.empty()) head.job = shard->job();
    if (head.mode.empty()) head.mode = shard->policy();
    if (!began_) {
      began_ = true;
      head.started = Seconds(
          round.now - absl::Seconds(progress_.has_value() ? progress_->progress().seconds() : shard->uptime_seconds()));
    }
    const double time = Seconds(absl::Now());
    const std::string name = absl::StrCat("server-", shard->shard());
    std::vector<MetricSample> samples = SamplesOf(*shard);
    if (progress_.has_value() && address == options_.address) {
      const std::vector<MetricSample> job = SamplesOf(*progress_);
      samples.insert(samples.end(), job.begin(), job.end());
    }
    samples_.Add(name, time, samples);
    if (shard->longest_wait().seconds() > kLongWait) {
      head.waits.push_back(absl::StrFormat("shard %d, %.1f s: %s", shard->shard(), shard->longest_wait().seconds(),
                                           shard->longest_wait().reason()));
    }
  }
}

void RunWatch::AskWaits(Round& round) {
  if (!progress_.has_value()) return;
  for (const SampleStore::Series* wait : samples_.Of("ballast_longest_wait_seconds", Seconds(round.now))) {
    if (wait->points.back().value <= kLongWait) continue;
    for (const auto& member : progress_->members()) {
      if (member.member().role() != v1::ROLE_SERVER || member.state() != "joined") continue;
      if (absl::StrCat("server-", member.member().rank()) != wait->process) continue;
      ServerConnection* const server = Server(member.address());
      if (server == nullptr) continue;
      const absl::StatusOr<v1::GetStatusResponse> shard = server->GetStatus(kTimeout);
      if (!shard.ok() || shard->longest_wait().seconds() <= kLongWait) continue;
      round.head.waits.push_back(absl::StrFormat("shard %d, %.1f s: %s", shard->shard(),
                                                 shard->longest_wait().seconds(), shard->longest_wait().reason()));
    }
    // One is enough: the others mostly wait for the same.
    return;
  }
}

void RunWatch::Publish(Round& round) {
  const bool from_file = !options_.directory.empty();
  if (round.head.live) {
    round.figures = Evaluate(Panels(), samples_, Seconds(absl::Now()));
    if (from_file) {
      std::erase_if(round.figures, [](const auto& each) { return Lines().Has(each.panel, each.series); });
    }
  }
  bool record = false;
  {
    const absl::MutexLock lock(&mutex_);
    const double time = Seconds(absl::Now());
    if (!round.figures.empty()) {
      history_.Add(time, static_cast<double>(round.head.examples), round.figures);
      figures_ = round.figures;
    }
    head_ = round.head;
    complete_ = round.complete;
    if (round.reset) {
      ++epoch_;
      ticks_.clear();
    }
    ++tick_;
    std::string json = absl::StrCat("{\"tick\":", tick_, ",\"head\":", HeadJson(head_), ",\"last\":");
    AppendFigures(round.figures, json);
    absl::StrAppend(&json, ",\"more\":", sketched_ ? "[]" : round.more.Json(), "}");
    ticks_.push_back(std::move(json));
    if (ticks_.size() > kTicks) ticks_.pop_front();
    record = options_.record && head_.live && round.now - written_ > kRecordInterval && !figures_.empty();
  }
  if (record) Finish();
}

void RunWatch::Finish() {
  if (!options_.record || options_.directory.empty()) return;
  PanelHistory copy;
  {
    const absl::MutexLock lock(&mutex_);
    if (history_.last().empty()) return;
    copy = history_;
  }
  written_ = absl::Now();
  const absl::Status status = copy.Write(RecordPath(options_.directory));
  if (status.ok() || recorded_) return;
  // Once: the directory may be one that only others may write to.
  recorded_ = true;
  const absl::MutexLock lock(&mutex_);
  head_.notices.push_back(absl::StrCat("the page keeps no record: ", status.message()));
}

RunHead RunWatch::head() const {
  const absl::MutexLock lock(&mutex_);
  return head_;
}

bool RunWatch::complete() const {
  const absl::MutexLock lock(&mutex_);
  return complete_;
}

std::vector<SeriesFigures> RunWatch::figures() const {
  const absl::MutexLock lock(&mutex_);
  std::vector<SeriesFigures> figures = (sketched_ ? sketch_ : file_).Newest();
  figures.insert(figures.end(), figures_.begin(), figures_.end());
  std::stable_sort(figures.begin(), figures.end(), [](const SeriesFigures& a, const SeriesFigures& b) {
    return std::pair(a.panel, a.series) < std::pair(b.panel, b.series);
  });
  return figures;
}

std::string RunWatch::HistoryJson() const {
  const absl::MutexLock lock(&mutex_);
  std::string json = absl::StrCat("{\"epoch\":", epoch_, ",\"tick\":", tick_, ",\"head\":", HeadJson(head_), ",");
  std::string lines;
  history_.AppendLines(lines);
  (sketched_ ? sketch_ : file_).AppendLines(lines);
  absl::StrAppend(&json, "\"lines\":[", lines, "],\"last\":");
  AppendFigures(figures_, json);
  absl::StrAppend(&json, "}");
  return json;
}

std::string RunWatch::NewsJson(uint64_t epoch, uint64_t tick) const {
  const absl::MutexLock lock(&mutex_);
  const uint64_t known = tick_ - ticks_.size();
  if (epoch != epoch_ || tick < known || tick > tick_) return "{\"reset\":true}";
  std::string json = absl::StrCat("{\"epoch\":", epoch_, ",\"ticks\":[");
  for (uint64_t i = tick - known; i < ticks_.size(); ++i) {
    absl::StrAppend(&json, i == tick - known ? "" : ",", ticks_[i]);
  }
  absl::StrAppend(&json, "]}");
  return json;
}

}  // namespace ballast
