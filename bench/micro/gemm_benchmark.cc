// SPDX-License-Identifier: Apache-2.0
// Single-precision products of the CPU device, OpenBLAS and oneDNN with the shapes of a dense layer's forward (x
// W^T), weight gradient (dy^T x) and input gradient (dy W): all products of a training step of a small and of a wide
// network, and each one of a wide layer. Prints FLOP/s. Quoted in docs/decisions/0002-openblas-for-the-cpu-device.md
// and 0008-own-kernels-for-small-batches.md.
#include <benchmark/benchmark.h>
#include <cblas.h>
#include <dnnl.h>
#include <omp.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "worker/device/cpu/cpu_device.h"

namespace ballast {
namespace {

// A product with m by n sums of k terms.
struct Gemm {
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

Gemm GemmOf(Pass pass, int batch, Dense dense) {
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

// A device with memory for any of the measured products.
struct Memory {
  std::unique_ptr<Device> device;
  std::unique_ptr<Buffer> a, b, c;
};

std::unique_ptr<Buffer> Allocate(Device& device, int64_t elements, float value) {
  std::unique_ptr<Buffer> buffer = *device.Allocate(elements);
  std::fill(buffer->host().begin(), buffer->host().end(), value);
  return buffer;
}

void MultiplyOnDevice(const Gemm& p, Memory& memory) {
  const Matrix a{memory.a.get(), p.transpose_a ? p.k : p.m, p.transpose_a ? p.m : p.k};
  const Matrix b{memory.b.get(), p.transpose_b ? p.n : p.k, p.transpose_b ? p.k : p.n};
  memory.device->Multiply({a, p.transpose_a}, {b, p.transpose_b}, 1.0f, 0.0f, {memory.c.get(), p.m, p.n});
}

void MultiplyWithOpenBlas(const Gemm& p, Memory& memory) {
  cblas_sgemm(CblasRowMajor, p.transpose_a ? CblasTrans : CblasNoTrans, p.transpose_b ? CblasTrans : CblasNoTrans, p.m,
              p.n, p.k, 1.0f, memory.a->host().data(), p.transpose_a ? p.m : p.k, memory.b->host().data(),
              p.transpose_b ? p.k : p.n, 0.0f, memory.c->host().data(), p.n);
}

void MultiplyWithOneDnn(const Gemm& p, Memory& memory) {
  dnnl_sgemm(p.transpose_a ? 'T' : 'N', p.transpose_b ? 'T' : 'N', p.m, p.n, p.k, 1.0f, memory.a->host().data(),
             p.transpose_a ? p.m : p.k, memory.b->host().data(), p.transpose_b ? p.k : p.n, 0.0f,
             memory.c->host().data(), p.n);
}

using Multiply = void (*)(const Gemm&, Memory&);

void Measure(benchmark::State& state, Multiply multiply, const std::vector<Gemm>& products) {
  const int threads = static_cast<int>(state.range(1));
  Memory memory{CreateCpuDevice(threads), nullptr, nullptr, nullptr};
  openblas_set_num_threads(threads);
  omp_set_num_threads(threads);
  int64_t largest = 0;
  double flops = 0;
  for (const Gemm& p : products) {
    flops += 2.0 * p.m * p.n * p.k;
    largest = std::max({largest, int64_t{p.m} * p.k, int64_t{p.k} * p.n, int64_t{p.m} * p.n});
  }
  memory.a = Allocate(*memory.device, largest, 0.5f);
  memory.b = Allocate(*memory.device, largest, 0.25f);
  memory.c = Allocate(*memory.device, largest, 0.0f);
  for (auto _ : state) {
    for (const Gemm& p : products) multiply(p, memory);
    benchmark::ClobberMemory();
  }
  state.counters["FLOP/s"] = benchmark::Counter(flops, benchmark::Counter::kIsIterationInvariantRate);
}

// The first layer needs no input gradient.
std::vector<Gemm> TrainingStep(int batch, const std::vector<Dense>& layers) {
  std::vector<Gemm> products;
  for (const Dense& layer : layers) {
    for (Pass pass : {Pass::kForward, Pass::kWeightGradient, Pass::kInputGradient}) {
      if (pass == Pass::kInputGradient && products.size() < 3) continue;
      products.push_back(GemmOf(pass, batch, layer));
    }
  }
  return products;
}

void Register(const std::string& library, Multiply multiply) {
  const auto add = [&](const std::string& name, const auto& products_at) {
    benchmark::RegisterBenchmark((library + "/" + name).c_str(),
                                 [multiply, products_at](benchmark::State& state) {
                                   Measure(state, multiply, products_at(static_cast<int>(state.range(0))));
                                 })
        ->ArgNames({"batch", "threads"})
        ->ArgsProduct({{8, 16, 32, 64, 128}, {1, 2}})
        ->UseRealTime()
        ->Unit(benchmark::kMillisecond);
  };
  const std::vector<std::pair<std::string, std::vector<Dense>>> networks = {
      {"784-512-256-10", {{784, 512}, {512, 256}, {256, 10}}},
      {"784-4096-4096-10", {{784, 4096}, {4096, 4096}, {4096, 10}}},
  };
  for (const auto& [name, layers] : networks) {
    add(name, [layers = layers](int batch) { return TrainingStep(batch, layers); });
  }
  const std::vector<std::pair<std::string, Pass>> passes = {{"forward", Pass::kForward},
                                                            {"weight gradient", Pass::kWeightGradient},
                                                            {"input gradient", Pass::kInputGradient}};
  for (const auto& [name, pass] : passes) {
    add("4096x4096 " + name, [pass = pass](int batch) { return std::vector<Gemm>{GemmOf(pass, batch, {4096, 4096})}; });
  }
}

}  // namespace
}  // namespace ballast

int main(int argc, char** argv) {
  ballast::Register("ballast", ballast::MultiplyOnDevice);
  ballast::Register("openblas", ballast::MultiplyWithOpenBlas);
  ballast::Register("onednn", ballast::MultiplyWithOneDnn);
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
}
