// SPDX-License-Identifier: Apache-2.0
#include "cli/launch/chaos.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace ballast {
namespace {

constexpr absl::Duration kMinInterval = absl::Milliseconds(100);
constexpr absl::Duration kMaxInterval = absl::Hours(24);

absl::Status Refuse(absl::string_view part, absl::string_view want) {
  return absl::InvalidArgumentError(absl::StrCat("got \"", part, "\", want ", want));
}

}  // namespace

absl::StatusOr<ChaosPlan> ParseChaos(absl::string_view text) {
  ChaosPlan plan;
  std::set<std::string> seen;
  const std::vector<std::string> parts = absl::StrSplit(text, ',');
  for (const std::string& part : parts) {
    const std::pair<std::string, std::string> pair = absl::StrSplit(part, absl::MaxSplits('=', 1));
    const auto& [key, value] = pair;
    if (!seen.insert(key).second) return Refuse(part, absl::StrCat(key, " once"));
    if (key == "seed") {
      if (!absl::SimpleAtoi(value, &plan.seed)) return Refuse(part, "a 32-bit number");
      continue;
    }
    if (key != "kill-server" && key != "kill-worker") {
      return Refuse(part, "kill-server=TIME, kill-worker=TIME or seed=NUMBER");
    }
    absl::Duration& interval = key == "kill-server" ? plan.kill_server : plan.kill_worker;
    if (!absl::ParseDuration(value, &interval) || interval < kMinInterval || interval > kMaxInterval) {
      return Refuse(part, "a duration from 100ms to 24h, such as 20s or 1m30s");
    }
  }
  if (std::min(plan.kill_server, plan.kill_worker) == absl::InfiniteDuration()) {
    return Refuse(text, "kill-server=TIME or kill-worker=TIME");
  }
  return plan;
}

absl::Time Chaos::next() const { return std::min(next_server_, next_worker_); }

std::optional<int> Chaos::Target(bool server, const std::vector<int>& candidates, absl::Time now) {
  absl::Time& next = server ? next_server_ : next_worker_;
  if (now < next) return std::nullopt;
  next = now + (server ? plan_.kill_server : plan_.kill_worker);
  if (candidates.empty()) return std::nullopt;
  return candidates[std::uniform_int_distribution<size_t>(0, candidates.size() - 1)(random_)];
}

}  // namespace ballast
