// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "worker/device/cuda/gemm/gemm.h"
#include "worker/device/cuda/kernels/batch_norm.h"
#include "worker/device/cuda/kernels/elements.h"
#include "worker/device/cuda/memory/cuda_buffer.h"
#include "worker/device/device_types.h"
#include "worker/device/image_shape.h"
#include "worker/device/normalization_operations.h"

// What an operation is called with, checked and turned into what kernels take. What does not fit is a caller's bug and
// aborts, but for the range of a copy. The buffers are CudaBuffers.
namespace ballast::gpu {

void Require(bool condition, const char* what);

const CudaBuffer& Own(const Buffer& buffer);

// Where a buffer of at least so many floats begins.
float* Data(const Buffer& buffer, int64_t least);
Elements Data(const Matrix& m);
// Of one that has floats.
float* Floats(const Matrix& m);
float* FilterData(const ConvShape& shape, const Buffer& filters);

// Of one type, which the next three check, too.
void CheckType(const Matrix& a, const Matrix& b);
void CheckSame(const Matrix& a, const Matrix& b);
void CheckElements(const Matrix& a, const Matrix& b);
// Of a ConvShape or a PoolShape.
template <typename Shape>
void CheckImages(const Shape& shape, const Matrix& in, const Matrix& out) {
  Require(Fits(shape.window, shape.input), "window that does not fit its images");
  Require(in.rows == out.rows && in.columns == shape.input.elements() && out.columns == shape.output().elements(),
          "images of another size");
  CheckType(in, out);
}
void CheckRows(const Matrix& table, absl::Span<const int64_t> rows, const Matrix& values);

// OUT_OF_RANGE where the elements do not all lie in the buffer.
absl::Status CheckRange(const Buffer& buffer, int64_t offset, size_t elements);

// c = a b.
GemmCall Product(const Factor& a, const Factor& b, const Matrix& c);
// `saved` may be null.
BatchNormCall BatchNormOf(const Matrix& x, const Affine& affine, const SavedStatistics* saved, float* scratch);
RunningStatistics RunningOf(float epsilon, float momentum, const ColumnStatistics& running, int64_t columns);

}  // namespace ballast::gpu
