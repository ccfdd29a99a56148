// SPDX-License-Identifier: Apache-2.0
#include "cli/page/page_command.h"

#include <atomic>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "cli/page/page_server.h"
#include "cli/page/run_watch.h"
#include "cli/page/watched_runs.h"
#include "common/program/arguments.h"
#include "common/program/signal_watch.h"
#include "common/text/json_fields.h"

namespace ballast {
namespace {

constexpr absl::Duration kRound = absl::Seconds(1);

constexpr char kUsage[] =
    "usage: ballast page [RUN_DIR|ADDRESS]... [flags]\n\n"
    "Serves a page for the browser that shows a run live: twenty panels from the loss to the memory of each shard. Of\n"
    "the newest run under runs/ if none is named; several are overlaid, each in its color. A run that has ended shows\n"
    "what its files and the page's record of it hold. ADDRESS (host:port) names a ballast_server instead. The page is\n"
    "on this machine only, and only its whole address with the token opens it. Ctrl-C ends it.\n\n";

const std::vector<FlagSpec>& Flags() {
  static const auto* flags = new std::vector<FlagSpec>([] {
    std::vector<FlagSpec> all = {{"port", "N", "Port on 127.0.0.1; 0 takes a free one (default: 0)."},
                                 {"json", "", "Print the page's address as one JSON object."},
                                 {"end-with-run", "", "End once all runs have ended."},
                                 {"run", "DIR", "Run directory of the launch that the server at ADDRESS belongs to."}};
    all.insert(all.end(), SecurityFlags().begin(), SecurityFlags().end());
    return all;
  }());
  return *flags;
}

// Follows runs, each in a thread of its own, until the destructor.
class Watching {
 public:
  explicit Watching(const std::vector<std::unique_ptr<RunWatch>>& runs) {
    for (const std::unique_ptr<RunWatch>& run : runs) {
      threads_.emplace_back([this, &run] {
        while (true) {
          const absl::Time next = absl::Now() + kRound;
          run->Step();
          // The rest of a long file follows at once.
          const bool reading = run->head().read < 1;
          if (end_.WaitForNotificationWithTimeout(reading ? absl::ZeroDuration() : next - absl::Now())) break;
        }
        run->Finish();
      });
    }
  }
  ~Watching() {
    end_.Notify();
    for (std::thread& thread : threads_) thread.join();
  }

 private:
  absl::Notification end_;
  std::vector<std::thread> threads_;
};

}  // namespace

const std::vector<FlagSpec>& PageFlags() { return Flags(); }

CommandResult PageCommand(absl::Span<const std::string> args, std::ostream& out, std::ostream& err) {
  const absl::StatusOr<Arguments> arguments = Arguments::Parse(Flags(), args);
  if (!arguments.ok()) return Fail(err, arguments.status(), kExitBadInput);
  if (arguments->help()) {
    out << kUsage << DescribeFlags(Flags());
    return kExitSuccess;
  }
  const absl::StatusOr<int> port = arguments->GetInt("port", 0, 0, 65535);
  if (!port.ok()) return Fail(err, port.status(), kExitBadInput);
  const auto runs = FindRuns("page", *arguments, /*record=*/true);
  if (!runs.ok()) return Fail(err, runs.status(), ExitStatusOf(runs.status()));
  std::vector<const RunWatch*> shown;
  for (const std::unique_ptr<RunWatch>& run : *runs) shown.push_back(run.get());
  const auto page = PageServer::Start(shown, *port);
  if (!page.ok()) return Fail(err, page.status(), kExitBadInput);
  absl::Notification stop;
  std::atomic<bool> stopped = false;
  const SignalWatch signals([&](int, int) {
    if (!stopped.exchange(true)) stop.Notify();
  });
  const Watching watching(*runs);
  if (arguments->Has("json")) {
    out << JsonLine({{"url", (*page)->url()}}) << std::endl;
  } else {
    out << (*page)->url() << std::endl;
    err << "the page ends with " << (arguments->Has("end-with-run") ? "the run" : "Ctrl-C") << std::endl;
  }
  const bool ends = arguments->Has("end-with-run");
  while (!stop.WaitForNotificationWithTimeout(kRound)) {
    bool all = true;
    for (const RunWatch* run : shown) all = all && run->complete();
    if (ends && all) break;
  }
  return kExitSuccess;
}

}  // namespace ballast
