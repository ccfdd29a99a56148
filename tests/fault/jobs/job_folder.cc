// SPDX-License-Identifier: Apache-2.0
#include "tests/fault/jobs/job_folder.h"

#include <fstream>

#include "absl/strings/str_cat.h"

namespace ballast {
namespace {

absl::Status Write(const std::string& path, const std::string& text) {
  std::ofstream file(path);
  file << text;
  file.close();
  return file.good() ? absl::OkStatus() : absl::UnavailableError(absl::StrCat("cannot write ", path));
}

// Rows of 4 features, and a label of 0, 1 or 2 that follows from them.
std::string Rows(uint32_t rows) {
  std::string text;
  for (uint32_t row = 0; row < rows; ++row) {
    const uint32_t label = row * 7 % 3;
    // Noise around the label's corner.
    const auto feature = [&](uint32_t k) {
      return (label == k ? 2 : 0) + 0.2 * (static_cast<int>((row * (3 + k) + k) % 5) - 2);
    };
    absl::StrAppend(&text, feature(0), ",", feature(1), ",", feature(2), ",", feature(3), ",", label, "\n");
  }
  return text;
}

}  // namespace

absl::StatusOr<std::string> WriteJobFolder(const std::string& folder, const JobPlan& plan) {
  absl::Status status = Write(folder + "/train.csv", Rows(plan.rows));
  status.Update(Write(folder + "/test.csv", Rows(60)));
  const std::string path = folder + "/job.textproto";
  status.Update(Write(path, absl::StrCat("name: \"", plan.name, R"("
data {
  train { csv { path: "train.csv" label_column: -1 } }
  test { csv { path: "test.csv" label_column: -1 } }
}
model {
  layers { dense { units: )",
                                         plan.units,
                                         R"( } }
  layers { relu {} }
  layers { dense { units: 3 } }
  loss { softmax_cross_entropy {} }
}
training { epochs: )",
                                         plan.epochs, " batch_size: ", plan.batch_size, R"( }
optimizer { adam { learning_rate: 0.0001 } }
policy { )",
                                         plan.policy, " }\ndurability { ", plan.durability, " }\n")));
  if (!status.ok()) return status;
  return path;
}

}  // namespace ballast
