// SPDX-License-Identifier: Apache-2.0
#include "worker/device/cpu/normalization.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace ballast {
namespace {

// Rows whose sums are taken in floats before they are added to doubles: few enough for an error of about 1e-6.
constexpr int64_t kBlockRows = 64;

// Calls work(first row, number of rows) for consecutive blocks of all rows.
template <typename Work>
void ForEachBlock(int64_t rows, Work work) {
  for (int64_t first = 0; first < rows; first += kBlockRows) work(first, std::min(kBlockRows, rows - first));
}

// Mean and sum of squared deviations of each column, from blocks of rows combined with equation 2.1 of Chan, Golub
// and LeVeque (1979).
class ColumnMoments {
 public:
  explicit ColumnMoments(int64_t columns) : mean_(columns), squares_(columns), block_(columns), deviations_(columns) {}

  // Adds `rows` consecutive rows.
  void Add(const float* x, int64_t rows) {
    const int64_t n = mean_.size();
    std::fill(block_.begin(), block_.end(), 0.0f);
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < n; ++j) block_[j] += x[i * n + j];
    }
    const float share = 1.0f / static_cast<float>(rows);
    for (float& value : block_) value *= share;
    std::fill(deviations_.begin(), deviations_.end(), 0.0f);
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        const float deviation = x[i * n + j] - block_[j];
        deviations_[j] += deviation * deviation;
      }
    }
    const double total = static_cast<double>(rows_ + rows);
    for (int64_t j = 0; j < n; ++j) {
      const double difference = block_[j] - mean_[j];
      mean_[j] += difference * rows / total;
      squares_[j] += deviations_[j] + difference * difference * rows_ * rows / total;
    }
    rows_ += rows;
  }

  double mean(int64_t column) const { return mean_[column]; }
  double squares(int64_t column) const { return squares_[column]; }

 private:
  int64_t rows_ = 0;
  std::vector<double> mean_, squares_;
  // Values of the latest block.
  std::vector<float> block_, deviations_;
};

// Sums of each column, in floats within a block and in doubles over the blocks.
class ColumnSums {
 public:
  explicit ColumnSums(int64_t columns) : block_(columns), total_(columns) {}

  float* block() { return block_.data(); }

  void EndBlock() {
    for (size_t j = 0; j < block_.size(); ++j) total_[j] += block_[j];
    std::fill(block_.begin(), block_.end(), 0.0f);
  }

  void CopyTo(float* sums) const { std::copy(total_.begin(), total_.end(), sums); }

 private:
  std::vector<float> block_;
  std::vector<double> total_;
};

// y = (x - mean) * factor * scale + offset.
void Normalize(const Rows& in, const float* mean, const float* factor, const ScaleAndOffset& affine, float* y) {
  const int64_t n = in.columns;
  std::vector<float> slope(n);
  for (int64_t j = 0; j < n; ++j) slope[j] = factor[j] * affine.scale[j];
  const float* const x = in.x;
  for (int64_t i = 0; i < in.rows; ++i) {
    for (int64_t j = 0; j < n; ++j) y[i * n + j] = (x[i * n + j] - mean[j]) * slope[j] + affine.offset[j];
  }
}

struct RowStatistics {
  float mean;
  float inverse_stddev;
};

RowStatistics StatisticsOfRow(const float* x, int64_t columns, float epsilon) {
  double sum = 0;
  for (int64_t j = 0; j < columns; ++j) sum += x[j];
  const double mean = sum / columns;
  double squares = 0;
  for (int64_t j = 0; j < columns; ++j) squares += (x[j] - mean) * (x[j] - mean);
  return {static_cast<float>(mean), static_cast<float>(1.0 / std::sqrt(squares / columns + epsilon))};
}

}  // namespace

void BatchNorm(float epsilon, const Rows& in, const ScaleAndOffset& affine, const Statistics& saved,
               const RunningStatistics& running, float* y) {
  if (in.rows == 0) {
    std::fill_n(saved.mean, in.columns, 0.0f);
    std::fill_n(saved.spread, in.columns, 0.0f);
    return;
  }
  ColumnMoments moments(in.columns);
  ForEachBlock(in.rows, [&](int64_t first, int64_t rows) { moments.Add(in.x + first * in.columns, rows); });
  const double unbiased = in.rows > 1 ? static_cast<double>(in.rows) / (in.rows - 1) : 1.0;
  for (int64_t j = 0; j < in.columns; ++j) {
    const double variance = moments.squares(j) / in.rows;
    saved.mean[j] = static_cast<float>(moments.mean(j));
    saved.spread[j] = static_cast<float>(1.0 / std::sqrt(variance + epsilon));
    float& mean = running.values.mean[j];
    mean += running.momentum * (saved.mean[j] - mean);
    float& spread = running.values.spread[j];
    spread += running.momentum * (static_cast<float>(variance * unbiased) - spread);
  }
  Normalize(in, saved.mean, saved.spread, affine, y);
}

void BatchNormInference(float epsilon, const Rows& in, const ScaleAndOffset& affine, const Statistics& running,
                        float* y) {
  std::vector<float> inverse_stddev(in.columns);
  for (int64_t j = 0; j < in.columns; ++j) {
    inverse_stddev[j] = static_cast<float>(1.0 / std::sqrt(static_cast<double>(running.spread[j]) + epsilon));
  }
  Normalize(in, running.mean, inverse_stddev.data(), affine, y);
}

void BatchNormBackward(const Rows& in, const float* dy, const ScaleAndOffset& affine, const Statistics& saved,
                       const ScaleAndOffsetGradient& gradient, float* dx) {
  const int64_t n = in.columns;
  const float* const x = in.x;
  ColumnSums scale(n), offset(n);
  ForEachBlock(in.rows, [&](int64_t first, int64_t rows) {
    float* const scale_sum = scale.block();
    float* const offset_sum = offset.block();
    for (int64_t i = first; i < first + rows; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        offset_sum[j] += dy[i * n + j];
        scale_sum[j] += dy[i * n + j] * ((x[i * n + j] - saved.mean[j]) * saved.spread[j]);
      }
    }
    scale.EndBlock();
    offset.EndBlock();
  });
  scale.CopyTo(gradient.scale);
  offset.CopyTo(gradient.offset);
  if (dx == nullptr || in.rows == 0) return;
  // dx = scale / stddev * (dy - mean of dy - normalized x * mean of (dy * normalized x)).
  std::vector<float> slope(n), mean_dy(n), lean(n);
  const float share = 1.0f / static_cast<float>(in.rows);
  for (int64_t j = 0; j < n; ++j) {
    slope[j] = affine.scale[j] * saved.spread[j];
    mean_dy[j] = gradient.offset[j] * share;
    lean[j] = gradient.scale[j] * share * saved.spread[j];
  }
  for (int64_t i = 0; i < in.rows; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      dx[i * n + j] = slope[j] * (dy[i * n + j] - mean_dy[j] - (x[i * n + j] - saved.mean[j]) * lean[j]);
    }
  }
}

void LayerNorm(float epsilon, const Rows& in, const ScaleAndOffset& affine, float* y) {
  const float* x = in.x;
  for (int64_t i = 0; i < in.rows; ++i, x += in.columns, y += in.columns) {
    const RowStatistics row = StatisticsOfRow(x, in.columns, epsilon);
    for (int64_t j = 0; j < in.columns; ++j) {
      y[j] = (x[j] - row.mean) * row.inverse_stddev * affine.scale[j] + affine.offset[j];
    }
  }
}

void LayerNormBackward(float epsilon, const Rows& in, const float* dy, const ScaleAndOffset& affine,
                       const ScaleAndOffsetGradient& gradient, float* dx) {
  const int64_t n = in.columns;
  ColumnSums scale(n), offset(n);
  ForEachBlock(in.rows, [&](int64_t first, int64_t rows) {
    float* const scale_sum = scale.block();
    float* const offset_sum = offset.block();
    for (int64_t i = first; i < first + rows; ++i) {
      const float* const x = in.x + i * n;
      const float* const d = dy + i * n;
      const RowStatistics row = StatisticsOfRow(x, n, epsilon);
      // With g = dy * scale, the gradient with respect to the normalized x: sums of g and of g * normalized x.
      double sum = 0, product = 0;
      for (int64_t j = 0; j < n; ++j) {
        const float normalized = (x[j] - row.mean) * row.inverse_stddev;
        offset_sum[j] += d[j];
        scale_sum[j] += d[j] * normalized;
        sum += d[j] * affine.scale[j];
        product += d[j] * affine.scale[j] * normalized;
      }
      if (dx == nullptr) continue;
      const float mean = static_cast<float>(sum / n), lean = static_cast<float>(product / n);
      for (int64_t j = 0; j < n; ++j) {
        const float normalized = (x[j] - row.mean) * row.inverse_stddev;
        dx[i * n + j] = row.inverse_stddev * (d[j] * affine.scale[j] - mean - normalized * lean);
      }
    }
    scale.EndBlock();
    offset.EndBlock();
  });
  scale.CopyTo(gradient.scale);
  offset.CopyTo(gradient.offset);
}

}  // namespace ballast
