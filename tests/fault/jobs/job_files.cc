// SPDX-License-Identifier: Apache-2.0
#include "tests/fault/jobs/job_files.h"

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/substitute.h"

namespace ballast {
namespace {

constexpr char kData[] = "/usr/share/datasets/fashion-mnist/";
// Pushes of 200 KB, so that the log of half an hour leaves the disk usable for others.
constexpr uint32_t kUnits = 64, kBatch = 512;

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
  constexpr char kJob[] = R"(name: "$0"
data {
  train { csv { path: "train.csv" label_column: -1 } }
  test { csv { path: "test.csv" label_column: -1 } }
}
model {
  layers { dense { units: $1 } }
  layers { relu {} }
  layers { dense { units: 3 } }
  loss { softmax_cross_entropy {} }
}
training { epochs: $2 batch_size: $3 }
optimizer { adam { learning_rate: 0.0001 } }
policy { $4 }
durability { $5 }
)";
  absl::Status status = Write(folder + "/train.csv", Rows(plan.rows));
  status.Update(Write(folder + "/test.csv", Rows(60)));
  const std::string path = folder + "/job.textproto";
  status.Update(Write(
      path, absl::Substitute(kJob, plan.name, plan.units, plan.epochs, plan.batch_size, plan.policy, plan.durability)));
  if (!status.ok()) return status;
  return path;
}

absl::Status FindFashionData() {
  if (std::filesystem::exists(absl::StrCat(kData, "train-images-idx3-ubyte.gz"))) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat(kData, ": Fashion-MNIST not found; install the package dataset-fashion-mnist"));
}

std::string FashionJobText(const FashionJobPlan& plan) {
  constexpr char kJob[] = R"(name: "$0"
seed: 42
data {
  train { idx { images: "$1train-images-idx3-ubyte.gz" labels: "$1train-labels-idx1-ubyte.gz" } }
  test { idx { images: "$1t10k-images-idx3-ubyte.gz" labels: "$1t10k-labels-idx1-ubyte.gz" } }
  normalization { mean: 72.94 stddev: 90.02 }
}
model {
  layers { dense { units: $2 } }
  layers { relu {} }
  layers { dropout { rate: 0.2 } }
  layers { dense { units: 10 } }
  loss { softmax_cross_entropy {} }
}
optimizer {
  adam { learning_rate: 0.001 }
  $3
}
policy { sync { deterministic: true } }
durability { $4 }
training { epochs: $5 batch_size: $6 }
)";
  return absl::Substitute(kJob, plan.name, kData, kUnits, plan.schedule, plan.durability, plan.epochs, kBatch);
}

}  // namespace ballast
