// SPDX-License-Identifier: Apache-2.0
#include "cli/data/data_command.h"

#include <limits>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "cli/data/click_files.h"
#include "common/program/arguments.h"

namespace ballast {
namespace {

constexpr char kUsage[] =
    "usage: ballast data ctr DIR [flags]\n\n"
    "Writes planted click data to DIR, a new or empty directory: train.tsv, test.tsv with the last rows in time, and\n"
    "truth.json. Lines have the format of Criteo's: label, 13 numbers, 26 categories of up to 10 million ids each.\n"
    "The labels are drawn from known probabilities, so the best AUC that any model can reach is known: bayes_auc, of\n"
    "the true logits. The same flags write the same rows.\n\n";

constexpr absl::Duration kProgressPeriod = absl::Seconds(1);

const std::vector<FlagSpec>& Flags() {
  static const auto* flags = new std::vector<FlagSpec>{
      {"rows", "N", "Rows of train.tsv, 1 to 2000000000 (1000000)."},
      {"test_rows", "N", "Rows of test.tsv, 1 to 100000000 (200000)."},
      {"ids", "N", "At most so many ids of a category at a time, 2 to 10131227 (10131227)."},
      {"days", "N", "Days of equally many rows, 1 to 1000 (7)."},
      {"drift", "P", "Share of the ids that are new each day, 0 to 1 (0.02)."},
      {"click_rate", "P", "Share of clicks, 0.001 to 0.999 (0.256)."},
      {"deviation", "X", "Standard deviation of the true logit, 0.1 to 5 (1.4, for a Bayes AUC near 0.805)."},
      {"seed", "N", "Another seed plants another truth, 0 to 2147483647 (1)."},
      {"json", "", "Print one JSON object."},
  };
  return *flags;
}

struct Request {
  std::string directory;
  ClickModelOptions options;
  uint64_t test_rows = 0;
};

absl::StatusOr<Request> ReadRequest(const Arguments& arguments) {
  const std::vector<std::string>& words = arguments.positional();
  if (words.empty() || words[0] != "ctr") {
    return absl::InvalidArgumentError(
        absl::StrFormat("data: got %s, want the kind of data: ctr; see --help", words.empty() ? "nothing" : words[0]));
  }
  if (words.size() != 2) {
    return absl::InvalidArgumentError(
        absl::StrFormat("data ctr: got %d directories, want exactly one; see --help", words.size() - 1));
  }
  const auto rows = arguments.GetInt("rows", 1'000'000, 1, 2'000'000'000);
  const auto test_rows = arguments.GetInt("test_rows", 200'000, 1, 100'000'000);
  const auto ids = arguments.GetInt("ids", 10'131'227, 2, 10'131'227);
  const auto days = arguments.GetInt("days", 7, 1, 1000);
  const auto drift = arguments.GetNumber("drift", 0.02, 0, 1);
  const auto click_rate = arguments.GetNumber("click_rate", 0.256, 0.001, 0.999);
  const auto deviation = arguments.GetNumber("deviation", 1.4, 0.1, 5);
  const auto seed = arguments.GetInt("seed", 1, 0, std::numeric_limits<int>::max());
  for (const absl::Status& status : {rows.status(), test_rows.status(), ids.status(), days.status(), drift.status(),
                                     click_rate.status(), deviation.status(), seed.status()}) {
    if (!status.ok()) return status;
  }
  Request request;
  request.directory = words[1];
  request.test_rows = *test_rows;
  request.options = {.seed = static_cast<uint64_t>(*seed),
                     .rows = static_cast<uint64_t>(*rows) + request.test_rows,
                     .days = *days,
                     .drift = *drift,
                     .most_ids = static_cast<uint64_t>(*ids),
                     .click_rate = *click_rate,
                     .deviation = *deviation};
  return request;
}

}  // namespace

const std::vector<FlagSpec>& DataFlags() { return Flags(); }

CommandResult DataCommand(absl::Span<const std::string> args, std::ostream& out, std::ostream& err) {
  const absl::StatusOr<Arguments> arguments = Arguments::Parse(Flags(), args);
  if (!arguments.ok()) return Fail(err, arguments.status(), kExitBadInput);
  if (arguments->help()) {
    out << kUsage << DescribeFlags(Flags());
    return kExitSuccess;
  }
  const absl::StatusOr<Request> request = ReadRequest(*arguments);
  if (!request.ok()) return Fail(err, request.status(), kExitBadInput);
  absl::Time last = absl::Now();
  const auto progress = [&](uint64_t rows) {
    if (absl::Now() - last < kProgressPeriod) return;
    last = absl::Now();
    err << absl::StrFormat("%d of %d rows (%d%%)\n", rows, request->options.rows, rows * 100 / request->options.rows)
        << std::flush;
  };
  const absl::StatusOr<ClickFiles> files =
      WriteClickFiles(request->options, request->test_rows, request->directory, progress);
  if (!files.ok()) return Fail(err, files.status(), kExitFailure);
  if (arguments->Has("json")) {
    out << ClickFilesJson(request->options, *files) << std::endl;
    return kExitSuccess;
  }
  out << absl::StrFormat("%s: %d rows\n%s: %d rows, %.1f%% clicks, Bayes AUC %.4f, log loss %.4f\n", files->train,
                         files->train_rows, files->test, files->test_rows, 100 * files->click_rate, files->bayes_auc,
                         files->bayes_log_loss);
  return kExitSuccess;
}

}  // namespace ballast
