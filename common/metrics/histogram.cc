// SPDX-License-Identifier: Apache-2.0
#include "common/metrics/histogram.h"

#include <algorithm>
#include <bit>

namespace ballast {

void Histogram::Add(uint64_t value) {
  buckets_[std::bit_width(value)].fetch_add(1, std::memory_order_relaxed);
  sum_.fetch_add(value, std::memory_order_relaxed);
  uint64_t seen = max_.load(std::memory_order_relaxed);
  while (seen < value && !max_.compare_exchange_weak(seen, value, std::memory_order_relaxed)) {
  }
}

v1::Histogram Histogram::ToProto() const {
  v1::Histogram proto;
  uint64_t count = 0;
  for (size_t i = 0; i < buckets_.size(); ++i) {
    const uint64_t bucket = buckets_[i].load(std::memory_order_relaxed);
    if (bucket == 0) continue;
    proto.mutable_buckets()->Resize(static_cast<int>(i), 0);
    proto.add_buckets(bucket);
    count += bucket;
  }
  proto.set_count(count);
  proto.set_sum(static_cast<double>(sum_.load(std::memory_order_relaxed)));
  proto.set_max(max_.load(std::memory_order_relaxed));
  return proto;
}

void Merge(const v1::Histogram& from, v1::Histogram& into) {
  if (into.buckets_size() < from.buckets_size()) into.mutable_buckets()->Resize(from.buckets_size(), 0);
  for (int i = 0; i < from.buckets_size(); ++i) into.set_buckets(i, into.buckets(i) + from.buckets(i));
  into.set_count(into.count() + from.count());
  into.set_sum(into.sum() + from.sum());
  into.set_max(std::max(into.max(), from.max()));
}

}  // namespace ballast
