// SPDX-License-Identifier: Apache-2.0
#include "worker/device/cpu/embedding.h"

#include <algorithm>

namespace ballast {
namespace {

// Calls visit(address of the bag's vector in `matrix`, the bag's first place, the place after its last) for each bag.
template <typename Float, typename Visit>
void ForEachBag(const RowBags& bags, const PooledColumns& in, Float* matrix, Visit visit) {
  const uint32_t* place = bags.places.data();
  const uint32_t* end = bags.ends.data();
  for (int64_t example = 0; example < in.examples; ++example) {
    Float* vector = matrix + example * in.columns + in.first;
    for (int64_t field = 0; field < bags.fields; ++field, ++end, vector += in.dim) {
      const uint32_t* const last = bags.places.data() + *end;
      visit(vector, place, last);
      place = last;
    }
  }
}

}  // namespace

void CopyColumns(int64_t rows, int64_t columns, const float* x, int64_t x_columns, float* y, int64_t y_columns) {
  for (int64_t i = 0; i < rows; ++i, x += x_columns, y += y_columns) std::copy_n(x, columns, y);
}

void PoolRows(const float* table, const RowBags& bags, const PooledColumns& in_y, float* y) {
  const int64_t dim = in_y.dim;
  ForEachBag(bags, in_y, y, [&](float* vector, const uint32_t* place, const uint32_t* end) {
    std::fill_n(vector, dim, 0.0f);
    const float share = bags.mean && place != end ? 1.0f / static_cast<float>(end - place) : 1.0f;
    for (; place != end; ++place) {
      const float* const row = table + *place * dim;
      for (int64_t d = 0; d < dim; ++d) vector[d] += row[d];
    }
    for (int64_t d = 0; d < dim; ++d) vector[d] *= share;
  });
}

void PoolRowsBackward(const float* dy, const RowBags& bags, const PooledColumns& in_dy, int64_t rows, float* dtable) {
  const int64_t dim = in_dy.dim;
  std::fill_n(dtable, rows * dim, 0.0f);
  ForEachBag(bags, in_dy, dy, [&](const float* vector, const uint32_t* place, const uint32_t* end) {
    const float share = bags.mean && place != end ? 1.0f / static_cast<float>(end - place) : 1.0f;
    for (; place != end; ++place) {
      float* const row = dtable + *place * dim;
      for (int64_t d = 0; d < dim; ++d) row[d] += vector[d] * share;
    }
  });
}

void DotInteraction(const InteractionShape& shape, const float* x, float* y) {
  const int64_t dim = shape.dim;
  for (int64_t i = 0; i < shape.rows; ++i, x += shape.vectors * dim) {
    y = std::copy_n(x, dim, y);
    for (int64_t v = 1; v < shape.vectors; ++v) {
      for (int64_t u = 0; u < v; ++u) {
        float sum = 0;
        for (int64_t d = 0; d < dim; ++d) sum += x[v * dim + d] * x[u * dim + d];
        *y++ = sum;
      }
    }
  }
}

void DotInteractionBackward(const InteractionShape& shape, const float* x, const float* dy, float* dx) {
  const int64_t dim = shape.dim, elements = shape.vectors * dim;
  for (int64_t i = 0; i < shape.rows; ++i, x += elements, dx += elements) {
    std::fill(std::copy_n(dy, dim, dx), dx + elements, 0.0f);
    dy += dim;
    for (int64_t v = 1; v < shape.vectors; ++v) {
      for (int64_t u = 0; u < v; ++u) {
        const float gradient = *dy++;
        for (int64_t d = 0; d < dim; ++d) {
          dx[v * dim + d] += gradient * x[u * dim + d];
          dx[u * dim + d] += gradient * x[v * dim + d];
        }
      }
    }
  }
}

}  // namespace ballast
