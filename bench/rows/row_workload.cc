// SPDX-License-Identifier: Apache-2.0
#include "bench/rows/row_workload.h"

#include <algorithm>
#include <numeric>

#include "absl/functional/function_ref.h"
#include "ballast/v1/tensor.pb.h"
#include "bench/rows/random_lines.h"
#include "bench/rows/row_sampler.h"

namespace ballast {
namespace {

constexpr float kLearningRate = 0.01f;

std::unique_ptr<RowOptimizer> MakeAdagrad() {
  v1::Optimizer config;
  config.mutable_row_wise_adagrad()->set_learning_rate(kLearningRate);
  return *MakeRowOptimizer(config);
}

double Time(absl::FunctionRef<void()> call) {
  const double start = ThreadCpuSeconds();
  call();
  return ThreadCpuSeconds() - start;
}

}  // namespace

void ZeroRows::Fill(uint64_t, absl::Span<float> weights) const { std::fill(weights.begin(), weights.end(), 0.0f); }

RowWorkload::RowWorkload(int dim, size_t most_rows)
    : most_rows_(most_rows),
      optimizer_(MakeAdagrad()),
      gradients_(most_rows * dim, 0.01f),
      values_(most_rows * dim),
      versions_(most_rows) {}

double RowWorkload::Pull(RowStore& store, absl::Span<const uint64_t> hashes) {
  return Time([&] { store.Pull({hashes, &initial_, values_.data(), versions_.data()}); });
}

double RowWorkload::Push(RowStore& store, absl::Span<const uint64_t> hashes) {
  const BatchPush push = {hashes,    gradients_.data(), {},       1, kLearningRate, /*scale_by_staleness=*/false,
                          {++step_}, optimizer_.get(),  &initial_};
  return Time([&] { store.Push(push); });
}

std::vector<double> RowWorkload::Fill(RowStore& store, uint64_t rows) {
  std::vector<double> times;
  for (uint64_t first = 0; first < rows; first += most_rows_) {
    std::vector<uint64_t> ids(std::min<uint64_t>(most_rows_, rows - first));
    std::iota(ids.begin(), ids.end(), first);
    times.push_back(Push(store, SortedHashes(std::move(ids))));
  }
  return times;
}

}  // namespace ballast
