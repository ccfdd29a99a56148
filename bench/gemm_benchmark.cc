// SPDX-License-Identifier: Apache-2.0
// Single-precision GEMM of OpenBLAS and oneDNN at the shapes of a dense layer's forward (x W^T),
// weight gradient (dy^T x) and input gradient (dy W), for a small and a wide network. Prints
// FLOP/s. docs/decisions/0002-openblas-for-the-cpu-device.md quotes it.
#include <benchmark/benchmark.h>
#include <cblas.h>
#include <dnnl.h>
#include <omp.h>

#include <cstdint>
#include <string>
#include <vector>

namespace ballast {
namespace {

struct Product {
  bool transpose_a;
  bool transpose_b;
  int m;
  int n;
  int k;
};

struct Dense {
  int inputs;
  int units;
};

enum class Pass { kForward, kWeightGradient, kInputGradient };

Product ProductOf(Pass pass, int batch, Dense dense) {
  switch (pass) {
    case Pass::kForward:
      return {false, true, batch, dense.units, dense.inputs};
    case Pass::kWeightGradient:
      return {true, false, dense.units, dense.inputs, batch};
    case Pass::kInputGradient:
      break;
  }
  return {false, false, batch, dense.inputs, dense.units};
}

void MultiplyWithOpenBlas(const Product& p, const float* a, const float* b, float* c) {
  cblas_sgemm(CblasRowMajor, p.transpose_a ? CblasTrans : CblasNoTrans, p.transpose_b ? CblasTrans : CblasNoTrans, p.m,
              p.n, p.k, 1.0f, a, p.transpose_a ? p.m : p.k, b, p.transpose_b ? p.k : p.n, 0.0f, c, p.n);
}

void MultiplyWithOneDnn(const Product& p, const float* a, const float* b, float* c) {
  dnnl_sgemm(p.transpose_a ? 'T' : 'N', p.transpose_b ? 'T' : 'N', p.m, p.n, p.k, 1.0f, a, p.transpose_a ? p.m : p.k, b,
             p.transpose_b ? p.k : p.n, 0.0f, c, p.n);
}

using Multiply = void (*)(const Product&, const float*, const float*, float*);

// One training step's products of a whole network; the first layer needs no input gradient.
void TrainingStep(benchmark::State& state, Multiply multiply, std::vector<Dense> layers) {
  const int batch = static_cast<int>(state.range(0));
  const int threads = static_cast<int>(state.range(1));
  openblas_set_num_threads(threads);
  omp_set_num_threads(threads);

  std::vector<Product> products;
  size_t largest = 0;
  double flops = 0;
  for (const Dense& layer : layers) {
    for (Pass pass : {Pass::kForward, Pass::kWeightGradient, Pass::kInputGradient}) {
      if (pass == Pass::kInputGradient && products.size() < 3) continue;
      const Product p = ProductOf(pass, batch, layer);
      products.push_back(p);
      flops += 2.0 * p.m * p.n * p.k;
      for (int64_t size : {int64_t{p.m} * p.k, int64_t{p.k} * p.n, int64_t{p.m} * p.n}) {
        largest = std::max(largest, static_cast<size_t>(size));
      }
    }
  }
  const std::vector<float> a(largest, 0.5f), b(largest, 0.25f);
  std::vector<float> c(largest);
  for (auto _ : state) {
    for (const Product& p : products) multiply(p, a.data(), b.data(), c.data());
    benchmark::DoNotOptimize(c.data());
  }
  state.counters["FLOP/s"] = benchmark::Counter(flops, benchmark::Counter::kIsIterationInvariantRate);
}

void Register(const std::string& library, Multiply multiply) {
  const std::vector<std::pair<std::string, std::vector<Dense>>> networks = {
      {"784-512-256-10", {{784, 512}, {512, 256}, {256, 10}}},
      {"784-4096-4096-10", {{784, 4096}, {4096, 4096}, {4096, 10}}},
  };
  for (const auto& [name, layers] : networks) {
    benchmark::RegisterBenchmark(
        (library + "/" + name).c_str(),
        [multiply, layers = layers](benchmark::State& state) { TrainingStep(state, multiply, layers); })
        ->ArgNames({"batch", "threads"})
        ->ArgsProduct({{64, 128}, {1, 2}})
        ->UseRealTime()
        ->Unit(benchmark::kMillisecond);
  }
}

}  // namespace
}  // namespace ballast

int main(int argc, char** argv) {
  ballast::Register("openblas", ballast::MultiplyWithOpenBlas);
  ballast::Register("onednn", ballast::MultiplyWithOneDnn);
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
}
