// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "absl/types/span.h"

// Parameter types of a device's operations.
namespace ballast {

// Type of a buffer's elements: float, bfloat16 (the upper half of a float) or IEEE half.
enum class ElementType { kFp32, kBf16, kFp16 };

// Owns a device's memory for size() elements. The device that allocated it must outlive it.
class Buffer {
 public:
  virtual ~Buffer() = default;

  virtual int64_t size() const = 0;
  virtual ElementType type() const = 0;
  // The memory itself if the host can address it and it holds floats, otherwise empty.
  virtual absl::Span<float> host() = 0;
};

// The first rows * columns elements of a buffer as a row-major matrix. Does not own them.
struct Matrix {
  Buffer* buffer = nullptr;
  int64_t rows = 0;
  int64_t columns = 0;

  int64_t elements() const { return rows * columns; }
};

// A copy of a buffer's first elements to the host.
struct HostCopy {
  const Buffer* from = nullptr;
  absl::Span<float> values;
};

struct Factor {
  Matrix matrix;
  bool transposed = false;
};

// The rows of a product, which the host has computed when it needs them; see Device::MultiplyByRows. Thread safety: one
// call at a time.
class RowsOfProduct {
 public:
  virtual ~RowsOfProduct() = default;

  // Returns once rows [begin, end), and perhaps others, are computed. Computes none a second time.
  virtual void Compute(int64_t begin, int64_t end) = 0;
};

enum class Activation { kRelu, kGelu, kTanh };

enum class LossFunction { kSoftmaxCrossEntropy, kMeanSquaredError, kSigmoidCrossEntropy };

// Identifies one dropout. The key and the element's index alone decide whether an element is kept.
struct DropoutKey {
  uint64_t seed = 0;
  uint64_t step = 0;
  // The layer's position in the model.
  uint32_t layer = 0;
};

// Destination of a loss's gradient, and the factor to multiply it by.
struct LossGradient {
  Matrix matrix;
  float scale = 1;
};

// Memory of a device, in bytes.
struct DeviceMemory {
  // Bytes that Allocate can still return.
  int64_t free = 0;
  // Held by the device itself, as workspace for operations.
  int64_t workspace = 0;
  // Host memory that the device holds for copies.
  int64_t pinned = 0;
};

// Number format in which a device computes. Sums are always in fp32.
enum class Precision { kFp32, kTf32, kBf16, kFp16 };

// 16-bit format that floats are rounded to: bfloat16 (the upper half of a float) or IEEE half.
enum class HalfType { kBf16, kFp16 };

inline constexpr ElementType ElementTypeOf(HalfType type) {
  return type == HalfType::kBf16 ? ElementType::kBf16 : ElementType::kFp16;
}

inline constexpr int64_t BytesOf(ElementType type) { return type == ElementType::kFp32 ? 4 : 2; }

// Indices of a loss's results in its `totals` buffer.
inline constexpr int64_t kLossSum = 0;
inline constexpr int64_t kCorrect = 1;
inline constexpr int64_t kLossTotals = 2;

}  // namespace ballast
