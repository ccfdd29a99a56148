// SPDX-License-Identifier: Apache-2.0
#include "tests/fault/jobs/fashion_job.h"

#include <filesystem>

#include "absl/strings/str_cat.h"

namespace ballast {
namespace {

constexpr char kData[] = "/usr/share/datasets/fashion-mnist/";
// Pushes of 200 KB, so that the log of half an hour leaves the disk usable for others.
constexpr uint32_t kUnits = 64, kBatch = 512;

}  // namespace

absl::Status FindFashionData() {
  if (std::filesystem::exists(absl::StrCat(kData, "train-images-idx3-ubyte.gz"))) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat(kData, ": Fashion-MNIST not found; install the package dataset-fashion-mnist"));
}

std::string FashionJobText(const FashionJobPlan& plan) {
  const auto files = [](const std::string& set) {
    return absl::StrCat("{ idx { images: \"", kData, set, "-images-idx3-ubyte.gz\" labels: \"", kData, set,
                        "-labels-idx1-ubyte.gz\" } }");
  };
  return absl::StrCat("name: \"", plan.name, "\"\nseed: 42\ndata {\n  train ", files("train"), "\n  test ",
                      files("t10k"),
                      R"(
  normalization { mean: 72.94 stddev: 90.02 }
}
model {
  layers { dense { units: )",
                      kUnits, R"( } }
  layers { relu {} }
  layers { dropout { rate: 0.2 } }
  layers { dense { units: 10 } }
  loss { softmax_cross_entropy {} }
}
optimizer {
  adam { learning_rate: 0.001 }
  )",
                      plan.schedule, R"(
}
policy { sync { deterministic: true } }
durability { )",
                      plan.durability, " }\ntraining { epochs: ", plan.epochs, " batch_size: ", kBatch, " }\n");
}

}  // namespace ballast
