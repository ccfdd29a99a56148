// SPDX-License-Identifier: Apache-2.0
#include <optional>

#include "worker/device/cuda/cuda_status.h"
#include "worker/device/cuda/gemm.h"
#include "worker/device/cuda/kernels/half_math.h"

namespace ballast {
namespace {

// A factor of a product, or its copy in 16 bits.
struct EmulatedFactor {
  const float* values;
  const uint16_t* halves;
  HalfType type;
  bool transposed;
  int64_t rows, columns;

  double At(int64_t i, int64_t j) const {
    const int64_t place = transposed ? j * rows + i : i * columns + j;
    if (halves == nullptr) return values[place];
    return type == HalfType::kBf16 ? FromBf16(halves[place]) : FromFp16(halves[place]);
  }
};

void Compute(const GemmCall& call, const EmulatedFactor& a, const EmulatedFactor& b) {
  for (int64_t i = 0; i < call.rows; ++i) {
    for (int64_t j = 0; j < call.columns; ++j) {
      double sum = 0;
      for (int64_t k = 0; k < call.depth; ++k) sum += a.At(i, k) * b.At(k, j);
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
  explicit EmulatedGemm(HalfCopies* halves) : halves_(*halves) {}

  std::string Describe() const override { return "emulated"; }

  int64_t workspace_bytes() const override { return 0; }

  // TF32 is computed as FP32.
  void SetPrecision(Precision precision) override {
    half_.reset();
    if (precision == Precision::kBf16) half_ = HalfType::kBf16;
    if (precision == Precision::kFp16) half_ = HalfType::kFp16;
  }

  absl::Status Multiply(cudaStream_t stream, const GemmCall& call) override {
    EmulatedFactor a = {call.a, nullptr, HalfType::kBf16, call.a_transposed, call.rows, call.depth};
    EmulatedFactor b = {call.b, nullptr, HalfType::kBf16, call.b_transposed, call.depth, call.columns};
    // Until the product is in the stream.
    std::optional<HalfCopies::Copy> copies[2];
    if (half_.has_value()) {
      for (EmulatedFactor* factor : {&a, &b}) {
        absl::StatusOr<HalfCopies::Copy> copy =
            halves_.Get(stream, *half_, factor->values, factor->rows * factor->columns);
        if (!copy.ok()) return copy.status();
        factor->halves = copy->data();
        factor->type = *half_;
        copies[factor == &b] = *std::move(copy);
      }
    }
    return CudaStatus(emulator::Enqueue("cublasLtMatmul", stream, [call, a, b] { Compute(call, a, b); }),
                      "cublasLtMatmul");
  }

 private:
  HalfCopies& halves_;
  std::optional<HalfType> half_;
};

}  // namespace

absl::Status CheckGemmLibrary() { return absl::OkStatus(); }

absl::StatusOr<std::unique_ptr<Gemm>> MakeGemm(const CudaOptions&, const std::string&, MemoryPool*,
                                               HalfCopies* halves) {
  return std::make_unique<EmulatedGemm>(halves);
}

}  // namespace ballast
