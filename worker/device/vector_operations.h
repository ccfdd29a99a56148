// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "absl/types/span.h"
#include "worker/device/device_types.h"

namespace ballast {

// A device's operations on elements and on rows, whatever they mean. Matrices of one call have the same number of
// elements, of one type, unless said otherwise. Contract as device.h's.
class VectorOperations {
 public:
  virtual ~VectorOperations() = default;

  // y[i] = value.
  virtual void Fill(float value, Matrix y) = 0;
  // y = x.
  virtual void Copy(Matrix x, Matrix y) = 0;
  // x = alpha * x.
  virtual void Scale(float alpha, Matrix x) = 0;
  // The same; and not_finite[0] becomes 1 where an element of x was infinite or NaN, and else stays as it is.
  virtual void ScaleAndCheck(float alpha, Matrix x, Buffer& not_finite) = 0;
  // y = y + alpha * x.
  virtual void Axpy(float alpha, Matrix x, Matrix y) = 0;
  // y = a + b. y may be a, b or both.
  virtual void Add(Matrix a, Matrix b, Matrix y) = 0;

  // Of halves, the first x.elements() 16-bit places = x, rounded to the nearest, of equals to the even one: the bytes
  // of a payload in that encoding. x and halves are buffers of floats, and share no memory.
  virtual void Narrow(HalfType type, Matrix x, Buffer& halves) = 0;
  // The other way, which is exact.
  virtual void Widen(HalfType type, const Buffer& halves, Matrix y) = 0;

  // Row i of y = row rows[i] of the table, which has floats; y, of either type, has rows.size() rows of its width.
  // `rows` may be reused on return; each is 0 to table.rows - 1, and may come more than once.
  virtual void GatherRows(Matrix table, absl::Span<const int64_t> rows, Matrix y) = 0;
  // Adds row i of dy to row rows[i] of the table; what goes to one row is added in the order of `rows`.
  virtual void ScatterAddRows(Matrix dy, absl::Span<const int64_t> rows, Matrix table) = 0;
};

}  // namespace ballast
