// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <vector>

#include "absl/base/optimization.h"
#include "absl/strings/str_cat.h"
#include "common/codecs/codec.h"
#include "common/codecs/payload_reader.h"

namespace ballast {
namespace {

constexpr float kDefaultShare = 0.01f;
constexpr size_t kBytesPerEntry = sizeof(uint32_t) + sizeof(float);

// Orders like |x|, with NaN above infinity.
uint32_t Magnitude(float value) { return std::bit_cast<uint32_t>(value) & 0x7fffffff; }

// The k-th largest magnitude, and how many of the elements equal to it belong to the first k.
struct Threshold {
  uint32_t magnitude;
  size_t equal;
};

// Counts by exponent and upper mantissa bits first, so that only the few elements of one class need sorting.
Threshold FindThreshold(absl::Span<const float> values, size_t k) {
  constexpr int kShift = 20;
  // Several counters, because neighbors often fall into one class and each addition would wait for the previous one.
  constexpr size_t kCounts = 4;
  std::array<std::array<uint32_t, 1 << (31 - kShift)>, kCounts> counts = {};
  for (size_t i = 0; i < values.size(); ++i) ++counts[i % kCounts][Magnitude(values[i]) >> kShift];
  uint32_t chosen = counts[0].size();
  size_t in_class = 0, above = 0;
  for (;; above += in_class) {
    --chosen;
    in_class = 0;
    for (const auto& count : counts) in_class += count[chosen];
    if (above + in_class >= k) break;
  }
  std::vector<uint32_t> candidates;
  candidates.reserve(in_class);
  for (float value : values) {
    if (Magnitude(value) >> kShift == chosen) candidates.push_back(Magnitude(value));
  }
  const auto kth = candidates.begin() + (k - above - 1);
  std::nth_element(candidates.begin(), kth, candidates.end(), std::greater<uint32_t>());
  const uint32_t magnitude = *kth;
  const size_t larger = std::count_if(candidates.begin(), kth, [&](uint32_t each) { return each > magnitude; });
  return {magnitude, k - above - larger};
}

class TopKDecoder : public PayloadDecoder {
 public:
  TopKDecoder(Codec::Pieces pieces, size_t entries)
      : indices_(pieces, 0), values_(pieces, entries * sizeof(uint32_t)), entries_left_(entries) {
    ReadIndex();
  }

  void Next(absl::Span<float> out) override {
    std::fill(out.begin(), out.end(), 0.0f);
    const uint64_t end = position_ + out.size();
    while (next_index_ < end) {
      // Indices in shared memory may change after they were checked.
      if (next_index_ < position_) break;
      out[next_index_ - position_] = values_.NextAs<float>();
      ReadIndex();
    }
    position_ = end;
  }

 private:
  void ReadIndex() {
    next_index_ = entries_left_ == 0 ? ~uint64_t{0} : indices_.NextAs<uint32_t>();
    if (entries_left_ > 0) --entries_left_;
  }

  PayloadReader indices_;
  PayloadReader values_;
  size_t entries_left_;
  // Beyond all elements if no entry is left.
  uint64_t next_index_ = 0;
  uint64_t position_ = 0;
};

class TopK : public Codec {
 public:
  explicit TopK(float share)
      : Codec({v1::ENCODING_TOP_K, "top_k", /*carries_values=*/false, /*wants_error_feedback=*/true}), share_(share) {}

  size_t EncodedBytes(size_t elements) const override { return Entries(elements) * kBytesPerEntry; }

  // Among equal magnitudes, lower indices come first.
  size_t Encode(absl::Span<const float> values, uint64_t, char* out) const override {
    const size_t k = Entries(values.size());
    if (k == 0) return 0;
    Threshold threshold = FindThreshold(values, k);
    char* index_out = out;
    char* value_out = out + k * sizeof(uint32_t);
    for (uint32_t i = 0; i < values.size(); ++i) {
      const uint32_t magnitude = Magnitude(values[i]);
      if (ABSL_PREDICT_TRUE(magnitude < threshold.magnitude)) continue;
      if (magnitude == threshold.magnitude && threshold.equal-- == 0) {
        threshold.equal = 0;
        continue;
      }
      std::memcpy(index_out, &i, sizeof(i));
      std::memcpy(value_out, &values[i], sizeof(float));
      index_out += sizeof(i);
      value_out += sizeof(float);
    }
    return k * kBytesPerEntry;
  }

  absl::StatusOr<std::unique_ptr<PayloadDecoder>> OpenPayload(Pieces pieces, size_t elements) const override {
    if (elements > kMaxElements) return CheckPayloadSize(*this, pieces, elements);
    const size_t bytes = PayloadBytes(pieces), entries = bytes / kBytesPerEntry;
    if (bytes % kBytesPerEntry != 0 || entries > elements || (entries == 0 && elements > 0)) {
      return absl::InvalidArgumentError(absl::StrCat("top_k payload has ", bytes, " bytes, want a multiple of ",
                                                     kBytesPerEntry, ", at least that and at most ",
                                                     elements * kBytesPerEntry, " for ", elements, " elements"));
    }
    PayloadReader indices(pieces, 0);
    uint64_t smallest = 0;
    for (size_t i = 0; i < entries; ++i) {
      const uint64_t index = indices.NextAs<uint32_t>();
      if (index < smallest) {
        return absl::InvalidArgumentError(
            absl::StrCat("top_k payload: index ", i, " is ", index, ", want at least ", smallest, " (ascending)"));
      }
      if (index >= elements) {
        return absl::InvalidArgumentError(
            absl::StrCat("top_k payload: index ", i, " is ", index, ", want less than ", elements));
      }
      smallest = index + 1;
    }
    return std::make_unique<TopKDecoder>(pieces, entries);
  }

 private:
  // max(1, ceil(share * elements)). The product is rounded to a float: a share of 0.1, which is slightly larger as a
  // float, gives 100 of 1000 and not 101.
  size_t Entries(size_t elements) const {
    const size_t share = static_cast<size_t>(std::ceil(share_ * static_cast<float>(elements)));
    return std::min(std::max<size_t>(share, 1), elements);
  }

  const float share_;
};

}  // namespace

// The `top_k_fraction` of the elements with the largest magnitude; NaN counts as the largest.
std::unique_ptr<const Codec> MakeTopK(const v1::Codec& config) {
  return std::make_unique<TopK>(config.top_k_fraction() == 0 ? kDefaultShare : config.top_k_fraction());
}

}  // namespace ballast
