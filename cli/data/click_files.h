// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "common/clicks/click_model.h"

namespace ballast {

// Files of planted click data, and what they hold.
struct ClickFiles {
  std::string train, test, truth;
  uint64_t train_rows = 0, test_rows = 0;
  // Results of the true logits on the test rows: no model can be better, except by chance.
  double bayes_auc = 0, bayes_log_loss = 0;
  // Share of clicks in the test rows.
  double click_rate = 0;
};

// Writes train.tsv, test.tsv with the last `test_rows` rows, and truth.json to a new or empty directory. `progress` is
// told the number of rows written, every 10,000.
absl::StatusOr<ClickFiles> WriteClickFiles(const ClickModelOptions& options, uint64_t test_rows,
                                           const std::string& directory, absl::FunctionRef<void(uint64_t)> progress);

// The options and the result as one JSON object in one line.
std::string ClickFilesJson(const ClickModelOptions& options, const ClickFiles& files);

}  // namespace ballast
