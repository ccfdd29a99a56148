// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "absl/types/span.h"
#include "worker/device/device.h"

// The CPU device's loops over single elements. Spans of one call have the same size and are either identical or
// disjoint.
namespace ballast {

// y = f(x).
void Activate(Activation f, absl::Span<const float> x, absl::Span<float> y);
// dx = dy * f'(x).
void ActivateBackward(Activation f, absl::Span<const float> x, absl::Span<const float> dy, absl::Span<float> dx);
// x = alpha * x. Returns whether all of x was finite.
bool ScaleAndCheck(float alpha, absl::Span<float> x);
// y = y + alpha * x.
void Axpy(float alpha, absl::Span<const float> x, absl::Span<float> y);
// y = a + b.
void Add(absl::Span<const float> a, absl::Span<const float> b, absl::Span<float> y);
// Like Device::Dropout.
void Dropout(float rate, const DropoutKey& key, absl::Span<const float> x, absl::Span<float> y);

}  // namespace ballast
