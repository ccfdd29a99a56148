// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <memory>
#include <type_traits>

#include "ballast/v1/tensor.pb.h"
#include "common/simd/instruction_set.h"
#include "server/weights/optimizers/gradient_filter.h"
#include "server/weights/optimizers/optimizer.h"
#include "server/weights/optimizers/row_optimizer.h"
#include "server/weights/optimizers/schedule.h"

namespace ballast {

// A row and its gradient during one update.
struct RowArrays {
  size_t dim;
  // Element i's gradient for the rule is filter(gradient[i], weights[i]).
  const float* gradient;
  GradientFilter::Element filter;
  float* weights;
  // Arrays of `dim` floats, then floats for the row as a whole.
  float* slots;
};

// The mean of the squares of the gradient's elements, |g|^2 / dim.
ABSL_ATTRIBUTE_ALWAYS_INLINE inline float MeanSquare(const RowArrays& row) {
  SquareSum squares;
  const auto take = [&](size_t i, size_t lane) ABSL_ATTRIBUTE_ALWAYS_INLINE {
    squares.Take(lane, row.filter(row.gradient[i], row.weights[i]));
  };
  SquareSum::ForEachLane(0, row.dim, take);
  return static_cast<float>(squares.Sum() / static_cast<double>(row.dim));
}

// Applies a rule to rows, which it takes 16 at a time through an instruction set's loop. A Rule has
//   kNeedsRate, kDecaysWeightsItself    constants, as for ElementwiseOptimizer;
//   Rule(const v1::Optimizer&)          its hyperparameters, learning_rate among them;
//   SlotFloats(dim)                     see RowOptimizer;
//   For(const OptimizerStep&)           a value for one update of a row, whose operator()(const RowArrays&) changes the
//                                       row and is ABSL_ATTRIBUTE_ALWAYS_INLINE.
// A rule whose operator() also takes a float gets the row's MeanSquare. Those of all rows are computed first: each is a
// long chain of sums, and the processor works on those of several rows at once.
// Thread safety: immutable.
template <typename Rule>
class RowLoop : public RowOptimizer {
 public:
  explicit RowLoop(const v1::Optimizer& config)
      : rule_(config),
        schedule_(config.schedule(), rule_.learning_rate),
        filter_(config, Rule::kDecaysWeightsItself ? 0.0f : config.weight_decay()) {}

  int SlotFloats(int dim) const override { return Rule::SlotFloats(dim); }
  float LearningRate(uint64_t update, std::optional<double> position) const override {
    return schedule_.LearningRate(update - 1, position);
  }

  void Apply(int dim, float gradient_scale, absl::Span<const RowUpdate> rows) const override {
    Entry entries[kBatch];
    while (!rows.empty()) {
      const absl::Span<const RowUpdate> batch = rows.subspan(0, kBatch);
      size_t count = 0;
      for (const RowUpdate& row : batch) {
        if (Rule::kNeedsRate && !(row.learning_rate > 0)) continue;
        entries[count++] = {rule_.For({row.update, row.learning_rate, gradient_scale}), row.row, row.gradient};
      }
      RunLoop(Loop{filter_, gradient_scale, static_cast<size_t>(dim), entries, count});
      rows.remove_prefix(batch.size());
    }
  }

 private:
  static constexpr size_t kBatch = 16;

  using Element = decltype(std::declval<const Rule>().For(OptimizerStep()));
  struct Entry {
    Element element;
    float* row;
    const float* gradient;
  };

  struct Loop {
    GradientFilter filter;
    float gradient_scale;
    size_t dim;
    const Entry* entries;
    size_t count;

    ABSL_ATTRIBUTE_ALWAYS_INLINE RowArrays Arrays(size_t i) const {
      const Entry entry = entries[i];
      return {dim, entry.gradient, filter.ForRow(gradient_scale, entry.gradient, dim), entry.row, entry.row + dim};
    }

    ABSL_ATTRIBUTE_ALWAYS_INLINE void operator()() const {
      if constexpr (std::is_invocable_v<const Element&, const RowArrays&, float>) {
        GradientFilter::Element filters[kBatch];
        float mean_squares[kBatch];
        for (size_t i = 0; i < count; ++i) {
          const RowArrays row = Arrays(i);
          filters[i] = row.filter;
          mean_squares[i] = MeanSquare(row);
        }
        for (size_t i = 0; i < count; ++i) {
          const Entry entry = entries[i];
          entry.element(RowArrays{dim, entry.gradient, filters[i], entry.row, entry.row + dim}, mean_squares[i]);
        }
      } else {
        for (size_t i = 0; i < count; ++i) entries[i].element(Arrays(i));
      }
    }
  };

  const Rule rule_;
  const Schedule schedule_;
  const GradientFilter filter_;
};

template <typename Rule>
std::unique_ptr<RowOptimizer> MakeRowLoop(const v1::Optimizer& config) {
  return std::make_unique<RowLoop<Rule>>(config);
}

}  // namespace ballast
