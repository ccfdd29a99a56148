// SPDX-License-Identifier: Apache-2.0
#include "worker/model/memory_needs.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/bytes_text.h"

namespace ballast {
namespace {

constexpr int64_t kFloat = sizeof(float);

int64_t RoundedUp(int64_t amount, int64_t share) { return (amount + share - 1) / share; }

// `fits` is less than `batch`.
std::string SmallerBatch(int64_t fits, int64_t batch) {
  const int64_t pieces = RoundedUp(batch, fits);
  return absl::StrCat("training.batch_size of at most ", fits, ": ", RoundedUp(batch, pieces),
                      " with accumulate_batches times ", pieces, " has as many examples in a step");
}

}  // namespace

MemoryBytes MemoryNeeds::At(int64_t examples) const {
  return {.weights = weights * kFloat,
          .gradients = gradients * kFloat,
          .activations = (kept + per_example * examples) * kFloat};
}

int64_t MemoryNeeds::LargestBatch(int64_t bytes) const {
  return std::max<int64_t>(0, bytes / kFloat - (weights + gradients + kept)) / std::max<int64_t>(1, per_example);
}

std::string DescribeShortage(const MemoryNeeds& needs, const std::optional<MemoryNeeds>& recomputing, int64_t batch,
                             int64_t free) {
  std::string text = absl::StrCat("needs ", MemoryText(needs.At(batch)), "; free are ", BytesText(free), ". ");
  const int64_t fits = std::min(needs.LargestBatch(free), batch);
  const int64_t otherwise = recomputing.has_value() ? std::min(recomputing->LargestBatch(free), batch) : 0;
  // It was enough a moment ago: another process has taken of it since.
  if (fits == batch) return absl::StrCat(text, "Want it free from other processes");
  if (fits == 0 && otherwise == 0) {
    return absl::StrCat(text, "Not even a batch of 1 fits, which needs ",
                        BytesText((recomputing.has_value() ? *recomputing : needs).At(1).total()),
                        recomputing.has_value() ? " with training.recompute" : "",
                        ": want a smaller model, or a device with more memory");
  }
  absl::StrAppend(&text, "Want ");
  if (fits > 0) absl::StrAppend(&text, SmallerBatch(fits, batch));
  if (otherwise <= fits) return text;
  absl::StrAppend(&text, fits > 0 ? "; or " : "", "training.recompute: true");
  if (otherwise == batch) {
    return absl::StrCat(text, ", with which this batch needs ", BytesText(recomputing->At(batch).total()));
  }
  return absl::StrCat(text, " and ", SmallerBatch(otherwise, batch));
}

}  // namespace ballast
