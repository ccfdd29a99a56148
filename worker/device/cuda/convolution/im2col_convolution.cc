// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <iostream>

#include "worker/device/cuda/convolution/convolution.h"
#include "worker/device/cuda/kernels/images/im2col.h"
#include "worker/device/cuda/kernels/vector.h"
#include "worker/device/cuda/memory/memory_pool.h"
#include "worker/device/cuda/memory/workspace.h"
#include "worker/device/cuda/stream/cuda_status.h"

namespace ballast {
namespace {

// Windows are expanded for as many images at once as fit into this number of elements.
constexpr int64_t kWindowElements = int64_t{64} << 20;

class Im2colConvolution : public CudaConvolution {
 public:
  Im2colConvolution(Gemm* gemm, MemoryPool* memory) : gemm_(*gemm), workspace_(memory) {}

  std::string Describe() const override { return "convolutions as products"; }

  absl::Status Reserve(absl::Span<const ConvShape> shapes, int64_t examples) override {
    int64_t most = 0;
    for (const ConvShape& shape : shapes) most = std::max(most, WindowBytes(shape, examples, type_));
    return workspace_.Reserve(most);
  }

  int64_t workspace_bytes() const override { return workspace_.held_bytes(); }

  // The Gemm's precision applies.
  void SetPrecision(Precision precision) override {
    type_ = precision == Precision::kBf16   ? ElementType::kBf16
            : precision == Precision::kFp16 ? ElementType::kFp16
                                            : ElementType::kFp32;
  }

  // y [positions, filters] = windows [positions, filter_elements] filters^T.
  absl::Status Forward(cudaStream_t stream, const ConvShape& shape, int64_t examples, ConstElements x,
                       const float* filters, const float* bias, Elements y) override {
    return ForEachGroup(shape, examples, x.type, [&](int64_t first, int64_t count, Elements windows) {
      absl::StatusOr<ConstElements> columns =
          Windows(stream, shape, count, x.From(first * shape.input.elements()), windows);
      if (!columns.ok()) return columns.status();
      GemmCall call = PlacesCall(shape, count);
      call.columns = shape.filters;
      call.depth = shape.filter_elements();
      call.a = *columns;
      call.b = filters;
      call.b_transposed = true;
      call.bias = bias;
      call.c = y.From(first * shape.output().elements());
      return gemm_.Multiply(stream, call);
    });
  }

  // windows [positions, filter_elements] = dy [positions, filters] filters.
  absl::Status BackwardData(cudaStream_t stream, const ConvShape& shape, int64_t examples, ConstElements dy,
                            const float* filters, Elements dx) override {
    return ForEachGroup(shape, examples, dx.type, [&](int64_t first, int64_t count, Elements windows) {
      const Elements images = dx.From(first * shape.input.elements());
      GemmCall call = PlacesCall(shape, count);
      call.columns = shape.filter_elements();
      call.depth = shape.filters;
      call.a = dy.From(first * shape.output().elements());
      call.b = filters;
      call.c = SeesImagesAsTheyAre(shape) ? images : windows;
      absl::Status status = gemm_.Multiply(stream, call);
      if (!status.ok() || SeesImagesAsTheyAre(shape)) return status;
      return CudaStatus(LaunchColumnsToImages(stream, shape, count, windows, images), "columns to images");
    });
  }

  // dfilters [filters, filter_elements] = dy^T [filters, positions] windows.
  absl::Status BackwardFilters(cudaStream_t stream, const ConvShape& shape, int64_t examples, ConstElements x,
                               ConstElements dy, float* dfilters) override {
    if (examples == 0) {
      return CudaStatus(LaunchFill(stream, 0.0f, shape.filters * shape.filter_elements(), dfilters), "fill");
    }
    return ForEachGroup(shape, examples, x.type, [&](int64_t first, int64_t count, Elements windows) {
      absl::StatusOr<ConstElements> columns =
          Windows(stream, shape, count, x.From(first * shape.input.elements()), windows);
      if (!columns.ok()) return columns.status();
      GemmCall call;
      call.rows = shape.filters;
      call.columns = shape.filter_elements();
      call.depth = count * shape.output().pixels();
      call.a = dy.From(first * shape.output().elements());
      call.a_transposed = true;
      call.b = *columns;
      call.beta = first == 0 ? 0.0f : 1.0f;
      call.c = dfilters;
      return gemm_.Multiply(stream, call);
    });
  }

 private:
  // True for a window of one pixel.
  static bool SeesImagesAsTheyAre(const ConvShape& shape) { return shape.window == Window{}; }

  static GemmCall PlacesCall(const ConvShape& shape, int64_t count) {
    GemmCall call;
    call.rows = count * shape.output().pixels();
    return call;
  }

  absl::StatusOr<ConstElements> Windows(cudaStream_t stream, const ConvShape& shape, int64_t count, ConstElements x,
                                        Elements windows) const {
    if (SeesImagesAsTheyAre(shape)) return x;
    absl::Status status = CudaStatus(LaunchImagesToColumns(stream, shape, count, x, windows), "images to columns");
    if (!status.ok()) return status;
    return ConstElements(windows);
  }

  // Number of images whose windows are expanded at once.
  static int64_t GroupOf(const ConvShape& shape, int64_t examples) {
    const int64_t image = shape.output().pixels() * shape.filter_elements();
    return std::min(examples, std::max<int64_t>(kWindowElements / image, 1));
  }

  static int64_t WindowBytes(const ConvShape& shape, int64_t examples, ElementType type) {
    if (SeesImagesAsTheyAre(shape)) return 0;
    return GroupOf(shape, examples) * shape.output().pixels() * shape.filter_elements() * BytesOf(type);
  }

  // Calls work(first example, number of examples, memory for their windows, of `type`).
  template <typename Work>
  absl::Status ForEachGroup(const ConvShape& shape, int64_t examples, ElementType type, Work work) {
    if (examples == 0) return absl::OkStatus();
    const int64_t group = GroupOf(shape, examples);
    absl::StatusOr<Workspace::Piece> windows = workspace_.Take(WindowBytes(shape, examples, type));
    if (!windows.ok()) return windows.status();
    for (int64_t first = 0; first < examples; first += group) {
      absl::Status status = work(first, std::min(group, examples - first), Elements(windows->memory, type));
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

  Gemm& gemm_;
  Workspace workspace_;
  // Type of activations.
  ElementType type_ = ElementType::kFp32;
};

}  // namespace

void WarnOfProducts(absl::string_view why) {
  static const bool warned = [&] {
    std::cerr << "warning: convolutions are computed as matrix products, which take more time and memory: " << why
              << std::endl;
    return true;
  }();
  static_cast<void>(warned);
}

std::unique_ptr<CudaConvolution> MakeIm2colConvolution(Gemm* gemm, MemoryPool* memory) {
  return std::make_unique<Im2colConvolution>(gemm, memory);
}

}  // namespace ballast
