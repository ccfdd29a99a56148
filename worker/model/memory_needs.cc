// SPDX-License-Identifier: Apache-2.0
#include "worker/model/memory_needs.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/text/bytes_text.h"

namespace ballast {
namespace {

constexpr int64_t kFloat = sizeof(float);

int64_t RoundedUp(int64_t amount, int64_t share) { return (amount + share - 1) / share; }

// Suggests batches of at most `fits` examples, which must be less than `batch`.
std::string SmallerBatch(int64_t fits, int64_t batch) {
  const int64_t pieces = RoundedUp(batch, fits);
  return absl::StrCat("training.batch_size of at most ", fits, " (", RoundedUp(batch, pieces),
                      " with accumulate_batches times ", pieces, " keeps the examples per step)");
}

}  // namespace

MemoryBytes MemoryNeeds::At(int64_t examples) const {
  const int64_t copy = activation_type == ElementType::kFp32 ? 0 : BytesOf(activation_type);
  return {.weights = weights * (kFloat + copy),
          .gradients = gradients * kFloat,
          .activations = (kept + per_example * examples) * kFloat + activations * examples * BytesOf(activation_type)};
}

int64_t MemoryNeeds::LargestBatch(int64_t bytes) const {
  const int64_t of_one = At(1).total() - At(0).total();
  return std::max<int64_t>(0, bytes - At(0).total()) / std::max<int64_t>(1, of_one);
}

std::string DescribeShortage(const MemoryNeeds& needs, absl::Span<const MemoryAlternative> alternatives, int64_t batch,
                             int64_t free) {
  std::string text = absl::StrCat("needs ", MemoryText(needs.At(batch)), "; free: ", BytesText(free), ". ");
  const int64_t fits = std::min(needs.LargestBatch(free), batch);
  // `free` was measured before the allocation failed, so another process took memory in between.
  if (fits == batch) {
    return absl::StrCat(text, "Another process took memory meanwhile; want no other process on the device");
  }
  std::vector<std::string> ways;
  if (fits > 0) ways.push_back(SmallerBatch(fits, batch));
  int64_t least = needs.At(1).total();
  std::string with;
  for (const MemoryAlternative& other : alternatives) {
    const int64_t otherwise = std::min(other.needs.LargestBatch(free), batch);
    if (otherwise == batch) {
      ways.push_back(
          absl::StrCat(other.setting, ", with which this batch needs ", BytesText(other.needs.At(batch).total())));
    } else if (otherwise > fits) {
      ways.push_back(absl::StrCat(other.setting, " and ", SmallerBatch(otherwise, batch)));
    }
    if (other.needs.At(1).total() >= least) continue;
    least = other.needs.At(1).total();
    with = absl::StrCat(" with ", other.setting);
  }
  if (!ways.empty()) return absl::StrCat(text, "Want ", absl::StrJoin(ways, "; or "));
  return absl::StrCat(text, "Not even a batch of 1 fits, which needs ", BytesText(least), with,
                      ": want a smaller model, or a device with more memory");
}

}  // namespace ballast
