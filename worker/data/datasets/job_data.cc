// SPDX-License-Identifier: Apache-2.0
#include "worker/data/datasets/job_data.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/data/permutation.h"

namespace ballast {
namespace {

// The examples of a data set that are held out, or all others, in file order. Thread safety: thread-safe.
class PartOfDataset : public Dataset {
 public:
  // Both parts share the data set and the indices, and either may outlive the other.
  PartOfDataset(std::shared_ptr<const Dataset> whole, std::shared_ptr<const std::vector<uint64_t>> held_out, bool test)
      : whole_(std::move(whole)), held_out_(std::move(held_out)), test_(test) {}

  uint64_t size() const override { return test_ ? held_out_->size() : whole_->size() - held_out_->size(); }
  uint64_t features() const override { return whole_->features(); }
  absl::Span<const std::string> id_fields() const override { return whole_->id_fields(); }
  const TableSchema* schema() const override { return whole_->schema(); }
  bool has_labels() const override { return whole_->has_labels(); }
  std::vector<PlacedLabel> ExtremeLabels() const override { return whole_->ExtremeLabels(); }

  absl::Status Read(absl::Span<const uint64_t> indices, absl::Span<float> features, absl::Span<float> labels,
                    IdBags* ids) const override {
    if (absl::Status status = CheckRead(*this, indices, features, labels); !status.ok()) return status;
    std::vector<uint64_t> in_whole(indices.begin(), indices.end());
    for (uint64_t& index : in_whole) index = InWhole(index);
    return whole_->Read(in_whole, features, labels, ids);
  }

 private:
  uint64_t InWhole(uint64_t index) const {
    const std::vector<uint64_t>& held_out = *held_out_;
    if (test_) return held_out[index];
    // Finds the number of held-out examples before the example: those that have at most `index` others before them.
    size_t low = 0, high = held_out.size();
    while (low < high) {
      const size_t middle = low + (high - low) / 2;
      if (held_out[middle] - middle <= index) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return index + low;
  }

  const std::shared_ptr<const Dataset> whole_;
  const std::shared_ptr<const std::vector<uint64_t>> held_out_;
  const bool test_;
};

absl::StatusOr<JobData> Split(std::unique_ptr<Dataset> whole, double share, uint64_t seed) {
  if (whole->size() < 2) {
    return absl::InvalidArgumentError("data.test_share: the training data has 1 example, want at least 2");
  }
  auto held_out = std::make_shared<const std::vector<uint64_t>>(HeldOutExamples(whole->size(), share, seed));
  const std::shared_ptr<const Dataset> shared = std::move(whole);
  return JobData{std::make_unique<PartOfDataset>(shared, held_out, false),
                 std::make_unique<PartOfDataset>(shared, held_out, true)};
}

// A model has a table for fields of ids by their names and places.
absl::Status CheckIdFields(absl::Span<const std::string> train, absl::Span<const std::string> test) {
  for (const std::string& name : train) {
    if (std::find(test.begin(), test.end(), name) != test.end()) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("test data lacks field of ids \"", absl::CEscape(name), "\" of the training data"));
  }
  if (test.size() != train.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("test data has ", test.size(), " fields of ids, want ", train.size(), " as in the training data"));
  }
  for (size_t i = 0; i < train.size(); ++i) {
    if (test[i] == train[i]) continue;
    return absl::InvalidArgumentError(absl::StrCat("test data has \"", absl::CEscape(test[i]), "\" as field ", i,
                                                   " of ids, want \"", absl::CEscape(train[i]),
                                                   "\" as in the training data"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<JobData> OpenJobData(const v1::Data& data, uint64_t seed, const std::string& base_folder) {
  DatasetOptions options = {
      .normalization = data.normalization(), .base_folder = base_folder, .test_share = data.test_share(), .seed = seed};
  JobData opened;
  if (data.has_stream()) {
    absl::StatusOr<std::unique_ptr<StreamReader>> stream = StreamReader::Open(data, options);
    if (!stream.ok()) return stream.status();
    opened.stream = *std::move(stream);
    opened.train = opened.stream->TakePrototype();
  } else {
    absl::StatusOr<std::unique_ptr<Dataset>> train = OpenDataset(data.train(), options);
    if (!train.ok()) return train.status();
    if (data.test_share() > 0) return Split(*std::move(train), data.test_share(), seed);
    opened.train = *std::move(train);
  }
  if (!data.has_test()) return opened;
  options.schema = opened.train->schema();
  absl::StatusOr<std::unique_ptr<Dataset>> test = OpenDataset(data.test(), options);
  if (!test.ok()) return test.status();
  opened.test = *std::move(test);
  if (opened.test->features() != opened.train->features()) {
    return absl::InvalidArgumentError(absl::StrCat("test data has ", opened.test->features(), " features, want ",
                                                   opened.train->features(), " as in the training data"));
  }
  if (absl::Status status = CheckIdFields(opened.train->id_fields(), opened.test->id_fields()); !status.ok()) {
    return status;
  }
  return opened;
}

}  // namespace ballast
