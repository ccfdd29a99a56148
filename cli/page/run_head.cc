// SPDX-License-Identifier: Apache-2.0
#include "cli/page/run_head.h"

#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "ballast/v1/job.pb.h"
#include "common/text/json_fields.h"

namespace ballast {
namespace {

using Json = nlohmann::ordered_json;

std::string JobStateWord(v1::JobState state) {
  return absl::AsciiStrToLower(absl::StripPrefix(v1::JobState_Name(state), "JOB_STATE_"));
}

const char* RoleWord(v1::Role role) {
  return role == v1::ROLE_SERVER ? "server" : role == v1::ROLE_STANDBY ? "standby" : "worker";
}

// Returns the members that the job waits for or has lost.
std::vector<std::string> MissingOf(const v1::GetProgressResponse& job) {
  std::vector<std::string> missing;
  if (job.progress().state() == v1::JOB_STATE_FINISHED) return missing;
  std::set<std::pair<int, uint32_t>> known;
  std::map<std::pair<int, uint32_t>, std::string> lost;
  for (const auto& member : job.members()) {
    const std::pair<int, uint32_t> key = {member.member().role(), member.member().rank()};
    if (member.state() == "joined" || member.state() == "left") {
      known.insert(key);
      lost.erase(key);
    } else {
      lost[key] = absl::StrCat(RoleWord(member.member().role()), " ", member.member().rank(), ": ", member.state(),
                               member.reason().empty() ? "" : ", ", member.reason());
    }
  }
  const std::pair<v1::Role, uint32_t> wanted[] = {{v1::ROLE_SERVER, job.servers()}, {v1::ROLE_WORKER, job.workers()}};
  for (const auto& [role, count] : wanted) {
    for (uint32_t rank = 0; rank < count; ++rank) {
      const auto found = lost.find({role, rank});
      if (known.contains({role, rank})) continue;
      missing.push_back(found == lost.end() ? absl::StrCat(RoleWord(role), " ", rank, ": has not joined yet")
                                            : found->second);
    }
  }
  return missing;
}

}  // namespace

void UseProgress(const v1::GetProgressResponse& job, RunHead& head) {
  const v1::JobProgress& progress = job.progress();
  head.live = progress.state() != v1::JOB_STATE_FINISHED && progress.state() != v1::JOB_STATE_FAILED;
  head.state = JobStateWord(progress.state());
  if (progress.state() == v1::JOB_STATE_FAILED) head.error = progress.reason();
  if (!progress.job().empty()) head.job = progress.job();
  if (head.mode.empty()) head.mode = progress.mode();
  head.epoch = progress.epoch();
  if (progress.epochs() > 0) head.epochs = progress.epochs();
  head.step = static_cast<int64_t>(progress.step());
  head.examples = static_cast<int64_t>(progress.examples());
  head.total_examples = static_cast<int64_t>(progress.total_examples());
  head.examples_per_second = progress.samples_per_second();
  head.seconds = progress.seconds();
  const double left = static_cast<double>(head.total_examples - head.examples);
  head.time_left =
      head.examples_per_second > 0 && left >= 0 && head.total_examples > 0 ? left / head.examples_per_second : -1;
  head.workers_lost = progress.workers_lost();
  head.servers_lost = progress.servers_lost();
  head.missing = MissingOf(job);
  head.notices.assign(progress.notices().begin(), progress.notices().end());
}

void UseSummary(const Summary& summary, RunHead& head) {
  head.job = summary.job;
  if (head.mode.empty()) head.mode = summary.mode;
  head.epoch = summary.epochs;
  head.step = summary.steps;
  head.examples = summary.examples;
  head.seconds = summary.seconds;
  head.examples_per_second = summary.samples_per_second;
}

std::string HeadJson(const RunHead& head) {
  return JsonLine({{"name", head.name},
                   {"job", head.job},
                   {"mode", head.mode},
                   {"state", head.state},
                   {"error", head.error},
                   {"started", head.started},
                   {"updated", head.updated},
                   {"live", head.live},
                   {"read", head.read},
                   {"epoch", head.epoch},
                   {"epochs", head.epochs},
                   {"step", head.step},
                   {"examples", head.examples},
                   {"total_examples", head.total_examples},
                   {"examples_per_second", head.examples_per_second},
                   {"seconds", head.seconds},
                   {"time_left", head.time_left < 0 ? Json() : Json(head.time_left)},
                   {"workers_lost", head.workers_lost},
                   {"servers_lost", head.servers_lost},
                   {"missing", head.missing},
                   {"notices", head.notices},
                   {"waits", head.waits},
                   {"processes", head.processes},
                   {"silent", head.silent}});
}

}  // namespace ballast
