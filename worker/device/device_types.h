// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "absl/types/span.h"

// The values that a device's operations take.
namespace ballast {

// What a buffer's elements are: floats, their upper halves, or IEEE's halves.
enum class ElementType { kFp32, kBf16, kFp16 };

// Owns a device's memory for size() elements. Outlived by the device that allocated it.
class Buffer {
 public:
  virtual ~Buffer() = default;

  virtual int64_t size() const = 0;
  virtual ElementType type() const = 0;
  // The memory itself where the host can address it and it holds floats, else empty.
  virtual absl::Span<float> host() = 0;
};

// The first rows * columns elements of a buffer as a row-major matrix. Does not own them.
struct Matrix {
  Buffer* buffer = nullptr;
  int64_t rows = 0;
  int64_t columns = 0;

  int64_t elements() const { return rows * columns; }
};

// A matrix as a factor of a product.
struct Factor {
  Matrix matrix;
  bool transposed = false;
};

enum class Activation { kRelu, kGelu, kTanh };

enum class LossFunction { kSoftmaxCrossEntropy, kMeanSquaredError };

// Which elements a dropout keeps is a function of these and of the element's index alone.
struct DropoutKey {
  uint64_t seed = 0;
  uint64_t step = 0;
  // The layer's position in the model.
  uint32_t layer = 0;
};

// Where a loss's gradient goes, and what it is multiplied by.
struct LossGradient {
  Matrix matrix;
  float scale = 1;
};

// Of a device's memory, in bytes.
struct DeviceMemory {
  // What Allocate can still give.
  int64_t free = 0;
  // Held by the device itself, for operations that need room.
  int64_t workspace = 0;
  // On the host, held by the device for copies.
  int64_t pinned = 0;
};

// What a device computes in. Sums are made in fp32 in any case.
enum class Precision { kFp32, kTf32, kBf16, kFp16 };

// Floats rounded to 16 bits: a float's upper half, or IEEE's half.
enum class HalfType { kBf16, kFp16 };

inline constexpr ElementType ElementTypeOf(HalfType type) {
  return type == HalfType::kBf16 ? ElementType::kBf16 : ElementType::kFp16;
}

inline constexpr int64_t BytesOf(ElementType type) { return type == ElementType::kFp32 ? 4 : 2; }

// Where a loss writes: elements 0 and 1 of a buffer.
inline constexpr int64_t kLossSum = 0;
inline constexpr int64_t kCorrect = 1;
inline constexpr int64_t kLossTotals = 2;

}  // namespace ballast
