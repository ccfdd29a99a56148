// SPDX-License-Identifier: Apache-2.0
#include "worker/device/cuda/kernels/images/narrow_convolution.h"

#include <memory>
#include <string>
#include <utility>

#include "worker/device/cuda/convolution/convolution.h"
#include "worker/device/cuda/memory/memory_pool.h"
#include "worker/device/cuda/stream/cuda_status.h"

namespace ballast {
namespace {

class NarrowConvolution : public CudaConvolution {
 public:
  NarrowConvolution(MemoryPool* memory, std::unique_ptr<CudaConvolution> otherwise)
      : memory_(*memory), otherwise_(std::move(otherwise)) {}

  std::string Describe() const override { return otherwise_->Describe(); }
  absl::Status Reserve(absl::Span<const ConvShape> shapes, int64_t examples) override {
    return otherwise_->Reserve(shapes, examples);
  }
  int64_t workspace_bytes() const override { return otherwise_->workspace_bytes(); }
  void SetPrecision(Precision precision) override { otherwise_->SetPrecision(precision); }

  absl::Status Forward(cudaStream_t stream, const ConvShape& shape, int64_t examples, ConstElements x,
                       const float* filters, const float* bias, Elements y) override {
    if (!IsNarrow(shape)) return otherwise_->Forward(stream, shape, examples, x, filters, bias, y);
    return CudaStatus(LaunchNarrowConvolution(stream, shape, examples, x, filters, bias, y), "narrow convolution");
  }

  absl::Status BackwardData(cudaStream_t stream, const ConvShape& shape, int64_t examples, ConstElements dy,
                            const float* filters, Elements dx) override {
    return otherwise_->BackwardData(stream, shape, examples, dy, filters, dx);
  }

  absl::Status BackwardFilters(cudaStream_t stream, const ConvShape& shape, int64_t examples, ConstElements x,
                               ConstElements dy, float* dfilters) override {
    if (!IsNarrow(shape)) return otherwise_->BackwardFilters(stream, shape, examples, x, dy, dfilters);
    absl::StatusOr<Scratch> scratch =
        Scratch::Make(&memory_, NarrowFilterGradientScratch(shape, examples) * static_cast<int64_t>(sizeof(float)));
    if (!scratch.ok()) return scratch.status();
    return CudaStatus(LaunchNarrowFilterGradients(stream, shape, examples, x, dy, scratch->floats(), dfilters),
                      "narrow filter gradients");
  }

 private:
  MemoryPool& memory_;
  const std::unique_ptr<CudaConvolution> otherwise_;
};

}  // namespace

std::unique_ptr<CudaConvolution> MakeNarrowConvolution(MemoryPool* memory, std::unique_ptr<CudaConvolution> otherwise) {
  return std::make_unique<NarrowConvolution>(memory, std::move(otherwise));
}

}  // namespace ballast
