// SPDX-License-Identifier: Apache-2.0
// Files of a run directory: metrics.jsonl, every line of which is read or counted, and summary.json, which survives
// writing and reading.
#include "common/run/metrics.h"
#include "common/run/summary.h"
#include "tests/fuzz/fuzz_target.h"

namespace ballast {

std::vector<std::string> FuzzSeeds() {
  Summary summary;
  summary.job = "blobs";
  summary.mode = "bounded";
  summary.steps_ahead = 4;
  summary.staleness = {.buckets = {1, 2, 3}, .mean = 1.5, .max = 6};
  summary.test_loss = 0.25;
  summary.test_auc = 0.75;
  summary.calibration = 1.5;
  summary.rows = 1000;
  return {R"({"kind":"train","epoch":1,"step":10,"examples":80,"seconds":0.5,"loss":1.25,"learning_rate":0.1,)"
          R"("samples_per_second":160,"staleness":0,"wait_share":0.1,"max_staleness":0,"bytes_sent":10,)"
          R"("bytes_received":20,"dropped":0,"skipped_steps":0,"loss_scale":null})"
          "\n"
          R"({"kind":"test","epoch":1,"step":10,"seconds":0.6,"loss":null,"accuracy":0.5})"
          "\n"
          R"({"kind":"test","epoch":1,"step":10,"seconds":0.6,"loss":0.5,"auc":0.75,"log_loss":0.5,"calibration":1.5})"
          "\n"
          R"({"kind":"epoch","epoch":1,"step":10,"examples":80,"seconds":0.6,"epoch_examples":80,"train_loss":1.25,)"
          R"("samples_per_second":133})"
          "\n"
          R"({"kind":"other","x":[1,{"y":2}]})"
          "\n{\"kind\":\"tra",
          SummaryToJson(summary), SummaryToJson(Summary()), "[[[[[[[[{}]]]]]]]]\n\n\n"};
}

void FuzzOne(FuzzInput input) {
  const absl::string_view text = input.Rest();
  const Metrics metrics = ParseMetrics(text);
  const size_t lines = std::count(text.begin(), text.end(), '\n') + 1;
  Require(metrics.train.size() + metrics.test.size() + metrics.epochs.size() + metrics.malformed_lines.size() <= lines,
          "a line is read at most once");
  const absl::StatusOr<Summary> summary = SummaryFromJson(text);
  if (!summary.ok()) return;
  const std::string written = SummaryToJson(*summary);
  const absl::StatusOr<Summary> again = SummaryFromJson(written);
  Require(again.ok(), "a written summary can be read");
  Require(SummaryToJson(*again) == written, "a written summary reads back unchanged");
}

}  // namespace ballast
