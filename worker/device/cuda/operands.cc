// SPDX-License-Identifier: Apache-2.0
#include "worker/device/cuda/operands.h"

#include <cstdio>
#include <cstdlib>
#include <limits>

#include "absl/strings/str_cat.h"

namespace ballast::gpu {

void Require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "cuda device: %s\n", what);
  std::abort();
}

const CudaBuffer& Own(const Buffer& buffer) { return static_cast<const CudaBuffer&>(buffer); }

float* Data(const Buffer& buffer, int64_t least) {
  Require(buffer.size() >= least, "buffer is too short");
  Require(buffer.type() == ElementType::kFp32, "buffer does not hold floats");
  return static_cast<float*>(Own(buffer).data());
}

Elements Data(const Matrix& m) {
  Require(m.buffer != nullptr && m.elements() <= m.buffer->size(), "matrix is outside its buffer");
  return {Own(*m.buffer).data(), m.buffer->type()};
}

float* Floats(const Matrix& m) {
  Require(m.buffer != nullptr, "matrix has no buffer");
  return Data(*m.buffer, m.elements());
}

float* FilterData(const ConvShape& shape, const Buffer& filters) {
  return Data(filters, shape.filters * shape.filter_elements());
}

void CheckType(const Matrix& a, const Matrix& b) {
  Require(a.buffer->type() == b.buffer->type(), "matrices have different types");
}

void CheckSame(const Matrix& a, const Matrix& b) {
  CheckType(a, b);
  Require(a.rows == b.rows && a.columns == b.columns, "matrices have different shapes");
}

void CheckElements(const Matrix& a, const Matrix& b) {
  CheckType(a, b);
  Require(a.elements() == b.elements(), "matrices have different numbers of elements");
}

void CheckRows(const Matrix& table, absl::Span<const int64_t> rows, const Matrix& values) {
  Require(values.rows == static_cast<int64_t>(rows.size()) && values.columns == table.columns,
          "shape of the rows does not match the table");
  for (const int64_t row : rows) Require(row >= 0 && row < table.rows, "row is outside the table");
}

absl::Status CheckRange(const Buffer& buffer, int64_t offset, size_t elements) {
  if (offset >= 0 && offset <= buffer.size() && elements <= static_cast<size_t>(buffer.size() - offset)) {
    return absl::OkStatus();
  }
  return absl::OutOfRangeError(absl::StrCat("device buffer of ", buffer.size(), " elements: got ", elements,
                                            " elements at ", offset, ", want a range inside it"));
}

GemmCall Product(const Factor& a, const Factor& b, const Matrix& c) {
  GemmCall call;
  call.rows = c.rows;
  call.columns = c.columns;
  call.depth = a.transposed ? a.matrix.rows : a.matrix.columns;
  Require((a.transposed ? a.matrix.columns : a.matrix.rows) == c.rows &&
              (b.transposed ? b.matrix.rows : b.matrix.columns) == c.columns &&
              (b.transposed ? b.matrix.columns : b.matrix.rows) == call.depth,
          "factors do not fit each other or the result");
  call.a = Data(a.matrix);
  call.a_transposed = a.transposed;
  call.b = Data(b.matrix);
  call.b_transposed = b.transposed;
  call.c = Data(c);
  return call;
}

BatchNormCall BatchNormOf(const Matrix& x, const Affine& affine, const SavedStatistics* saved, float* scratch) {
  return {x.rows,
          x.columns,
          Data(x),
          Data(affine.scale, x.columns),
          Data(affine.offset, x.columns),
          saved == nullptr ? nullptr : Data(saved->mean, x.columns),
          saved == nullptr ? nullptr : Data(saved->inverse_stddev, x.columns),
          scratch};
}

RunningStatistics RunningOf(float epsilon, float momentum, const ColumnStatistics& running, int64_t columns) {
  return {epsilon, momentum, Data(running.mean, columns), Data(running.variance, columns)};
}

BagVectors VectorsOf(const Matrix& table, const RowBags& bags, int64_t first, const Matrix& values) {
  Require(Fits(bags, values.rows, table.rows), "bags do not fit the examples or the table");
  Require(bags.ends.size() <= std::numeric_limits<uint32_t>::max(), "too many bags");
  Require(first >= 0 && first + bags.fields * table.columns <= values.columns, "vectors of the bags are too wide");
  return {static_cast<uint32_t>(bags.ends.size()),
          static_cast<uint32_t>(bags.fields),
          table.columns,
          values.columns,
          first,
          nullptr,
          bags.mean};
}

InteractionCall InteractionOf(int64_t dim, const Matrix& x, const Matrix& products) {
  CheckType(x, products);
  Require(dim > 0 && x.columns > 0 && x.columns % dim == 0, "row is not vectors of that many elements");
  const InteractionCall call = {x.rows, x.columns / dim, dim, Data(x)};
  Require(products.rows == x.rows && products.columns == dim + call.pairs(), "products do not match the vectors");
  return call;
}

}  // namespace ballast::gpu
