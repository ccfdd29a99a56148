// SPDX-License-Identifier: Apache-2.0
#include "worker/device/cuda/cuda_device.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "worker/device/cuda/convolution/convolution.h"
#include "worker/device/cuda/gemm/gemm.h"
#include "worker/device/cuda/gpu_choice.h"
#include "worker/device/cuda/grouped_rows.h"
#include "worker/device/cuda/kernels/activation.h"
#include "worker/device/cuda/kernels/add_bias.h"
#include "worker/device/cuda/kernels/batch_norm.h"
#include "worker/device/cuda/kernels/cast.h"
#include "worker/device/cuda/kernels/dot_interaction.h"
#include "worker/device/cuda/kernels/dropout.h"
#include "worker/device/cuda/kernels/images/pooling.h"
#include "worker/device/cuda/kernels/layer_norm.h"
#include "worker/device/cuda/kernels/loss.h"
#include "worker/device/cuda/kernels/pool_rows.h"
#include "worker/device/cuda/kernels/rows.h"
#include "worker/device/cuda/kernels/scale_and_check.h"
#include "worker/device/cuda/kernels/sum_rows.h"
#include "worker/device/cuda/kernels/vector.h"
#include "worker/device/cuda/memory/cuda_buffer.h"
#include "worker/device/cuda/memory/memory_pool.h"
#include "worker/device/cuda/operands.h"
#include "worker/device/cuda/operation_queue.h"
#include "worker/device/cuda/peer_copy.h"
#include "worker/device/cuda/stream/cuda_status.h"

namespace ballast {
namespace {

using gpu::BatchNormOf;
using gpu::CheckElements;
using gpu::CheckImages;
using gpu::CheckRange;
using gpu::CheckRows;
using gpu::CheckSame;
using gpu::CheckType;
using gpu::Data;
using gpu::FilterData;
using gpu::Floats;
using gpu::InteractionOf;
using gpu::Own;
using gpu::Product;
using gpu::Require;
using gpu::RunningOf;
using gpu::VectorsOf;

absl::Status LaunchLoss(cudaStream_t stream, LossFunction f, const LossCall& call) {
  switch (f) {
    case LossFunction::kSoftmaxCrossEntropy:
      return CudaStatus(LaunchSoftmaxCrossEntropy(stream, call), "softmax cross-entropy");
    case LossFunction::kMeanSquaredError:
      return CudaStatus(LaunchMeanSquaredError(stream, call), "mean squared error");
    case LossFunction::kSigmoidCrossEntropy:
      return CudaStatus(LaunchSigmoidCrossEntropy(stream, call), "sigmoid cross-entropy");
  }
  return absl::InternalError("cuda device: loss is not known");
}

class CudaDevice : public Device {
 public:
  CudaDevice(std::unique_ptr<OperationQueue> queue, std::unique_ptr<Gemm> gemm,
             std::unique_ptr<CudaConvolution> convolution)
      : queue_(std::move(queue)), gemm_(std::move(gemm)), convolution_(std::move(convolution)) {}
  // The libraries' handles must not be destroyed while they are in use.
  ~CudaDevice() override { queue_->Drain(); }

  OperationQueue& queue() { return *queue_; }

  std::string Describe() const override {
    return absl::StrFormat("cuda (%s, %.1f GiB, compute capability %d.%d, %s, %s)", queue_->gpu().name,
                           queue_->gpu().memory_bytes / 1073741824.0, queue_->gpu().compute_major,
                           queue_->gpu().compute_minor, gemm_->Describe(), convolution_->Describe());
  }

  // Every GPU that can be opened has all precisions.
  absl::StatusOr<Precision> SetPrecision(Precision precision) override {
    activation_type_ = precision == Precision::kBf16   ? ElementType::kBf16
                       : precision == Precision::kFp16 ? ElementType::kFp16
                                                       : ElementType::kFp32;
    gemm_->SetPrecision(precision);
    convolution_->SetPrecision(precision);
    return precision;
  }

  bool Takes(Precision) const override { return true; }

  DeviceMemory Memory() const override {
    cudaSetDevice(queue_->gpu().index);
    return {static_cast<int64_t>(queue_->memory().FreeBytes()),
            gemm_->workspace_bytes() + convolution_->workspace_bytes(), queue_->staging().most_bytes()};
  }

  int64_t PeakBytes() const override {
    cudaSetDevice(queue_->gpu().index);
    return static_cast<int64_t>(queue_->memory().PeakBytes());
  }

  void ResetPeak() override {
    if (queue_->Enter().ok()) queue_->Keep(queue_->memory().ResetPeak()).IgnoreError();
  }

  ElementType activation_type() const override { return activation_type_; }

  absl::StatusOr<std::unique_ptr<Buffer>> Allocate(int64_t floats) override {
    return Allocate(floats, ElementType::kFp32);
  }

  absl::StatusOr<std::unique_ptr<Buffer>> AllocateActivations(int64_t elements) override {
    return Allocate(elements, activation_type_);
  }

  std::unique_ptr<HostMemory> AllocateHost(int64_t floats) override {
    if (!queue_->Enter().ok()) return std::make_unique<UnpinnedMemory>(floats);
    return queue_->pinned().Allocate(floats);
  }

  std::unique_ptr<HostRegistration> RegisterHost(absl::Span<char> memory) override {
    if (!queue_->Enter().ok()) return nullptr;
    return queue_->pinned().Register(memory);
  }

  absl::Status ReserveWorkspace(absl::Span<const ConvShape> shapes, int64_t examples) override {
    if (absl::Status status = queue_->Enter(); !status.ok()) return status;
    return convolution_->Reserve(shapes, examples);
  }

  absl::Status Upload(absl::Span<const float> values, Buffer& to, int64_t offset) override {
    if (absl::Status status = CheckRange(to, offset, values.size()); !status.ok()) return status;
    if (absl::Status status = queue_->Enter(); !status.ok()) return status;
    const absl::Status status = queue_->copies().Upload(values, Own(to), offset);
    Own(to).Written();
    return queue_->Keep(status);
  }

  absl::Status Download(const Buffer& from, int64_t offset, absl::Span<float> values) override {
    if (absl::Status status = CheckRange(from, offset, values.size()); !status.ok()) return status;
    if (absl::Status status = queue_->Enter(); !status.ok()) return status;
    return queue_->Keep(queue_->copies().Download(Own(from), offset, values));
  }

  absl::Status DownloadAll(absl::Span<const HostCopy> copies) override {
    for (const HostCopy& copy : copies) {
      if (absl::Status status = CheckRange(*copy.from, 0, copy.values.size()); !status.ok()) return status;
    }
    if (absl::Status status = queue_->Enter(); !status.ok()) return status;
    return queue_->Keep(queue_->copies().DownloadAll(copies));
  }

  bool CopyFrom(Device& from, Matrix x, Matrix y) override {
    OperationQueue* const other = QueueOf(from);
    // A copy between GPUs cannot convert elements; the codecs on the host can.
    if (other == nullptr || x.buffer->type() != y.buffer->type()) return false;
    CopyToPeer(*other, x, *queue_, y);
    return true;
  }

  absl::Status Synchronize() override { return queue_->Synchronize(); }

  void Mark() override {
    if (queue_->Enter().ok()) queue_->Keep(queue_->order().Mark()).IgnoreError();
  }

  void Repeat(const Segment& segment, absl::FunctionRef<void()> issue) override { queue_->Repeat(segment, issue); }

  void Record(TimelineRecorder* timeline) override {
    if (queue_->Enter().ok()) queue_->order().times().Record(timeline);
  }

  void Multiply(const Factor& a, const Factor& b, float alpha, float beta, Matrix c) override {
    GemmCall call = Product(a, b, c);
    call.alpha = alpha;
    call.beta = beta;
    queue_->Run({a.matrix.buffer, b.matrix.buffer}, {c.buffer},
                [&](cudaStream_t stream) { return Compute(stream, call); });
  }

  void MultiplyBiasActivate(const Factor& a, const Factor& b, const Buffer& bias, std::optional<Activation> f,
                            Matrix c) override {
    GemmCall call = Product(a, b, c);
    call.bias = Data(bias, c.columns);
    call.relu = f == Activation::kRelu;
    queue_->Run({a.matrix.buffer, b.matrix.buffer, &bias}, {c.buffer},
                [&](cudaStream_t stream) { return Compute(stream, call); });
    if (f.has_value() && !call.relu) Activate(*f, c, c);
  }

  void AddBias(const Buffer& bias, Matrix x) override {
    const Elements to = Data(x);
    queue_->RunKernel("add bias", {&bias}, {x.buffer}, [&](cudaStream_t stream) {
      return LaunchAddBias(stream, Data(bias, x.columns), x.rows, x.columns, to);
    });
  }

  void SumRows(Matrix x, Buffer& sums) override {
    queue_->Run({x.buffer}, {&sums}, [&](cudaStream_t stream) { return SumInto(stream, x, Data(sums, x.columns)); });
  }

  void Activate(Activation f, Matrix x, Matrix y) override {
    CheckElements(x, y);
    queue_->RunKernel("activate", {x.buffer}, {y.buffer},
                      [&](cudaStream_t stream) { return LaunchActivate(stream, f, x.elements(), Data(x), Data(y)); });
  }

  void ActivateBackward(Activation f, Matrix x, Matrix dy, Matrix dx) override {
    CheckElements(x, dy);
    CheckElements(x, dx);
    queue_->RunKernel("activate backward", {x.buffer, dy.buffer}, {dx.buffer}, [&](cudaStream_t stream) {
      return LaunchActivateBackward(stream, f, x.elements(), Data(x), Data(dy), Data(dx));
    });
  }

  void Dropout(float rate, const DropoutKey& key, Matrix x, Matrix y) override {
    CheckElements(x, y);
    Require(rate >= 0.0f && rate < 1.0f, "dropout rate is outside [0, 1)");
    if (rate == 0.0f) {
      if (x.buffer != y.buffer) Copy(x, y);
      return;
    }
    queue_->RunKernel("dropout", {x.buffer}, {y.buffer}, [&](cudaStream_t stream) {
      return LaunchDropout(stream, rate, key, queue_->graphs().DropoutSeed(key), x.elements(), Data(x), Data(y));
    });
  }

  void Loss(LossFunction f, Matrix outputs, const Buffer& labels, Buffer& totals,
            const LossGradient* gradient) override {
    if (gradient != nullptr) CheckElements(outputs, gradient->matrix);
    Require(f == LossFunction::kSoftmaxCrossEntropy || outputs.columns == 1, "loss needs one output column");
    queue_->Run({outputs.buffer, &labels}, {&totals, gradient == nullptr ? nullptr : gradient->matrix.buffer},
                [&](cudaStream_t stream) {
                  absl::StatusOr<Scratch> scratch = queue_->MakeScratch(2 * outputs.rows);
                  if (!scratch.ok()) return scratch.status();
                  const LossCall call = {Data(outputs),
                                         outputs.rows,
                                         outputs.columns,
                                         Data(labels, outputs.rows),
                                         gradient == nullptr ? Elements() : Data(gradient->matrix),
                                         gradient == nullptr ? 1.0f : gradient->scale,
                                         scratch->floats(),
                                         Data(totals, kLossTotals)};
                  return LaunchLoss(stream, f, call);
                });
  }

  void Convolve(const ConvShape& shape, Matrix x, const Buffer& filters, const Buffer* bias, Matrix y) override {
    CheckImages(shape, x, y);
    queue_->Run({x.buffer, &filters, bias}, {y.buffer}, [&](cudaStream_t stream) {
      return convolution_->Forward(stream, shape, x.rows, Data(x), FilterData(shape, filters),
                                   bias == nullptr ? nullptr : Data(*bias, shape.filters), Data(y));
    });
  }

  void ConvolveBackwardData(const ConvShape& shape, Matrix dy, const Buffer& filters, Matrix dx) override {
    CheckImages(shape, dx, dy);
    queue_->Run({dy.buffer, &filters}, {dx.buffer}, [&](cudaStream_t stream) {
      return convolution_->BackwardData(stream, shape, dx.rows, Data(dy), FilterData(shape, filters), Data(dx));
    });
  }

  void ConvolveBackwardFilters(const ConvShape& shape, Matrix x, Matrix dy, Buffer& dfilters, Buffer* dbias) override {
    CheckImages(shape, x, dy);
    queue_->Run({x.buffer, dy.buffer}, {&dfilters, dbias}, [&](cudaStream_t stream) {
      absl::Status status =
          convolution_->BackwardFilters(stream, shape, x.rows, Data(x), Data(dy), FilterData(shape, dfilters));
      if (!status.ok() || dbias == nullptr) return status;
      const Matrix places = {dy.buffer, dy.rows * shape.output().pixels(), shape.filters};
      return SumInto(stream, places, Data(*dbias, shape.filters));
    });
  }

  void MaxPool(const PoolShape& shape, Matrix x, Buffer* positions, Matrix y) override {
    CheckImages(shape, x, y);
    queue_->RunKernel("max pool", {x.buffer}, {positions, y.buffer}, [&](cudaStream_t stream) {
      float* const kept = positions == nullptr ? nullptr : Data(*positions, x.rows * shape.position_floats());
      return LaunchMaxPool(stream, shape, x.rows, Data(x), kept, Data(y));
    });
  }

  void MaxPoolBackward(const PoolShape& shape, const Buffer& positions, Matrix dy, Matrix dx) override {
    CheckImages(shape, dx, dy);
    queue_->RunKernel("max pool backward", {&positions, dy.buffer}, {dx.buffer}, [&](cudaStream_t stream) {
      return LaunchMaxPoolBackward(stream, shape, dx.rows, Data(positions, dx.rows * shape.position_floats()), Data(dy),
                                   Data(dx));
    });
  }

  void AveragePool(const PoolShape& shape, Matrix x, Matrix y) override {
    CheckImages(shape, x, y);
    queue_->RunKernel("average pool", {x.buffer}, {y.buffer},
                      [&](cudaStream_t stream) { return LaunchAveragePool(stream, shape, x.rows, Data(x), Data(y)); });
  }

  void AveragePoolBackward(const PoolShape& shape, Matrix dy, Matrix dx) override {
    CheckImages(shape, dx, dy);
    queue_->RunKernel("average pool backward", {dy.buffer}, {dx.buffer}, [&](cudaStream_t stream) {
      return LaunchAveragePoolBackward(stream, shape, dx.rows, Data(dy), Data(dx));
    });
  }

  void BatchNorm(const BatchNormRates& rates, Matrix x, const Affine& affine, const SavedStatistics& saved,
                 const ColumnStatistics& running, Matrix y) override {
    CheckSame(x, y);
    queue_->Run(
        {x.buffer, &affine.scale, &affine.offset},
        {&saved.mean, &saved.inverse_stddev, &running.mean, &running.variance, y.buffer}, [&](cudaStream_t stream) {
          absl::StatusOr<Scratch> scratch = queue_->MakeScratch(BatchNormScratch(x.rows, x.columns));
          if (!scratch.ok()) return scratch.status();
          return CudaStatus(LaunchBatchNorm(stream, BatchNormOf(x, affine, &saved, scratch->floats()),
                                            RunningOf(rates.epsilon, rates.momentum, running, x.columns), Data(y)),
                            "batch norm");
        });
  }

  void BatchNormInference(float epsilon, Matrix x, const Affine& affine, const ColumnStatistics& running,
                          Matrix y) override {
    CheckSame(x, y);
    queue_->RunKernel("batch norm inference",
                      {x.buffer, &affine.scale, &affine.offset, &running.mean, &running.variance}, {y.buffer},
                      [&](cudaStream_t stream) {
                        return LaunchBatchNormInference(stream, BatchNormOf(x, affine, nullptr, nullptr),
                                                        RunningOf(epsilon, 0.0f, running, x.columns), Data(y));
                      });
  }

  void BatchNormBackward(Matrix x, Matrix dy, const Affine& affine, const SavedStatistics& saved,
                         const AffineGradient& gradient, const Matrix* dx) override {
    CheckSame(x, dy);
    if (dx != nullptr) CheckSame(x, *dx);
    queue_->Run({x.buffer, dy.buffer, &affine.scale, &saved.mean, &saved.inverse_stddev},
                {&gradient.scale, &gradient.offset, dx == nullptr ? nullptr : dx->buffer}, [&](cudaStream_t stream) {
                  absl::StatusOr<Scratch> scratch = queue_->MakeScratch(BatchNormScratch(x.rows, x.columns));
                  if (!scratch.ok()) return scratch.status();
                  const BatchNormGradients gradients = {Data(dy), Data(gradient.scale, x.columns),
                                                        Data(gradient.offset, x.columns),
                                                        dx == nullptr ? Elements() : Data(*dx)};
                  return CudaStatus(
                      LaunchBatchNormBackward(stream, BatchNormOf(x, affine, &saved, scratch->floats()), gradients),
                      "batch norm backward");
                });
  }

  void LayerNorm(float epsilon, Matrix x, const Affine& affine, Matrix y) override {
    CheckSame(x, y);
    queue_->RunKernel("layer norm", {x.buffer, &affine.scale, &affine.offset}, {y.buffer}, [&](cudaStream_t stream) {
      const LayerNormCall call = {x.rows, x.columns, epsilon, Data(x), Data(affine.scale, x.columns)};
      return LaunchLayerNorm(stream, call, Data(affine.offset, x.columns), Data(y));
    });
  }

  void LayerNormBackward(float epsilon, Matrix x, Matrix dy, const Affine& affine, const AffineGradient& gradient,
                         const Matrix* dx) override {
    CheckSame(x, dy);
    if (dx != nullptr) CheckSame(x, *dx);
    queue_->Run({x.buffer, dy.buffer, &affine.scale},
                {&gradient.scale, &gradient.offset, dx == nullptr ? nullptr : dx->buffer}, [&](cudaStream_t stream) {
                  absl::StatusOr<Scratch> scratch = queue_->MakeScratch(LayerNormScratch(x.rows, x.columns));
                  if (!scratch.ok()) return scratch.status();
                  const LayerNormCall call = {x.rows, x.columns, epsilon, Data(x), Data(affine.scale, x.columns)};
                  const LayerNormGradients gradients = {Data(dy), Data(gradient.scale, x.columns),
                                                        Data(gradient.offset, x.columns),
                                                        dx == nullptr ? Elements() : Data(*dx), scratch->floats()};
                  return CudaStatus(LaunchLayerNormBackward(stream, call, gradients), "layer norm backward");
                });
  }

  void Fill(float value, Matrix y) override {
    queue_->RunKernel("fill", {}, {y.buffer},
                      [&](cudaStream_t stream) { return LaunchFill(stream, value, y.elements(), Data(y)); });
  }

  void Copy(Matrix x, Matrix y) override {
    CheckElements(x, y);
    queue_->RunKernel("copy", {x.buffer}, {y.buffer}, [&](cudaStream_t stream) {
      if (x.elements() == 0) return cudaSuccess;
      const size_t bytes = x.elements() * BytesOf(x.buffer->type());
      return cudaMemcpyAsync(Data(y).data, Data(x).data, bytes, cudaMemcpyDeviceToDevice, stream);
    });
  }

  void Scale(float alpha, Matrix x) override {
    queue_->RunKernel("scale", {}, {x.buffer},
                      [&](cudaStream_t stream) { return LaunchScale(stream, alpha, x.elements(), Data(x)); });
  }

  void ScaleAndCheck(float alpha, Matrix x, Buffer& not_finite) override {
    queue_->RunKernel("scale and check", {}, {x.buffer, &not_finite}, [&](cudaStream_t stream) {
      return LaunchScaleAndCheck(stream, alpha, x.elements(), Floats(x), Data(not_finite, 1));
    });
  }

  void Narrow(HalfType type, Matrix x, Buffer& halves) override {
    queue_->RunKernel("narrow", {x.buffer}, {&halves}, [&](cudaStream_t stream) {
      return LaunchToHalf(stream, type, x.elements(), Floats(x),
                          reinterpret_cast<uint16_t*>(Data(halves, (x.elements() + 1) / 2)));
    });
  }

  void Widen(HalfType type, const Buffer& halves, Matrix y) override {
    queue_->RunKernel("widen", {&halves}, {y.buffer}, [&](cudaStream_t stream) {
      return LaunchFromHalf(stream, type, y.elements(),
                            reinterpret_cast<const uint16_t*>(Data(halves, (y.elements() + 1) / 2)), Floats(y));
    });
    if (activation_type_ != ElementTypeOf(type) || y.elements() == 0) return;
    queue_->Run({&halves, y.buffer}, {}, [&](cudaStream_t stream) {
      return queue_->halves().Adopt(stream, type, reinterpret_cast<const uint16_t*>(Own(halves).data()),
                                    Own(*y.buffer).data(), y.elements());
    });
  }

  void Axpy(float alpha, Matrix x, Matrix y) override {
    CheckElements(x, y);
    queue_->RunKernel("axpy", {x.buffer}, {y.buffer},
                      [&](cudaStream_t stream) { return LaunchAxpy(stream, alpha, x.elements(), Data(x), Data(y)); });
  }

  void Add(Matrix a, Matrix b, Matrix y) override {
    CheckElements(a, y);
    CheckElements(b, y);
    queue_->RunKernel("add", {a.buffer, b.buffer}, {y.buffer},
                      [&](cudaStream_t stream) { return LaunchAdd(stream, y.elements(), Data(a), Data(b), Data(y)); });
  }

  void GatherRows(Matrix table, absl::Span<const int64_t> rows, Matrix y) override {
    CheckRows(table, rows, y);
    queue_->Run({table.buffer}, {y.buffer}, [&](cudaStream_t stream) {
      absl::StatusOr<Scratch> numbers = queue_->PutNumbers(stream, {rows});
      if (!numbers.ok()) return numbers.status();
      return CudaStatus(LaunchGatherRows(stream, Floats(table), table.columns,
                                         static_cast<const int64_t*>(numbers->bytes()), y.rows, Data(y)),
                        "gather rows");
    });
  }

  void ScatterAddRows(Matrix dy, absl::Span<const int64_t> rows, Matrix table) override {
    CheckRows(table, rows, dy);
    const GroupedRows grouped(rows);
    queue_->Run({dy.buffer}, {table.buffer}, [&](cudaStream_t stream) {
      absl::StatusOr<Scratch> numbers = queue_->PutNumbers(stream, {grouped.target, grouped.begin, grouped.source});
      if (!numbers.ok()) return numbers.status();
      const int64_t* const target = static_cast<const int64_t*>(numbers->bytes());
      const int64_t* const begin = target + grouped.target.size();
      const RowGroups groups = {target, begin, begin + grouped.begin.size(),
                                static_cast<int64_t>(grouped.target.size())};
      return CudaStatus(LaunchScatterAddRows(stream, Data(dy), dy.columns, groups, Floats(table)), "scatter-add rows");
    });
  }

  void CopyColumns(int64_t columns, Matrix x, Matrix y) override {
    CheckType(x, y);
    Require(x.rows == y.rows && columns >= 0 && columns <= std::min(x.columns, y.columns),
            "columns to copy are outside a matrix");
    queue_->RunKernel("copy columns", {x.buffer}, {y.buffer}, [&](cudaStream_t stream) {
      return LaunchCopyColumns(stream, {x.rows, columns, Data(x), x.columns, Data(y), y.columns});
    });
  }

  void PoolRows(Matrix table, const RowBags& bags, int64_t first, Matrix y) override {
    BagVectors vectors = VectorsOf(table, bags, first, y);
    queue_->Run({table.buffer}, {y.buffer}, [&](cudaStream_t stream) {
      absl::StatusOr<Scratch> numbers = queue_->PutNumbers(stream, {bags.ends, bags.places});
      if (!numbers.ok()) return numbers.status();
      vectors.ends = static_cast<const uint32_t*>(numbers->bytes());
      const uint32_t* const places = vectors.ends + bags.ends.size();
      return CudaStatus(LaunchPoolRows(stream, Floats(table), places, vectors, Data(y)), "pool rows");
    });
  }

  void PoolRowsBackward(Matrix dy, const RowBags& bags, int64_t first, Matrix dtable) override {
    BagVectors vectors = VectorsOf(dtable, bags, first, dy);
    const GroupedPlaces grouped(bags, dtable.rows);
    queue_->Run({dy.buffer}, {dtable.buffer}, [&](cudaStream_t stream) {
      const absl::Span<const uint32_t> ends = bags.mean ? bags.ends : absl::Span<const uint32_t>();
      absl::StatusOr<Scratch> numbers = queue_->PutNumbers(stream, {grouped.begin, grouped.bag, ends});
      if (!numbers.ok()) return numbers.status();
      const uint32_t* const begin = static_cast<const uint32_t*>(numbers->bytes());
      const RowPlaces places = {dtable.rows, begin, begin + grouped.begin.size()};
      vectors.ends = places.bag + grouped.bag.size();
      return CudaStatus(LaunchPoolRowsBackward(stream, Data(dy), places, vectors, Floats(dtable)),
                        "pool rows backward");
    });
  }

  void DotInteraction(int64_t dim, Matrix x, Matrix y) override {
    const InteractionCall call = InteractionOf(dim, x, y);
    queue_->RunKernel("dot interaction", {x.buffer}, {y.buffer},
                      [&](cudaStream_t stream) { return LaunchDotInteraction(stream, call, Data(y)); });
  }

  void DotInteractionBackward(int64_t dim, Matrix x, Matrix dy, Matrix dx) override {
    CheckSame(x, dx);
    const InteractionCall call = InteractionOf(dim, x, dy);
    queue_->RunKernel("dot interaction backward", {x.buffer, dy.buffer}, {dx.buffer}, [&](cudaStream_t stream) {
      return LaunchDotInteractionBackward(stream, call, Data(dy), Data(dx));
    });
  }

 private:
  absl::StatusOr<std::unique_ptr<Buffer>> Allocate(int64_t elements, ElementType type) {
    Require(elements >= 0, "negative size");
    if (absl::Status status = queue_->Enter(); !status.ok()) return status;
    if (elements > std::numeric_limits<int64_t>::max() / BytesOf(type)) {
      return absl::ResourceExhaustedError(absl::StrCat("cuda device: no memory for ", elements, " elements"));
    }
    const size_t bytes = std::max<int64_t>(elements, 1) * BytesOf(type);
    absl::StatusOr<void*> memory = queue_->memory().TakeLasting(bytes);
    if (!memory.ok()) return memory.status();
    const CudaBuffer::Parts parts = {queue_->memory(), queue_->order(), queue_->halves()};
    auto buffer = std::make_unique<CudaBuffer>(*memory, elements, type, parts);
    const cudaError_t error = cudaMemsetAsync(*memory, 0, bytes, queue_->order().compute());
    BufferUse* const operands[] = {&buffer->use()};
    queue_->order().AfterOperation(operands);
    if (absl::Status status = CudaStatus(error, "cudaMemsetAsync"); !status.ok()) return status;
    return std::unique_ptr<Buffer>(std::move(buffer));
  }

  // A product of any size, even of depth 0.
  absl::Status Compute(cudaStream_t stream, const GemmCall& call) {
    const int64_t elements = call.rows * call.columns;
    if (elements == 0) return absl::OkStatus();
    if (call.depth > 0) return gemm_->Multiply(stream, call);
    cudaError_t error = call.beta == 0.0f ? LaunchFill(stream, 0.0f, elements, call.c)
                                          : LaunchScale(stream, call.beta, elements, call.c);
    if (error == cudaSuccess && call.bias != nullptr) {
      error = LaunchAddBias(stream, call.bias, call.rows, call.columns, call.c);
    }
    if (error == cudaSuccess && call.relu) error = LaunchActivate(stream, Activation::kRelu, elements, call.c, call.c);
    return CudaStatus(error, "product over no terms");
  }

  absl::Status SumInto(cudaStream_t stream, const Matrix& x, float* sums) {
    absl::StatusOr<Scratch> scratch = queue_->MakeScratch(SumRowsScratch(x.rows, x.columns));
    if (!scratch.ok()) return scratch.status();
    return CudaStatus(LaunchSumRows(stream, Data(x), x.rows, x.columns, scratch->floats(), sums), "sum rows");
  }

  // Outlives the members below, which use it.
  const std::unique_ptr<OperationQueue> queue_;
  const std::unique_ptr<Gemm> gemm_;
  const std::unique_ptr<CudaConvolution> convolution_;
  ElementType activation_type_ = ElementType::kFp32;
};

}  // namespace

OperationQueue* QueueOf(Device& device) {
  auto* const own = dynamic_cast<CudaDevice*>(&device);
  return own == nullptr ? nullptr : &own->queue();
}

absl::StatusOr<std::unique_ptr<Device>> OpenCudaDevice(const CudaOptions& options) {
  absl::StatusOr<Gpu> gpu = ChooseGpu(options.gpu);
  if (!gpu.ok()) return gpu.status();
  absl::StatusOr<std::unique_ptr<OperationQueue>> queue = OperationQueue::Create(*gpu, options.graphs);
  if (!queue.ok()) return OpeningFailed(*gpu, queue.status());
  MemoryPool* const memory = &(*queue)->memory();
  HalfCopies* const halves = &(*queue)->halves();
  absl::StatusOr<std::unique_ptr<Gemm>> gemm = MakeGemm(options, gpu->name, memory, halves);
  if (!gemm.ok()) return OpeningFailed(*gpu, gemm.status());
  auto convolution =
      MakeNarrowConvolution(memory, MakeBestConvolution({gemm->get(), memory, halves, options, gpu->name}));
  return std::make_unique<CudaDevice>(*std::move(queue), *std::move(gemm), std::move(convolution));
}

}  // namespace ballast
