// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/clicks/click_model.h"
#include "common/metrics/binary_scores.h"
#include "worker/data/datasets/dataset.h"
#include "worker/data/datasets/example_values.h"

namespace ballast {
namespace {

// Rows from which the Bayes AUC is computed.
constexpr uint64_t kMaxScores = 200'000;

// Rows [begin, begin + size) of a click model, which are computed whenever they are read.
class PlantedClicksDataset : public Dataset {
 public:
  PlantedClicksDataset(const ClickModelOptions& options, uint64_t begin, uint64_t size, const Normalizer& normalizer)
      : model_(options), begin_(begin), size_(size), normalizer_(normalizer) {}

  uint64_t size() const override { return size_; }
  uint64_t features() const override { return kClickNumbers; }
  absl::Span<const std::string> id_fields() const override { return ClickFields(); }
  // The labels that a row can have.
  std::vector<PlacedLabel> ExtremeLabels() const override { return {{0, "planted clicks"}, {1, "planted clicks"}}; }

  absl::Status Read(absl::Span<const uint64_t> indices, absl::Span<float> features, absl::Span<float> labels,
                    IdBags* ids) const override {
    if (absl::Status status = CheckRead(*this, indices, features, labels); !status.ok()) return status;
    ClearBags(ids);
    for (size_t i = 0; i < indices.size(); ++i) {
      const ClickRow row = model_.Row(begin_ + indices[i]);
      labels[i] = row.clicked ? 1 : 0;
      WriteClickExample(row.numbers, row.categories, normalizer_, features.subspan(i * kClickNumbers, kClickNumbers),
                        ids);
    }
    return absl::OkStatus();
  }

  std::optional<double> BayesAuc() const override {
    std::vector<BinaryScore> scores(std::min(size_, kMaxScores));
    for (size_t i = 0; i < scores.size(); ++i) {
      const ClickRow row = model_.Row(begin_ + i);
      scores[i] = {row.logit, row.clicked};
    }
    return AreaUnderCurve(scores);
  }

 private:
  const ClickModel model_;
  const uint64_t begin_;
  const uint64_t size_;
  const Normalizer normalizer_;
};

}  // namespace

// Opens planted clicks: reads no file.
absl::StatusOr<std::unique_ptr<Dataset>> OpenPlantedClicks(const v1::DataSource& source,
                                                           const DatasetOptions& options) {
  const v1::PlantedClicks& clicks = source.planted_clicks();
  const uint64_t end = clicks.end() == 0 ? clicks.rows() : clicks.end();
  if (clicks.begin() >= end || end > clicks.rows()) {
    return absl::InvalidArgumentError(absl::StrCat("planted_clicks: got rows ", clicks.begin(), " to ", end,
                                                   ", want at least one of the rows before ", clicks.rows()));
  }
  ClickModelOptions model = {.seed = clicks.seed() == 0 ? options.seed : clicks.seed(), .rows = clicks.rows()};
  if (clicks.days() != 0) model.days = static_cast<int>(clicks.days());
  if (clicks.has_drift()) model.drift = clicks.drift();
  if (clicks.ids() != 0) model.most_ids = clicks.ids();
  if (clicks.has_click_rate()) model.click_rate = clicks.click_rate();
  if (clicks.has_deviation()) model.deviation = clicks.deviation();
  return std::make_unique<PlantedClicksDataset>(model, clicks.begin(), end - clicks.begin(),
                                                Normalizer(options.normalization));
}

}  // namespace ballast
