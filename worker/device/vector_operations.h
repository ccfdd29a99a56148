// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "absl/types/span.h"
#include "worker/device/device_types.h"

namespace ballast {

// A device's operations on elements and rows, independent of their meaning. Matrices of one call have the same number
// of elements, of one type, unless stated otherwise. The contract of class Device applies.
class VectorOperations {
 public:
  virtual ~VectorOperations() = default;

  virtual void Fill(float value, Matrix y) = 0;
  // y = x.
  virtual void Copy(Matrix x, Matrix y) = 0;
  virtual void Scale(float alpha, Matrix x) = 0;
  // Like Scale, and sets not_finite[0] to 1 if an element of x was infinite or NaN; otherwise leaves it unchanged.
  virtual void ScaleAndCheck(float alpha, Matrix x, Buffer& not_finite) = 0;
  // y = y + alpha * x.
  virtual void Axpy(float alpha, Matrix x, Matrix y) = 0;
  // y = a + b. y may be a, b or both.
  virtual void Add(Matrix a, Matrix b, Matrix y) = 0;

  // Rounds x to the first x.elements() 16-bit values of `halves`, to nearest with ties to even: the bytes of a
  // payload in that encoding. x and halves are buffers of floats and share no memory.
  virtual void Narrow(HalfType type, Matrix x, Buffer& halves) = 0;
  // The inverse of Narrow; exact.
  virtual void Widen(HalfType type, const Buffer& halves, Matrix y) = 0;

  // Row i of y = row rows[i] of the table. The table holds floats; y, of either type, has rows.size() rows of the
  // table's width. The caller may reuse `rows` on return; each is 0 to table.rows - 1, and may be repeated.
  virtual void GatherRows(Matrix table, absl::Span<const int64_t> rows, Matrix y) = 0;
  // Adds row i of dy to row rows[i] of the table. Several additions to one row happen in the order of `rows`.
  virtual void ScatterAddRows(Matrix dy, absl::Span<const int64_t> rows, Matrix table) = 0;
};

}  // namespace ballast
