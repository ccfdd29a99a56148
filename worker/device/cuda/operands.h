// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "worker/device/cuda/gemm/gemm.h"
#include "worker/device/cuda/kernels/batch_norm.h"
#include "worker/device/cuda/kernels/dot_interaction.h"
#include "worker/device/cuda/kernels/elements.h"
#include "worker/device/cuda/kernels/pool_rows.h"
#include "worker/device/cuda/memory/cuda_buffer.h"
#include "worker/device/device_types.h"
#include "worker/device/embedding_operations.h"
#include "worker/device/image_shape.h"
#include "worker/device/normalization_operations.h"

// Checks the arguments of operations and converts them to kernel arguments. A mismatch is a bug of the caller and
// aborts, except for the range of a copy. All buffers are CudaBuffers.
namespace ballast::gpu {

void Require(bool condition, const char* what);

const CudaBuffer& Own(const Buffer& buffer);

// The address of a buffer of at least `least` floats.
float* Data(const Buffer& buffer, int64_t least);
Elements Data(const Matrix& m);
float* Floats(const Matrix& m);
float* FilterData(const ConvShape& shape, const Buffer& filters);

// Requires matrices of the same type; the next three functions check that too.
void CheckType(const Matrix& a, const Matrix& b);
void CheckSame(const Matrix& a, const Matrix& b);
void CheckElements(const Matrix& a, const Matrix& b);
// `shape` is a ConvShape or a PoolShape.
template <typename Shape>
void CheckImages(const Shape& shape, const Matrix& in, const Matrix& out) {
  Require(Fits(shape.window, shape.input), "window does not fit the image");
  Require(in.rows == out.rows && in.columns == shape.input.elements() && out.columns == shape.output().elements(),
          "images do not have the shape of the operation");
  CheckType(in, out);
}
void CheckRows(const Matrix& table, absl::Span<const int64_t> rows, const Matrix& values);

// OUT_OF_RANGE if an element is outside the buffer.
absl::Status CheckRange(const Buffer& buffer, int64_t offset, size_t elements);

// c = a b.
GemmCall Product(const Factor& a, const Factor& b, const Matrix& c);
// `saved` may be null.
BatchNormCall BatchNormOf(const Matrix& x, const Affine& affine, const SavedStatistics* saved, float* scratch);
RunningStatistics RunningOf(float epsilon, float momentum, const ColumnStatistics& running, int64_t columns);
// The vectors of bags of rows of `table` in the matrix `values`; the ends of the bags are not set.
BagVectors VectorsOf(const Matrix& table, const RowBags& bags, int64_t first, const Matrix& values);
// `products` is a matrix of dot interactions of x, or of gradients with respect to them.
InteractionCall InteractionOf(int64_t dim, const Matrix& x, const Matrix& products);

}  // namespace ballast::gpu
