// SPDX-License-Identifier: Apache-2.0
// Updates of rows in the cache by each kind of optimizer, 16 rows a call, and initial values of rows, on one thread.
// "per_row" is the time of a row's update, or of its values. Rows have different update numbers, as in a table.
#include <benchmark/benchmark.h>

#include <string>
#include <vector>

#include "common/job/kind_names.h"
#include "common/tables/row_initializer.h"
#include "server/weights/optimizers/row_optimizer.h"

namespace ballast {
namespace {

// 256 rows: at dim 16, weights, slots and gradients take at most 64 KiB.
constexpr size_t kRows = 256;
constexpr size_t kBatch = 16;
constexpr int kDims[] = {8, 16, 64, 128};

// An optimizer of that kind, with numbers that are valid for all.
v1::Optimizer Configure(const std::string& kind) {
  v1::Optimizer config;
  const google::protobuf::FieldDescriptor* const field = v1::Optimizer::descriptor()->FindFieldByName(kind);
  google::protobuf::Message& rule = *config.GetReflection()->MutableMessage(&config, field);
  for (const auto& [name, value] : {std::pair("learning_rate", 1e-4f), std::pair("momentum", 0.9f)}) {
    const google::protobuf::FieldDescriptor* const number = field->message_type()->FindFieldByName(name);
    if (number != nullptr) rule.GetReflection()->SetFloat(&rule, number, value);
  }
  return config;
}

void ReportRows(benchmark::State& state) {
  state.counters["per_row"] =
      benchmark::Counter(kRows, benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}

void UpdateRows(benchmark::State& state, v1::Optimizer config, int dim) {
  const auto optimizer = *MakeRowOptimizer(config);
  const size_t floats = dim + optimizer->SlotFloats(dim);
  std::vector<float> rows(kRows * floats), gradients(kRows * dim);
  for (size_t i = 0; i < gradients.size(); ++i) gradients[i] = 0.01f * static_cast<float>(i % 201) - 1.0f;
  std::vector<RowUpdate> updates;
  for (size_t i = 0; i < kRows; ++i) {
    updates.push_back(
        {rows.data() + i * floats, gradients.data() + i * dim, static_cast<uint32_t>(1 + i * i % 20011), 1e-4f});
  }
  for (auto _ : state) {
    for (size_t i = 0; i < kRows; i += kBatch) {
      optimizer->Apply(dim, 1, absl::MakeConstSpan(updates).subspan(i, kBatch));
    }
    benchmark::ClobberMemory();
  }
  ReportRows(state);
}

void FillRows(benchmark::State& state, v1::Initializer config, int dim) {
  const RowInitializer initializer = *RowInitializer::Make(config, 1, "table");
  std::vector<float> rows(kRows * dim);
  for (auto _ : state) {
    for (size_t i = 0; i < kRows; ++i) initializer.Fill(i, absl::MakeSpan(rows).subspan(i * dim, dim));
    benchmark::ClobberMemory();
  }
  ReportRows(state);
}

void RegisterBenchmarks() {
  for (const std::string& kind : KindNames(*v1::Optimizer::descriptor(), v1::PARAMETER_KIND_TABLE)) {
    for (int dim : kDims) {
      v1::Optimizer config = Configure(kind);
      benchmark::RegisterBenchmark((kind + "/" + std::to_string(dim)).c_str(), UpdateRows, config, dim);
      if (kind != "sgd") continue;
      config.set_clip_norm(1);
      benchmark::RegisterBenchmark((kind + "_clipped/" + std::to_string(dim)).c_str(), UpdateRows, config, dim);
    }
  }
  for (int dim : kDims) {
    v1::Initializer config;
    config.mutable_uniform()->set_high(1);
    benchmark::RegisterBenchmark(("initial_uniform/" + std::to_string(dim)).c_str(), FillRows, config, dim);
    config.mutable_normal()->set_stddev(1);
    benchmark::RegisterBenchmark(("initial_normal/" + std::to_string(dim)).c_str(), FillRows, config, dim);
  }
}

}  // namespace
}  // namespace ballast

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  ballast::RegisterBenchmarks();
  benchmark::RunSpecifiedBenchmarks();
}
