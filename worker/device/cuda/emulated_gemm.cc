// SPDX-License-Identifier: Apache-2.0
#include "worker/device/cuda/cuda_status.h"
#include "worker/device/cuda/gemm.h"

namespace ballast {
namespace {

float At(const float* m, bool transposed, int64_t i, int64_t j, int64_t rows, int64_t columns) {
  return transposed ? m[j * rows + i] : m[i * columns + j];
}

void Compute(const GemmCall& call) {
  for (int64_t i = 0; i < call.rows; ++i) {
    for (int64_t j = 0; j < call.columns; ++j) {
      double sum = 0;
      for (int64_t k = 0; k < call.depth; ++k) {
        sum += static_cast<double>(At(call.a, call.a_transposed, i, k, call.rows, call.depth)) *
               At(call.b, call.b_transposed, k, j, call.depth, call.columns);
      }
      float& c = call.c[i * call.columns + j];
      float value = static_cast<float>(call.alpha * sum);
      if (call.beta != 0.0f) value += call.beta * c;
      if (call.bias != nullptr) value += call.bias[j];
      c = call.relu && value < 0.0f ? 0.0f : value;
    }
  }
}

// Stands in for cuBLAS, in stream order.
class EmulatedGemm : public Gemm {
 public:
  std::string Describe() const override { return "emulated"; }

  int64_t workspace_bytes() const override { return 0; }

  // Multiplies exactly, whatever is asked.
  void SetPrecision(Precision) override {}

  absl::Status Multiply(cudaStream_t stream, const GemmCall& call) override {
    return CudaStatus(emulator::Enqueue("cublasLtMatmul", stream, [call] { Compute(call); }), "cublasLtMatmul");
  }
};

}  // namespace

absl::Status CheckGemmLibrary() { return absl::OkStatus(); }

absl::StatusOr<std::unique_ptr<Gemm>> MakeGemm(const CudaOptions&, const std::string&, MemoryPool*) {
  return std::make_unique<EmulatedGemm>();
}

}  // namespace ballast
