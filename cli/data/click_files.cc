// SPDX-License-Identifier: Apache-2.0
#include "cli/data/click_files.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/clicks/click_line.h"
#include "common/metrics/binary_scores.h"
#include "common/storage/file.h"
#include "common/storage/output_file.h"

namespace ballast {
namespace {

constexpr uint64_t kRowsPerReport = 10'000;
constexpr size_t kBlockBytes = 1 << 20;

absl::Status MakeEmptyDirectory(const std::string& directory) {
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  const bool empty = !error && std::filesystem::is_empty(directory, error);
  if (error) return absl::FailedPreconditionError(absl::StrCat(directory, ": ", error.message()));
  if (empty) return absl::OkStatus();
  return absl::AlreadyExistsError(absl::StrCat(directory, ": has files already; want a new or an empty directory"));
}

// Writes rows [begin, end); adds their scores to `scores` unless it is null.
absl::Status WriteRows(const ClickModel& model, uint64_t begin, uint64_t end, const std::string& path,
                       absl::FunctionRef<void(uint64_t)> progress, std::vector<BinaryScore>* scores) {
  absl::StatusOr<OutputFile> file = OutputFile::Open(path);
  if (!file.ok()) return file.status();
  std::string text;
  for (uint64_t number = begin; number < end; ++number) {
    const ClickRow row = model.Row(number);
    AppendClickLine(row, text);
    if (scores != nullptr) scores->push_back({row.logit, row.clicked});
    if (number % kRowsPerReport == 0) progress(number);
    if (text.size() < kBlockBytes && number + 1 < end) continue;
    if (absl::Status status = file->Write(text); !status.ok()) return status;
    text.clear();
  }
  return file->Finish();
}

}  // namespace

absl::StatusOr<ClickFiles> WriteClickFiles(const ClickModelOptions& options, uint64_t test_rows,
                                           const std::string& directory, absl::FunctionRef<void(uint64_t)> progress) {
  if (absl::Status status = MakeEmptyDirectory(directory); !status.ok()) return status;
  const ClickModel model(options);
  ClickFiles files;
  files.train = absl::StrCat(directory, "/train.tsv");
  files.test = absl::StrCat(directory, "/test.tsv");
  files.truth = absl::StrCat(directory, "/truth.json");
  files.train_rows = options.rows - test_rows;
  files.test_rows = test_rows;
  std::vector<BinaryScore> scores;
  scores.reserve(test_rows);
  if (absl::Status status = WriteRows(model, 0, files.train_rows, files.train, progress, nullptr); !status.ok()) {
    return status;
  }
  if (absl::Status status = WriteRows(model, files.train_rows, options.rows, files.test, progress, &scores);
      !status.ok()) {
    return status;
  }
  files.bayes_auc = AreaUnderCurve(scores);
  files.bayes_log_loss = LogLoss(scores);
  const auto clicks = std::count_if(scores.begin(), scores.end(), [](const BinaryScore& score) { return score.label; });
  files.click_rate = static_cast<double>(clicks) / static_cast<double>(test_rows);
  const std::string truth = absl::StrCat(ClickFilesJson(options, files), "\n");
  if (absl::Status status = WriteFileAtomically(files.truth, {truth}); !status.ok()) return status;
  return files;
}

std::string ClickFilesJson(const ClickModelOptions& options, const ClickFiles& files) {
  return nlohmann::ordered_json{{"train", files.train},
                                {"test", files.test},
                                {"train_rows", files.train_rows},
                                {"test_rows", files.test_rows},
                                {"seed", options.seed},
                                {"days", options.days},
                                {"drift", options.drift},
                                {"most_ids", options.most_ids},
                                {"deviation", options.deviation},
                                {"bayes_auc", files.bayes_auc},
                                {"bayes_log_loss", files.bayes_log_loss},
                                {"click_rate", files.click_rate}}
      .dump();
}

}  // namespace ballast
