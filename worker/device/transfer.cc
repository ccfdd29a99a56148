// SPDX-License-Identifier: Apache-2.0
#include "worker/device/transfer.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace ballast {

absl::Status Transfer::Copy(Device& from, Matrix x, Device& to, Matrix y) {
  if (x.elements() != y.elements()) {
    return absl::InternalError(absl::StrCat("transfer: got ", x.elements(), " elements, want ", y.elements()));
  }
  if (to.CopyFrom(from, x, y)) return absl::OkStatus();
  const size_t elements = x.elements();
  if (const absl::Span<float> source = x.buffer->host(); !source.empty()) {
    // Waits for the operations issued on x.
    if (absl::Status status = from.Download(*x.buffer, 0, {}); !status.ok()) return status;
    return to.Upload(source.first(elements), *y.buffer, 0);
  }
  if (const absl::Span<float> target = y.buffer->host(); !target.empty()) {
    if (absl::Status status = to.Upload({}, *y.buffer, 0); !status.ok()) return status;
    return from.Download(*x.buffer, 0, target.first(elements));
  }
  if (staging_.size() < elements) staging_.resize(elements);
  const absl::Span<float> between = absl::MakeSpan(staging_).first(elements);
  if (absl::Status status = from.Download(*x.buffer, 0, between); !status.ok()) return status;
  return to.Upload(between, *y.buffer, 0);
}

}  // namespace ballast
