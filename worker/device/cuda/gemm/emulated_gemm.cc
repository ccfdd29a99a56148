// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <optional>
#include <vector>

#include "worker/device/cuda/gemm/gemm.h"
#include "worker/device/cuda/kernels/half_math.h"
#include "worker/device/cuda/stream/cuda_status.h"

namespace ballast {
namespace {

// A factor of a product, or its copy in 16 bits.
struct EmulatedFactor {
  ConstElements values;
  const uint16_t* halves;
  HalfType type;
  bool transposed;
  int64_t rows, columns;
  // Drops the bits that a TF32 does not have.
  bool tf32;

  // All values, by rows.
  std::vector<float> Values() const {
    std::vector<float> all;
    all.reserve(rows * columns);
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < columns; ++j) all.push_back(At(i, j));
    }
    return all;
  }

 private:
  float At(int64_t i, int64_t j) const {
    const int64_t place = transposed ? j * rows + i : i * columns + j;
    if (halves == nullptr) {
      const float value = values.As<float>()[place];
      return tf32 ? FloatOf(BitsOf(value) & 0xffffe000u) : value;
    }
    return type == HalfType::kBf16 ? FromBf16(halves[place]) : FromFp16(halves[place]);
  }
};

template <typename T>
void Compute(const GemmCall& call, const EmulatedFactor& a, const EmulatedFactor& b) {
  const std::vector<float> first = a.Values(), second = b.Values();
  std::vector<double> sums(call.columns);
  for (int64_t i = 0; i < call.rows; ++i) {
    std::fill(sums.begin(), sums.end(), 0.0);
    // By rows of the second factor, so that the loop becomes vectors.
    for (int64_t k = 0; k < call.depth; ++k) {
      const double factor = first[i * call.depth + k];
      const float* const row = second.data() + k * call.columns;
      for (int64_t j = 0; j < call.columns; ++j) sums[j] += factor * row[j];
    }
    for (int64_t j = 0; j < call.columns; ++j) {
      T& c = call.c.As<T>()[i * call.columns + j];
      float value = static_cast<float>(call.alpha * sums[j]);
      if (call.beta != 0.0f) value += call.beta * static_cast<float>(c);
      if (call.bias != nullptr) value += call.bias[j];
      c = static_cast<T>(call.relu && value < 0.0f ? 0.0f : value);
    }
  }
}

// Replaces cuBLAS, in stream order.
class EmulatedGemm : public Gemm {
 public:
  explicit EmulatedGemm(HalfCopies* halves) : halves_(*halves) {}

  std::string Describe() const override { return "emulated"; }

  int64_t workspace_bytes() const override { return 0; }

  void SetPrecision(Precision precision) override {
    tf32_ = precision == Precision::kTf32;
    half_.reset();
    if (precision == Precision::kBf16) half_ = HalfType::kBf16;
    if (precision == Precision::kFp16) half_ = HalfType::kFp16;
  }

  absl::Status Multiply(cudaStream_t stream, const GemmCall& call) override {
    EmulatedFactor a = {call.a, nullptr, HalfType::kBf16, call.a_transposed, call.rows, call.depth, tf32_};
    EmulatedFactor b = {call.b, nullptr, HalfType::kBf16, call.b_transposed, call.depth, call.columns, tf32_};
    // Held until the product is in the stream.
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
    const cudaError_t error = WithType(call.c.type, [&](auto type) {
      return emulator::Enqueue("cublasLtMatmul", stream, [call, a, b] { Compute<decltype(type)>(call, a, b); });
    });
    return CudaStatus(error, "cublasLtMatmul");
  }

 private:
  HalfCopies& halves_;
  bool tf32_ = false;
  std::optional<HalfType> half_;
};

}  // namespace

absl::Status CheckGemmLibrary() { return absl::OkStatus(); }

absl::StatusOr<std::unique_ptr<Gemm>> MakeGemm(const CudaOptions&, const std::string&, MemoryPool*,
                                               HalfCopies* halves) {
  return std::make_unique<EmulatedGemm>(halves);
}

}  // namespace ballast
