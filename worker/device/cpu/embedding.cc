// SPDX-License-Identifier: Apache-2.0
#include "worker/device/cpu/embedding.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "absl/base/attributes.h"
#include "common/simd/instruction_set.h"

namespace ballast {
namespace {

// The type of a register of that many floats.
template <int kFloats>
struct RegisterOf {
  typedef float Type __attribute__((vector_size(kFloats * sizeof(float))));
};
template <>
struct RegisterOf<1> {
  using Type = float;
};

// Calls Loop<kFloats>{arguments...}() compiled for the chosen instruction set, whose registers hold kFloats floats.
// Functions that it calls are compiled for that set only if they are ABSL_ATTRIBUTE_ALWAYS_INLINE.
template <template <int> typename Loop, typename... Arguments>
void RunForRegisters(const Arguments&... arguments) {
#if defined(__x86_64__)
  const InstructionSet set = ChosenInstructionSet();
  if (set == InstructionSet::kAvx512) return RunWithAvx512(Loop<16>{arguments...});
  if (set == InstructionSet::kAvx2) return RunWithAvx2(Loop<8>{arguments...});
#endif
  Loop<4>{arguments...}();
}

constexpr int64_t RoundUp(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

// Rows of floats that begin `width` floats after each other.
template <typename Float>
struct Strided {
  Float* floats;
  int64_t width;

  ABSL_ATTRIBUTE_ALWAYS_INLINE Float* Row(int64_t row) const { return floats + row * width; }
};

// Rows of scratch memory begin at a multiple of this, so that whole registers fit.
constexpr int64_t kPadding = 16;
// Rows of a product that are computed together.
constexpr int64_t kTile = 4;

// Part of a product: its elements are a chain of additions in the order of the depth, with every instruction set.
template <int kFloats>
struct Tile {
  // At most 8 registers hold sums, of the 16 that most sets have.
  static constexpr int kRegisters = kFloats < kPadding ? 2 : 1;
  static constexpr int64_t kWidth = kRegisters * kFloats;
  using Register = typename RegisterOf<kFloats>::Type;

  // c[i][j] = sum over k < depth of a[i][k] * b[k][j], for kTile rows i from `row` on and kWidth columns j from
  // `column` on. The last of a's `rows` rows stands in for those beyond.
  ABSL_ATTRIBUTE_ALWAYS_INLINE static void Multiply(const Strided<const float>& a, int64_t rows, int64_t depth,
                                                    const Strided<const float>& b, const Strided<float>& c, int64_t row,
                                                    int64_t column) {
    Register sums[kTile][kRegisters] = {};
    const float* left[kTile];
#pragma GCC unroll 8
    for (int64_t i = 0; i < kTile; ++i) left[i] = a.Row(std::min(row + i, rows - 1));
    const float* right = b.floats + column;
    for (int64_t k = 0; k < depth; ++k, right += b.width) {
      Register registers[kRegisters];
#pragma GCC unroll 8
      for (int r = 0; r < kRegisters; ++r) std::memcpy(&registers[r], right + r * kFloats, sizeof(Register));
#pragma GCC unroll 8
      for (int64_t i = 0; i < kTile; ++i) {
#pragma GCC unroll 8
        for (int r = 0; r < kRegisters; ++r) sums[i][r] += left[i][k] * registers[r];
      }
    }
#pragma GCC unroll 8
    for (int64_t i = 0; i < kTile; ++i) {
#pragma GCC unroll 8
      for (int r = 0; r < kRegisters; ++r) {
        std::memcpy(c.Row(row + i) + column + r * kFloats, &sums[i][r], sizeof(Register));
      }
    }
  }
};

// Multiplies the vectors of each row by themselves.
template <int kFloats>
struct InteractionLoop {
  InteractionShape shape;
  const float* x;
  float* y;
  // The vectors of a row by columns, [dim, vectors]; their products, [vectors, vectors]; both padded.
  Strided<float> turned, products;
  // The products of the pairs, and kPadding floats more.
  float* pairs;

  ABSL_ATTRIBUTE_ALWAYS_INLINE void operator()() const {
    const int64_t n = shape.vectors, dim = shape.dim;
    const float* from = x;
    float* to = y;
    for (int64_t row = 0; row < shape.rows; ++row, from += n * dim) {
      for (int64_t v = 0; v < n; ++v) {
        for (int64_t d = 0; d < dim; ++d) turned.Row(d)[v] = from[v * dim + d];
      }
      for (int64_t v = 0; v < n; v += kTile) {
        for (int64_t u = 0; u < std::min(v + kTile, n) - 1; u += Tile<kFloats>::kWidth) {
          Tile<kFloats>::Multiply({from, dim}, n, dim, {turned.floats, turned.width}, products, v, u);
        }
      }
      // Copies whole paddings; what is too much is overwritten by the products of the next vector.
      float* pair = pairs;
      for (int64_t v = 1; v < n; pair += v, ++v) {
        for (int64_t u = 0; u < v; u += kPadding) std::copy_n(products.Row(v) + u, kPadding, pair + u);
      }
      to = std::copy_n(from, dim, to);
      to = std::copy_n(pairs, shape.pairs(), to);
    }
  }
};

// Multiplies the gradients of the products, a symmetric matrix, by the vectors of each row.
template <int kFloats>
struct InteractionBackwardLoop {
  InteractionShape shape;
  const float* x;
  const float* dy;
  float* dx;
  // [vectors, vectors], with zeros on the diagonal; and [vectors, dim]; all padded.
  Strided<float> gradients, vectors, sums;

  ABSL_ATTRIBUTE_ALWAYS_INLINE void operator()() const {
    const int64_t n = shape.vectors, dim = shape.dim;
    const float *from = x, *gradient = dy;
    float* to = dx;
    for (int64_t row = 0; row < shape.rows; ++row, from += n * dim) {
      const float* const of_first = gradient;
      gradient += dim;
      for (int64_t v = 1; v < n; gradient += v, ++v) {
        for (int64_t u = 0; u < v; ++u) gradients.Row(v)[u] = gradients.Row(u)[v] = gradient[u];
      }
      for (int64_t v = 0; v < n; ++v) std::copy_n(from + v * dim, dim, vectors.Row(v));
      for (int64_t v = 0; v < n; v += kTile) {
        for (int64_t d = 0; d < dim; d += Tile<kFloats>::kWidth) {
          Tile<kFloats>::Multiply({gradients.floats, gradients.width}, n, n, {vectors.floats, vectors.width}, sums, v,
                                  d);
        }
      }
      for (int64_t d = 0; d < dim; ++d) sums.floats[d] += of_first[d];
      for (int64_t v = 0; v < n; ++v) to = std::copy_n(sums.Row(v), dim, to);
    }
  }
};

// Calls visit(address of the bag's vector in `matrix`, the bag's first place, the place after its last) for each bag.
template <typename Float, typename Visit>
ABSL_ATTRIBUTE_ALWAYS_INLINE inline void ForEachBag(const RowBags& bags, const PooledColumns& in, Float* matrix,
                                                    Visit visit) {
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

ABSL_ATTRIBUTE_ALWAYS_INLINE inline float ShareOf(bool mean, const uint32_t* place, const uint32_t* end) {
  return mean && end - place > 1 ? 1.0f / static_cast<float>(end - place) : 1.0f;
}

// Calls visit(RegisterOf its floats, its first element) for each part of a vector from element d on: registers of
// kFloats floats, then smaller ones, then single floats.
template <int kFloats, typename Visit>
ABSL_ATTRIBUTE_ALWAYS_INLINE inline void ForEachPart(int64_t dim, int64_t d, Visit visit) {
  for (; d + kFloats <= dim; d += kFloats) visit(RegisterOf<kFloats>(), d);
  if constexpr (kFloats > 4) {
    ForEachPart<kFloats / 2>(dim, d, visit);
  } else {
    for (; d < dim; ++d) visit(RegisterOf<1>(), d);
  }
}

// Sums each part of a vector in a register.
template <int kFloats>
struct PoolLoop {
  RowBags bags;
  PooledColumns in_y;
  const float* table;
  float* y;

  ABSL_ATTRIBUTE_ALWAYS_INLINE void operator()() const {
    ForEachBag(bags, in_y, y,
               [*this](float* vector, const uint32_t* begin, const uint32_t* end) ABSL_ATTRIBUTE_ALWAYS_INLINE {
                 const float share = ShareOf(bags.mean, begin, end);
                 ForEachPart<kFloats>(in_y.dim, 0, [=, this](auto part, int64_t d) ABSL_ATTRIBUTE_ALWAYS_INLINE {
                   typename decltype(part)::Type sum = {}, row;
                   for (const uint32_t* place = begin; place != end; ++place) {
                     std::memcpy(&row, table + *place * in_y.dim + d, sizeof(row));
                     sum += row;
                   }
                   sum *= share;
                   std::memcpy(vector + d, &sum, sizeof(sum));
                 });
               });
  }
};

// Adds the vectors to rows of zeros.
template <int kFloats>
struct PoolBackwardLoop {
  RowBags bags;
  PooledColumns in_dy;
  const float* dy;
  float* dtable;

  ABSL_ATTRIBUTE_ALWAYS_INLINE void operator()() const {
    ForEachBag(bags, in_dy, dy,
               [*this](const float* vector, const uint32_t* place, const uint32_t* end) ABSL_ATTRIBUTE_ALWAYS_INLINE {
                 const float share = ShareOf(bags.mean, place, end);
                 for (; place != end; ++place) {
                   float* const row = dtable + *place * in_dy.dim;
                   ForEachPart<kFloats>(in_dy.dim, 0, [=](auto part, int64_t d) ABSL_ATTRIBUTE_ALWAYS_INLINE {
                     typename decltype(part)::Type sum, gradient;
                     std::memcpy(&sum, row + d, sizeof(sum));
                     std::memcpy(&gradient, vector + d, sizeof(gradient));
                     sum += gradient * share;
                     std::memcpy(row + d, &sum, sizeof(sum));
                   });
                 }
               });
  }
};

}  // namespace

void CopyColumns(int64_t rows, int64_t columns, const float* x, int64_t x_columns, float* y, int64_t y_columns) {
  for (int64_t i = 0; i < rows; ++i, x += x_columns, y += y_columns) std::copy_n(x, columns, y);
}

void PoolRows(const float* table, const RowBags& bags, const PooledColumns& in_y, float* y) {
  RunForRegisters<PoolLoop>(bags, in_y, table, y);
}

void PoolRowsBackward(const float* dy, const RowBags& bags, const PooledColumns& in_dy, int64_t rows, float* dtable) {
  std::fill_n(dtable, rows * in_dy.dim, 0.0f);
  RunForRegisters<PoolBackwardLoop>(bags, in_dy, dy, dtable);
}

void DotInteraction(const InteractionShape& shape, const float* x, float* y) {
  const int64_t width = RoundUp(shape.vectors, kPadding), rows = RoundUp(shape.vectors, kTile);
  std::vector<float> turned(shape.dim * width), products(rows * width), pairs(shape.pairs() + kPadding);
  RunForRegisters<InteractionLoop>(shape, x, y, Strided<float>{turned.data(), width},
                                   Strided<float>{products.data(), width}, pairs.data());
}

void DotInteractionBackward(const InteractionShape& shape, const float* x, const float* dy, float* dx) {
  const int64_t width = RoundUp(shape.vectors, kPadding), dim_width = RoundUp(shape.dim, kPadding);
  const int64_t rows = RoundUp(shape.vectors, kTile);
  std::vector<float> gradients(rows * width), vectors(rows * dim_width), sums(rows * dim_width);
  RunForRegisters<InteractionBackwardLoop>(shape, x, dy, dx, Strided<float>{gradients.data(), width},
                                           Strided<float>{vectors.data(), dim_width},
                                           Strided<float>{sums.data(), dim_width});
}

}  // namespace ballast
