// SPDX-License-Identifier: Apache-2.0
#include "cli/launch/placement.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/run/run_folder.h"
#include "common/storage/file.h"

namespace ballast {
namespace {

// Adds those of the words that are files in the run directory, relative to it.
void AddFiles(const std::string& run_dir, const std::vector<std::string>& words, std::vector<std::string>& files) {
  for (absl::string_view word : words) {
    if (!absl::ConsumePrefix(&word, run_dir) || !absl::ConsumePrefix(&word, "/")) continue;
    if (std::find(files.begin(), files.end(), word) == files.end()) files.emplace_back(word);
  }
}

bool HasServer(const LaunchPlan& plan, int host) {
  for (int rank = 0; rank < plan.servers; ++rank) {
    if (HostOfServer(plan, rank, /*standby=*/false) == host) return true;
    const bool with_standby = plan.durability.mode() == v1::Durability::STANDBY;
    if (with_standby && HostOfServer(plan, rank, /*standby=*/true) == host) return true;
  }
  return false;
}

}  // namespace

bool HasOtherHosts(const LaunchPlan& plan) {
  return std::any_of(plan.hosts.begin(), plan.hosts.end(), [](const JobHost& host) { return !host.local; });
}

int HostOfWorker(const LaunchPlan& plan, int rank) {
  int host = 0;
  for (; host + 1 < static_cast<int>(plan.hosts.size()) && rank >= plan.hosts[host].workers; ++host) {
    rank -= plan.hosts[host].workers;
  }
  return host;
}

int HostOfServer(const LaunchPlan& plan, int rank, bool standby) {
  const int hosts = std::max(1, static_cast<int>(plan.hosts.size()));
  return (rank + (standby ? 1 : 0)) % hosts;
}

std::vector<RemoteHost::Options> PlanHosts(const LaunchPlan& plan) {
  if (plan.hosts.empty()) return {{.host = {.login = "localhost", .address = "localhost", .local = true}}};
  const RunFolder folder(plan.run_dir);
  std::vector<RemoteHost::Options> all;
  for (int number = 0; number < static_cast<int>(plan.hosts.size()); ++number) {
    const JobHost& host = plan.hosts[number];
    RemoteHost::Options options{.host = host, .shell = plan.shell, .run_dir = plan.run_dir};
    // A user's program needs no worker of ours.
    options.setup.set_workers(host.workers > 0 && plan.program.empty());
    options.setup.set_servers(HasServer(plan, number));
    options.setup.set_probe(folder.job());
    options.setup.set_probe_content(ReadFile(folder.job()).value_or(""));
    if (options.setup.servers()) {
      AddFiles(plan.run_dir, plan.server_security, options.files);
      if (!plan.resume.empty()) options.setup.add_inputs(plan.resume);
    }
    if (host.workers > 0) {
      if (plan.program.empty()) AddFiles(plan.run_dir, {plan.job_file}, options.files);
      AddFiles(plan.run_dir, plan.worker_security, options.files);
      if (plan.program.empty()) AddFiles(plan.run_dir, plan.worker_pages, options.files);
      for (const std::string& input : plan.inputs) options.setup.add_inputs(input);
      if (HostOfWorker(plan, 0) == number && plan.program.empty())
        AddFiles(plan.run_dir, {folder.metrics()}, options.results);
    }
    all.push_back(std::move(options));
  }
  return all;
}

std::vector<std::string> AddressFlags(const LaunchPlan& plan, int host) {
  if (!HasOtherHosts(plan)) return {"--listen", "127.0.0.1:0"};
  const std::string& address = plan.hosts[host].address;
  return {"--listen", absl::StrContains(address, ":") ? "[::]:0" : "0.0.0.0:0", "--advertise", WithPort(address, "0")};
}

std::vector<std::string> WorkerFlags(const LaunchPlan& plan, int rank, int cores, const std::string& coordinator) {
  const int there = plan.hosts.empty() ? plan.workers : plan.hosts[HostOfWorker(plan, rank)].workers;
  const int threads = plan.threads > 0 ? plan.threads : std::max(1, cores / there);
  std::vector<std::string> flags = {"--rank",    absl::StrCat(rank), "--job",     plan.job_file, "--coordinator",
                                    coordinator, "--device",         plan.device, "--threads",   absl::StrCat(threads)};
  flags.insert(flags.end(), {"--gather_timeout", absl::StrCat(plan.gather_seconds)});
  if (!plan.gpus.empty()) flags.insert(flags.end(), {"--gpus", plan.gpus});
  flags.insert(flags.end(), plan.worker_security.begin(), plan.worker_security.end());
  if (!plan.trace_steps.empty()) {
    flags.insert(flags.end(), {"--trace", WorkerTracePath(plan.run_dir, rank), "--trace_steps", plan.trace_steps});
    flags.insert(flags.end(), {"--traceparent", plan.traceparent});
  }
  if (rank == 0) flags.insert(flags.end(), {"--run_dir", plan.run_dir});
  return flags;
}

absl::string_view PortOf(absl::string_view address) { return address.substr(address.rfind(':') + 1); }

}  // namespace ballast
