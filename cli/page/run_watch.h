// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "ballast/v1/coordinator_service.pb.h"
#include "ballast/v1/job.pb.h"
#include "cli/command/server_connection.h"
#include "cli/page/metric_samples.h"
#include "cli/page/metrics_follower.h"
#include "cli/page/panel_history.h"
#include "cli/page/process_scraper.h"
#include "cli/page/run_head.h"
#include "common/run/launch_record.h"
#include "common/run/summary.h"
#include "common/security/security_options.h"

namespace ballast {

// Follows one run, from its directory, or one job, from the address of a server: asks all its processes once a round
// and keeps what the panels show. Thread safety: Step is called by one thread; all else may be called from any thread.
class RunWatch {
 public:
  struct Options {
    // The run's directory; empty: only an address is known.
    std::string directory;
    std::string address;
    // Security settings for connections to an address.
    SecurityOptions security;
    // Keeps what was shown in the run's directory, in page_history.json, so that it can be shown after the run.
    bool record = false;
  };
  explicit RunWatch(Options options);
  ~RunWatch();

  // Makes one round. Blocks for at most 3 s.
  void Step();
  // Writes the record. Call after the last Step.
  void Finish();

  RunHead head() const;
  // The run has ended, and all of its files were read.
  bool complete() const;
  // The figures of the last round, in the order of the panels.
  std::vector<SeriesFigures> figures() const;

  // Returns {"epoch", "tick", "head", "lines", "last"}: everything.
  std::string HistoryJson() const;
  // Returns {"epoch", "ticks": [{"tick", "head", "last", "more"}...]}: what rounds after `tick` have added. {"reset":
  // true} if that needs all of HistoryJson.
  std::string NewsJson(uint64_t epoch, uint64_t tick) const;

 private:
  struct Round;

  void StepDirectory(Round& round);
  void ReadFiles(Round& round);
  void AddToFile(const Metrics& metrics, PanelHistory& history, Round& round);
  void AskJob(const std::string& address, Round& round);
  void AskServers(Round& round);
  void AskWaits(Round& round);
  void Publish(Round& round);
  ServerConnection* Server(const std::string& address);

  const Options options_;
  const absl::flat_hash_set<std::string> wanted_;
  ProcessScraper scraper_;
  MetricsFollower follower_;
  SampleStore samples_;
  std::map<std::string, std::unique_ptr<ServerConnection>> servers_;
  std::optional<v1::GetProgressResponse> progress_;
  std::optional<Summary> summary_;
  v1::Job job_;
  bool began_ = false;
  bool ended_ = false;
  bool recorded_ = false;
  // The job's examples at the newest line of metrics.jsonl.
  double file_x_ = 0;
  absl::Time written_ = absl::InfinitePast();

  mutable absl::Mutex mutex_;
  RunHead head_ ABSL_GUARDED_BY(mutex_);
  bool complete_ ABSL_GUARDED_BY(mutex_) = false;
  // Lines of scraped figures; of metrics.jsonl; and a sketch of that until it is read.
  PanelHistory history_ ABSL_GUARDED_BY(mutex_);
  PanelHistory file_ ABSL_GUARDED_BY(mutex_);
  PanelHistory sketch_ ABSL_GUARDED_BY(mutex_);
  bool sketched_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<SeriesFigures> figures_ ABSL_GUARDED_BY(mutex_);
  // Changes when earlier points change.
  uint64_t epoch_ ABSL_GUARDED_BY(mutex_);
  uint64_t tick_ ABSL_GUARDED_BY(mutex_) = 0;
  // JSON of the newest rounds; the last one is that of tick_.
  std::deque<std::string> ticks_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ballast
