// SPDX-License-Identifier: Apache-2.0
// Checks the operations on vectors of embeddings of every device.
#include <gmock/gmock.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "worker/device/conformance/device_conformance_test.h"

namespace ballast {

using ::testing::Each;
using ::testing::ElementsAre;

namespace {

// Owns the numbers of bags of rows.
struct Bags {
  std::vector<uint32_t> ends, places;
  int64_t fields = 1;

  int64_t examples() const { return static_cast<int64_t>(ends.size()) / fields; }
  int64_t begin(int64_t bag) const { return bag == 0 ? 0 : ends[bag - 1]; }
  RowBags View(bool mean = false) const { return {ends, places, fields, mean}; }
};

// Bags of 0 to 4 places, with many rows repeated.
Bags SomeBags(int64_t examples, int64_t fields, int64_t rows) {
  Bags bags{{}, {}, fields};
  for (int64_t bag = 0; bag < examples * fields; ++bag) {
    for (int64_t place = 0; place < bag * bag % 5; ++place) bags.places.push_back((bag * 7 + place * place) % rows);
    bags.ends.push_back(static_cast<uint32_t>(bags.places.size()));
  }
  return bags;
}

// Calls visit(element of the table, element of the matrix with the vectors, factor) for each term of the sums.
template <typename Visit>
void ForEachTerm(const Bags& bags, bool mean, int64_t dim, int64_t first, int64_t columns, Visit visit) {
  for (int64_t bag = 0; bag < static_cast<int64_t>(bags.ends.size()); ++bag) {
    const int64_t vector = bag / bags.fields * columns + first + bag % bags.fields * dim;
    const double factor = mean ? 1.0 / static_cast<double>(bags.ends[bag] - bags.begin(bag)) : 1.0;
    for (int64_t place = bags.begin(bag); place < bags.ends[bag]; ++place) {
      for (int64_t d = 0; d < dim; ++d) visit(bags.places[place] * dim + d, vector + d, factor);
    }
  }
}

double Dot(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += double{a[i]} * b[i];
  return sum;
}

double Magnitude(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += std::abs(double{a[i]} * b[i]);
  return sum;
}

// Multiples of 1/4 from -2 to 2, so that sums of two of them are exact in every type.
std::vector<float> Quarters(int64_t n, int64_t seed) {
  std::vector<float> values;
  for (int64_t i = 0; i < n; ++i) values.push_back(static_cast<float>((i * i * 13 + i * 5 + seed) % 17 - 8) / 4);
  return values;
}

struct Interaction {
  int64_t rows, vectors, dim;

  int64_t in() const { return vectors * dim; }
  int64_t out() const { return dim + vectors * (vectors - 1) / 2; }
};

// Calls visit(row, element of y in its row, v, u) for each pair.
template <typename Visit>
void ForEachPair(const Interaction& shape, Visit visit) {
  for (int64_t row = 0; row < shape.rows; ++row) {
    int64_t pair = shape.dim;
    for (int64_t v = 1; v < shape.vectors; ++v) {
      for (int64_t u = 0; u < v; ++u) visit(row, pair++, v, u);
    }
  }
}

// Vectors of one element, single vectors, sizes around those of registers, and the sizes of a model of clicks.
constexpr Interaction kInteractions[] = {{1, 1, 1},   {3, 1, 5},  {2, 2, 3},   {5, 3, 2},   {4, 4, 8},  {3, 9, 1},
                                         {9, 27, 16}, {3, 27, 8}, {2, 17, 32}, {2, 16, 20}, {2, 33, 7}, {3, 5, 64}};

}  // namespace

TEST_P(DeviceConformanceTest, CopyColumnsCopiesTheFirstColumnsAndNothingElse) {
  const Matrix x = Put(2, 3, {1, 2, 3, 4, 5, 6}), y = Put(2, 4, {10, 20, 30, 40, 50, 60, 70, 80});
  device().CopyColumns(2, x, y);
  EXPECT_THAT(Get(y), ElementsAre(1, 2, 30, 40, 4, 5, 70, 80));
  device().CopyColumns(0, x, y);
  EXPECT_THAT(Get(y), ElementsAre(1, 2, 30, 40, 4, 5, 70, 80));
  device().CopyColumns(3, y, x);
  EXPECT_THAT(Get(x), ElementsAre(1, 2, 30, 4, 5, 70));
}

TEST_P(DeviceConformanceTest, CopyColumnsOfManyRowsKeepsTheBits) {
  constexpr int64_t kRows = 1001, kFrom = 35, kTo = 33;
  const std::vector<float> values = Random(kRows * kFrom, 1);
  std::vector<float> want;
  for (int64_t i = 0; i < kRows * kTo; ++i) want.push_back(values[i / kTo * kFrom + i % kTo]);
  const Matrix y = Zeros(kRows, kTo);
  device().CopyColumns(kTo, Put(kRows, kFrom, values), y);
  EXPECT_EQ(Get(y), want);
}

TEST_P(DeviceConformanceTest, CopyColumnsTakesNoRows) { device().CopyColumns(2, Zeros(0, 3), Zeros(0, 2)); }

TEST_P(DeviceConformanceTest, PoolRowsSumsTheRowsOfEachBagAndWritesNothingElse) {
  const Matrix table = PutFloats(3, 2, {1, 2, 10, 20, 100, 200});
  const Matrix y = Put(2, 6, std::vector<float>(12, 7));
  // An empty bag, repeated rows, a single row.
  const Bags bags{{2, 2, 5, 6}, {2, 0, 1, 1, 0, 2}, 2};
  device().PoolRows(table, bags.View(), 1, y);
  EXPECT_THAT(Get(y), ElementsAre(7, 101, 202, 0, 0, 7, 7, 21, 42, 100, 200, 7));
}

TEST_P(DeviceConformanceTest, PoolRowsGivesTheMeanOfEachBag) {
  const Matrix table = PutFloats(3, 2, {1, 2, 10, 20, 100, 200});
  const Matrix y = Put(2, 4, std::vector<float>(8, 7));
  const Bags bags{{2, 2, 6, 7}, {1, 1, 1, 2, 1, 2, 2}, 2};
  device().PoolRows(table, bags.View(true), 0, y);
  EXPECT_THAT(Get(y), ElementsAre(10, 20, 0, 0, 55, 110, 100, 200));
}

// In the order of the places, 2^15 + 2^-10 - 2^15 + 2^-10 is 2^-10 in floats; in another order it is 0 or 2^-9.
TEST_P(DeviceConformanceTest, PoolRowsAddsInTheOrderOfThePlaces) {
  const Matrix table = PutFloats(3, 1, {-0x1p15f, 0x1p-10f, 0x1p15f}), y = Zeros(1, 1);
  const Bags bags{{4}, {2, 1, 0, 1}};
  device().PoolRows(table, bags.View(), 0, y);
  EXPECT_THAT(Get(y), ElementsAre(0x1p-10f));
}

TEST_P(DeviceConformanceTest, PoolRowsBackwardAddsTheGradientsOfEachRowAndZeroesTheOthers) {
  const Matrix dtable = PutFloats(4, 2, std::vector<float>(8, 9));
  const Matrix dy = Put(2, 6, {99, 1, 2, 50, 60, 99, 99, 3, 4, 5, 6, 99});
  const Bags bags{{2, 2, 5, 6}, {2, 0, 1, 1, 0, 2}, 2};
  device().PoolRowsBackward(dy, bags.View(), 1, dtable);
  EXPECT_THAT(Get(dtable), ElementsAre(4, 6, 6, 8, 6, 8, 0, 0));
}

TEST_P(DeviceConformanceTest, PoolRowsBackwardSharesTheGradientOfAMean) {
  const Matrix dtable = PutFloats(3, 1, {9, 9, 9}), dy = Put(3, 1, {8, 5, 3});
  const Bags bags{{4, 4, 5}, {2, 0, 2, 2, 2}};
  device().PoolRowsBackward(dy, bags.View(true), 0, dtable);
  EXPECT_THAT(Get(dtable), ElementsAre(2, 0, 9));
}

TEST_P(DeviceConformanceTest, PoolRowsBackwardAddsInTheOrderOfThePlaces) {
  const Matrix dtable = ZeroFloats(2, 1), dy = Put(2, 2, {0x1p15f, 0x1p-10f, -0x1p15f, 0x1p-10f});
  const Bags bags{{1, 2, 3, 4}, {1, 1, 1, 1}, 2};
  device().PoolRowsBackward(dy, bags.View(), 0, dtable);
  EXPECT_THAT(Get(dtable), ElementsAre(0, 0x1p-10f));
}

TEST_P(DeviceConformanceTest, PoolRowsAndItsGradientAgreeWithTheirDefinition) {
  constexpr int64_t kExamples = 67, kFields = 5, kTable = 97, kFirst = 3;
  for (const int64_t dim : {1, 7, 8, 16, 32, 33, 64}) {
    for (const bool mean : {false, true}) {
      SCOPED_TRACE(testing::Message() << "dim " << dim << ", mean " << mean);
      const int64_t columns = kFirst + kFields * dim + 2;
      const Bags bags = SomeBags(kExamples, kFields, kTable);
      const std::vector<float> values = RandomFloats(kTable * dim, 1), dy = Random(kExamples * columns, 2);
      Sums pooled(dy.size()), gradient(values.size());
      ForEachTerm(bags, mean, dim, kFirst, columns, [&](int64_t in_table, int64_t in_y, double factor) {
        pooled.Add(in_y, values[in_table] * factor);
        gradient.Add(in_table, dy[in_y] * factor);
      });
      const Matrix table = PutFloats(kTable, dim, values), y = Zeros(kExamples, columns);
      device().PoolRows(table, bags.View(mean), kFirst, y);
      ExpectSums(Get(y), pooled);
      device().PoolRowsBackward(Put(kExamples, columns, dy), bags.View(mean), kFirst, table);
      ExpectSums(Get(table), gradient);
    }
  }
}

// The operation is linear in the table: <PoolRows(table), dy> = <table, PoolRowsBackward(dy)>.
TEST_P(DeviceConformanceTest, PoolRowsBackwardIsTheTransposeOfPoolRows) {
  constexpr int64_t kExamples = 31, kFields = 26, kTable = 400, kDim = 16, kColumns = kFields * kDim;
  const Bags bags = SomeBags(kExamples, kFields, kTable);
  for (const bool mean : {false, true}) {
    const std::vector<float> values = RandomFloats(kTable * kDim, 1), dy = Random(kExamples * kColumns, 2);
    const Matrix table = PutFloats(kTable, kDim, values), dtable = ZeroFloats(kTable, kDim);
    const Matrix y = Zeros(kExamples, kColumns);
    device().PoolRows(table, bags.View(mean), 0, y);
    device().PoolRowsBackward(Put(kExamples, kColumns, dy), bags.View(mean), 0, dtable);
    ExpectNear({static_cast<float>(Dot(Get(y), dy))}, {Dot(values, Get(dtable))}, {Magnitude(values, Get(dtable))});
  }
}

TEST_P(DeviceConformanceTest, BagsMayBeChangedOncePoolRowsReturned) {
  const Matrix table = PutFloats(2, 1, {1, 10}), y = Zeros(2, 1), dtable = ZeroFloats(2, 1);
  Bags bags{{1, 3}, {1, 0, 1}};
  device().PoolRows(table, bags.View(), 0, y);
  device().PoolRowsBackward(Put(2, 1, {3, 5}), bags.View(), 0, dtable);
  bags.ends = {0, 0};
  bags.places = {0, 0, 0};
  EXPECT_THAT(Get(y), ElementsAre(10, 11));
  EXPECT_THAT(Get(dtable), ElementsAre(5, 8));
}

TEST_P(DeviceConformanceTest, PoolRowsTakesNoExamples) {
  const Matrix table = PutFloats(2, 2, {1, 2, 3, 4});
  const Bags bags{{}, {}, 3};
  device().PoolRows(table, bags.View(), 0, Zeros(0, 6));
  device().PoolRowsBackward(Zeros(0, 6), bags.View(), 0, table);
  EXPECT_THAT(Get(table), Each(0));
}

TEST_P(DeviceConformanceTest, PoolRowsTakesATableWithoutRows) {
  const Matrix table = ZeroFloats(0, 2), y = Put(2, 2, {1, 2, 3, 4});
  const Bags bags{{0, 0}, {}};
  device().PoolRowsBackward(y, bags.View(true), 0, table);
  device().PoolRows(table, bags.View(true), 0, y);
  EXPECT_THAT(Get(y), Each(0));
}

TEST_P(DeviceConformanceTest, DotInteractionGivesTheFirstVectorAndTheProductOfEachPair) {
  const Matrix x = Put(2, 6, {1, 2, 3, 4, 5, 6, 1, 0, 0, 1, 1, 1}), y = Zeros(2, 5);
  device().DotInteraction(2, x, y);
  EXPECT_THAT(Get(y), ElementsAre(1, 2, 11, 17, 39, 1, 0, 0, 1, 1));
}

TEST_P(DeviceConformanceTest, DotInteractionBackwardGivesEachVectorThoseOfItsPairs) {
  const Matrix x = Put(1, 6, {1, 2, 3, 4, 5, 6}), dx = Put(1, 6, std::vector<float>(6, 9));
  device().DotInteractionBackward(2, x, Put(1, 5, {7, 8, 1, 4, 16}), dx);
  EXPECT_THAT(Get(dx), ElementsAre(7 + 3 + 20, 8 + 4 + 24, 1 + 80, 2 + 96, 4 + 48, 8 + 64));
}

TEST_P(DeviceConformanceTest, DotInteractionAgreesWithItsDefinition) {
  for (const Interaction& shape : kInteractions) {
    SCOPED_TRACE(testing::Message() << shape.rows << " rows of " << shape.vectors << "x" << shape.dim);
    const std::vector<float> x = Random(shape.rows * shape.in(), 1);
    Sums want(shape.rows * shape.out());
    for (int64_t i = 0; i < shape.rows * shape.dim; ++i) {
      const int64_t row = i / shape.dim, d = i % shape.dim;
      want.Add(row * shape.out() + d, x[row * shape.in() + d]);
    }
    ForEachPair(shape, [&](int64_t row, int64_t pair, int64_t v, int64_t u) {
      const float* const vectors = x.data() + row * shape.in();
      for (int64_t d = 0; d < shape.dim; ++d) {
        want.Add(row * shape.out() + pair, double{vectors[v * shape.dim + d]} * vectors[u * shape.dim + d]);
      }
    });
    const Matrix y = Zeros(shape.rows, shape.out());
    device().DotInteraction(shape.dim, Put(shape.rows, shape.in(), x), y);
    ExpectSums(Get(y), want);
  }
}

TEST_P(DeviceConformanceTest, DotInteractionBackwardAgreesWithItsDefinition) {
  for (const Interaction& shape : kInteractions) {
    SCOPED_TRACE(testing::Message() << shape.rows << " rows of " << shape.vectors << "x" << shape.dim);
    const std::vector<float> x = Random(shape.rows * shape.in(), 1), dy = Random(shape.rows * shape.out(), 2);
    Sums want(x.size());
    for (int64_t i = 0; i < shape.rows * shape.dim; ++i) {
      const int64_t row = i / shape.dim, d = i % shape.dim;
      want.Add(row * shape.in() + d, dy[row * shape.out() + d]);
    }
    ForEachPair(shape, [&](int64_t row, int64_t pair, int64_t v, int64_t u) {
      const double gradient = dy[row * shape.out() + pair];
      for (int64_t d = 0; d < shape.dim; ++d) {
        const int64_t at_v = row * shape.in() + v * shape.dim + d, at_u = row * shape.in() + u * shape.dim + d;
        want.Add(at_v, gradient * x[at_u]);
        want.Add(at_u, gradient * x[at_v]);
      }
    });
    const Matrix dx = Put(shape.rows, shape.in(), std::vector<float>(x.size(), 9));
    device().DotInteractionBackward(shape.dim, Put(shape.rows, shape.in(), x), Put(shape.rows, shape.out(), dy), dx);
    ExpectSums(Get(dx), want);
  }
}

// The operation f is quadratic, so its derivative at x along v is exactly (f(x + v) - f(x - v)) / 2.
TEST_P(DeviceConformanceTest, DotInteractionBackwardIsTheGradient) {
  for (const Interaction& shape : kInteractions) {
    SCOPED_TRACE(testing::Message() << shape.rows << " rows of " << shape.vectors << "x" << shape.dim);
    const std::vector<float> x = Quarters(shape.rows * shape.in(), 1), along = Quarters(shape.rows * shape.in(), 2);
    const std::vector<float> dy = Random(shape.rows * shape.out(), 3);
    const auto at = [&](float sign) {
      std::vector<float> moved = x;
      for (size_t i = 0; i < x.size(); ++i) moved[i] += sign * along[i];
      const Matrix y = Zeros(shape.rows, shape.out());
      device().DotInteraction(shape.dim, Put(shape.rows, shape.in(), moved), y);
      return Get(y);
    };
    const std::vector<float> forward = at(1), backward = at(-1);
    const Matrix dx = Zeros(shape.rows, shape.in());
    device().DotInteractionBackward(shape.dim, Put(shape.rows, shape.in(), x), Put(shape.rows, shape.out(), dy), dx);
    ExpectNear({static_cast<float>(Dot(Get(dx), along))}, {(Dot(forward, dy) - Dot(backward, dy)) / 2},
               {Magnitude(Get(dx), along) + Magnitude(forward, dy) + Magnitude(backward, dy)});
  }
}

TEST_P(DeviceConformanceTest, DotInteractionKeepsNanWithinTheRowAndPairsThatHaveIt) {
  std::vector<float> x(3 * 4 * 2, 1.0f);
  // The first element of the third vector in the second row.
  x[1 * 8 + 2 * 2] = NAN;
  const Matrix y = Zeros(3, 8);
  device().DotInteraction(2, Put(3, 8, x), y);
  std::vector<bool> nan;
  for (const float value : Get(y)) nan.push_back(std::isnan(value));
  std::vector<bool> want(3 * 8, false);
  // Pairs (2, 0), (2, 1) and (3, 2).
  for (const int64_t pair : {1, 2, 5}) want[8 + 2 + pair] = true;
  EXPECT_EQ(nan, want);
}

TEST_P(DeviceConformanceTest, DotInteractionTakesNoExamples) {
  device().DotInteraction(2, Zeros(0, 6), Zeros(0, 5));
  device().DotInteractionBackward(2, Zeros(0, 6), Zeros(0, 5), Zeros(0, 6));
}

}  // namespace ballast
