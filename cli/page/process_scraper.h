// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "cli/page/http_client.h"
#include "cli/page/metric_samples.h"

namespace ballast {

// Reads the metrics of the processes of a running launch: of those whose address stands in RUN/logs/NAME.http, with the
// certificates and tokens of RUN/security. Thread safety: none.
class ProcessScraper {
 public:
  ProcessScraper(std::string run_dir, std::function<bool(absl::string_view name)> wanted)
      : run_dir_(std::move(run_dir)), wanted_(std::move(wanted)) {}

  struct Scrape {
    // "worker-3".
    std::string process;
    absl::Status status;
    double time = 0;
    std::vector<MetricSample> samples;
  };
  // Asks all processes, several at a time, and waits at most `timeout` for each. One that did not answer in time is
  // asked again only after 5 s.
  std::vector<Scrape> ScrapeAll(absl::Duration timeout);

 private:
  struct Process {
    std::string address;
    // Null if it could not be made.
    std::unique_ptr<HttpClient> client;
    absl::Status status;
    absl::Time next = absl::InfinitePast();
  };

  // Follows the files: processes that started, or started again elsewhere.
  void FindProcesses();
  void Scrape1(Process& process, absl::Duration timeout, Scrape& scrape) const;

  const std::string run_dir_;
  const std::function<bool(absl::string_view name)> wanted_;
  std::map<std::string, Process> processes_;
};

}  // namespace ballast
