// SPDX-License-Identifier: Apache-2.0
#include "worker/device/cuda/cuda_device.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "worker/device/cuda/convolution.h"
#include "worker/device/cuda/cuda_buffer.h"
#include "worker/device/cuda/cuda_status.h"
#include "worker/device/cuda/gemm.h"
#include "worker/device/cuda/gpu_choice.h"
#include "worker/device/cuda/half_copies.h"
#include "worker/device/cuda/host_copies.h"
#include "worker/device/cuda/kernels/activation.h"
#include "worker/device/cuda/kernels/add_bias.h"
#include "worker/device/cuda/kernels/batch_norm.h"
#include "worker/device/cuda/kernels/cast.h"
#include "worker/device/cuda/kernels/dropout.h"
#include "worker/device/cuda/kernels/layer_norm.h"
#include "worker/device/cuda/kernels/loss.h"
#include "worker/device/cuda/kernels/pooling.h"
#include "worker/device/cuda/kernels/rows.h"
#include "worker/device/cuda/kernels/sum_rows.h"
#include "worker/device/cuda/kernels/vector.h"
#include "worker/device/cuda/memory_pool.h"
#include "worker/device/cuda/scratch.h"
#include "worker/device/cuda/staging_pool.h"
#include "worker/device/cuda/stream_order.h"

namespace ballast {
namespace {

// 4 MiB: large enough for the bus's full speed, small enough that a copy begins soon.
constexpr int64_t kPieceFloats = int64_t{1} << 20;
constexpr size_t kMostPieces = 16;

void Require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "cuda device: %s\n", what);
  std::abort();
}

const CudaBuffer& Own(const Buffer& buffer) { return static_cast<const CudaBuffer&>(buffer); }

float* Data(const Buffer& buffer, int64_t least) {
  Require(buffer.size() >= least, "buffer too short");
  return Own(buffer).data();
}

float* Data(const Matrix& m) {
  Require(m.buffer != nullptr && m.elements() <= m.buffer->size(), "matrix outside its buffer");
  return Own(*m.buffer).data();
}

void CheckSame(const Matrix& a, const Matrix& b) {
  Require(a.rows == b.rows && a.columns == b.columns, "matrices of different sizes");
}

void CheckElements(const Matrix& a, const Matrix& b) {
  Require(a.elements() == b.elements(), "matrices of different numbers of elements");
}

template <typename Shape>
void CheckImages(const Shape& shape, const Matrix& in, const Matrix& out) {
  Require(Fits(shape.window, shape.input), "window that does not fit its images");
  Require(in.rows == out.rows && in.columns == shape.input.elements() && out.columns == shape.output().elements(),
          "images of another size");
}

absl::Status CheckRange(const Buffer& buffer, int64_t offset, size_t elements) {
  if (offset >= 0 && offset <= buffer.size() && elements <= static_cast<size_t>(buffer.size() - offset)) {
    return absl::OkStatus();
  }
  return absl::OutOfRangeError(absl::StrCat("device buffer of ", buffer.size(), " elements: got ", elements,
                                            " elements at ", offset, ", want a range inside it"));
}

// Rows sorted by where they go, those that go to one row in their own order: see RowGroups.
struct GroupedRows {
  std::vector<int64_t> target, begin, source;

  explicit GroupedRows(absl::Span<const int64_t> rows) : source(rows.size()) {
    std::iota(source.begin(), source.end(), 0);
    std::stable_sort(source.begin(), source.end(), [&](int64_t a, int64_t b) { return rows[a] < rows[b]; });
    for (size_t k = 0; k < source.size(); ++k) {
      const int64_t row = rows[source[k]];
      if (!target.empty() && target.back() == row) continue;
      target.push_back(row);
      begin.push_back(static_cast<int64_t>(k));
    }
    begin.push_back(static_cast<int64_t>(source.size()));
  }
};

class CudaDevice : public Device {
 public:
  // What the device stands on; each outlives those after it.
  struct Parts {
    Gpu gpu;
    std::unique_ptr<StreamOrder> order;
    std::unique_ptr<MemoryPool> memory;
    std::unique_ptr<HalfCopies> halves;
    std::unique_ptr<StagingPool> staging;
    std::unique_ptr<Gemm> gemm;
    std::unique_ptr<CudaConvolution> convolution;
  };

  explicit CudaDevice(Parts parts) : parts_(std::move(parts)), copies_(parts_.order.get(), parts_.staging.get()) {}

  // Streams and pinned memory must not go while something uses them.
  ~CudaDevice() override {
    cudaSetDevice(parts_.gpu.index);
    for (const cudaStream_t stream : {parts_.order->compute(), parts_.order->upload(), parts_.order->download()}) {
      cudaStreamSynchronize(stream);
    }
  }

  std::string Describe() const override {
    return absl::StrFormat("cuda (%s, %.1f GiB, compute capability %d.%d, %s, %s)", parts_.gpu.name,
                           parts_.gpu.memory_bytes / 1073741824.0, parts_.gpu.compute_major, parts_.gpu.compute_minor,
                           parts_.gemm->Describe(), parts_.convolution->Describe());
  }

  // Every chip that is opened has all of them.
  absl::StatusOr<Precision> SetPrecision(Precision precision) override {
    parts_.gemm->SetPrecision(precision);
    parts_.convolution->SetPrecision(precision);
    return precision;
  }

  DeviceMemory Memory() const override {
    cudaSetDevice(parts_.gpu.index);
    return {static_cast<int64_t>(parts_.memory->FreeBytes()), parts_.gemm->workspace_bytes(),
            parts_.staging->most_bytes()};
  }

  absl::StatusOr<std::unique_ptr<Buffer>> Allocate(int64_t elements) override {
    Require(elements >= 0, "negative size");
    if (absl::Status status = Enter(); !status.ok()) return status;
    if (elements > std::numeric_limits<int64_t>::max() / static_cast<int64_t>(sizeof(float))) {
      return absl::ResourceExhaustedError(absl::StrCat("cuda device: no memory for ", elements, " floats"));
    }
    const size_t bytes = std::max<int64_t>(elements, 1) * sizeof(float);
    absl::StatusOr<void*> memory = parts_.memory->Take(bytes);
    if (!memory.ok()) return memory.status();
    auto buffer = std::make_unique<CudaBuffer>(static_cast<float*>(*memory), elements, parts_.memory.get(),
                                               parts_.order.get(), parts_.halves.get());
    const cudaError_t error = cudaMemsetAsync(*memory, 0, bytes, parts_.order->compute());
    BufferUse* const operands[] = {&buffer->use()};
    parts_.order->AfterOperation(operands);
    if (absl::Status status = CudaStatus(error, "cudaMemsetAsync"); !status.ok()) return status;
    return buffer;
  }

  absl::Status Upload(absl::Span<const float> values, Buffer& to, int64_t offset) override {
    if (absl::Status status = CheckRange(to, offset, values.size()); !status.ok()) return status;
    if (absl::Status status = Enter(); !status.ok()) return status;
    const absl::Status status = copies_.Upload(values, Own(to), offset);
    Own(to).Written();
    return Keep(status);
  }

  absl::Status Download(const Buffer& from, int64_t offset, absl::Span<float> values) override {
    if (absl::Status status = CheckRange(from, offset, values.size()); !status.ok()) return status;
    if (absl::Status status = Enter(); !status.ok()) return status;
    return Keep(copies_.Download(Own(from), offset, values));
  }

  absl::Status Synchronize() override {
    if (absl::Status status = Enter(); !status.ok()) return status;
    for (const cudaStream_t stream : {parts_.order->upload(), parts_.order->compute()}) {
      const absl::Status status = Keep(CudaStatus(cudaStreamSynchronize(stream), "cudaStreamSynchronize"));
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

  void Mark() override {
    if (Enter().ok()) Keep(parts_.order->Mark()).IgnoreError();
  }

  void Multiply(const Factor& a, const Factor& b, float alpha, float beta, Matrix c) override {
    GemmCall call = Product(a, b, c);
    call.alpha = alpha;
    call.beta = beta;
    Run({a.matrix.buffer, b.matrix.buffer}, {c.buffer}, [&](cudaStream_t stream) { return Compute(stream, call); });
  }

  void MultiplyBiasActivate(const Factor& a, const Factor& b, const Buffer& bias, std::optional<Activation> f,
                            Matrix c) override {
    GemmCall call = Product(a, b, c);
    call.bias = Data(bias, c.columns);
    call.relu = f == Activation::kRelu;
    Run({a.matrix.buffer, b.matrix.buffer, &bias}, {c.buffer},
        [&](cudaStream_t stream) { return Compute(stream, call); });
    if (f.has_value() && !call.relu) Activate(*f, c, c);
  }

  void AddBias(const Buffer& bias, Matrix x) override {
    float* const to = Data(x);
    RunKernel("add bias", {&bias}, {x.buffer},
              [&](cudaStream_t stream) { return LaunchAddBias(stream, Data(bias, x.columns), x.rows, x.columns, to); });
  }

  void SumRows(Matrix x, Buffer& sums) override {
    Run({x.buffer}, {&sums}, [&](cudaStream_t stream) { return SumInto(stream, x, Data(sums, x.columns)); });
  }

  void Activate(Activation f, Matrix x, Matrix y) override {
    CheckElements(x, y);
    RunKernel("activate", {x.buffer}, {y.buffer},
              [&](cudaStream_t stream) { return LaunchActivate(stream, f, x.elements(), Data(x), Data(y)); });
  }

  void ActivateBackward(Activation f, Matrix x, Matrix dy, Matrix dx) override {
    CheckElements(x, dy);
    CheckElements(x, dx);
    RunKernel("activate backward", {x.buffer, dy.buffer}, {dx.buffer}, [&](cudaStream_t stream) {
      return LaunchActivateBackward(stream, f, x.elements(), Data(x), Data(dy), Data(dx));
    });
  }

  void Dropout(float rate, const DropoutKey& key, Matrix x, Matrix y) override {
    CheckElements(x, y);
    Require(rate >= 0.0f && rate < 1.0f, "dropout rate outside [0, 1)");
    if (rate == 0.0f) {
      if (x.buffer != y.buffer) Copy(x, y);
      return;
    }
    RunKernel("dropout", {x.buffer}, {y.buffer},
              [&](cudaStream_t stream) { return LaunchDropout(stream, rate, key, x.elements(), Data(x), Data(y)); });
  }

  void Loss(LossFunction f, Matrix outputs, const Buffer& labels, Buffer& totals, const Matrix* gradient) override {
    Require(gradient == nullptr || gradient->elements() == outputs.elements(), "loss gradient of another size");
    Require(f != LossFunction::kMeanSquaredError || outputs.columns == 1, "mean squared error of several columns");
    Run({outputs.buffer, &labels}, {&totals, gradient == nullptr ? nullptr : gradient->buffer},
        [&](cudaStream_t stream) {
          absl::StatusOr<Scratch> scratch = MakeScratch(2 * outputs.rows);
          if (!scratch.ok()) return scratch.status();
          const LossCall call = {Data(outputs),
                                 outputs.rows,
                                 outputs.columns,
                                 Data(labels, outputs.rows),
                                 gradient == nullptr ? nullptr : Data(*gradient),
                                 scratch->floats(),
                                 Data(totals, kLossTotals)};
          return f == LossFunction::kSoftmaxCrossEntropy
                     ? CudaStatus(LaunchSoftmaxCrossEntropy(stream, call), "softmax cross-entropy")
                     : CudaStatus(LaunchMeanSquaredError(stream, call), "mean squared error");
        });
  }

  void Convolve(const ConvShape& shape, Matrix x, const Buffer& filters, const Buffer* bias, Matrix y) override {
    CheckImages(shape, x, y);
    Run({x.buffer, &filters, bias}, {y.buffer}, [&](cudaStream_t stream) {
      return parts_.convolution->Forward(stream, shape, x.rows, Data(x), FilterData(shape, filters),
                                         bias == nullptr ? nullptr : Data(*bias, shape.filters), Data(y));
    });
  }

  void ConvolveBackwardData(const ConvShape& shape, Matrix dy, const Buffer& filters, Matrix dx) override {
    CheckImages(shape, dx, dy);
    Run({dy.buffer, &filters}, {dx.buffer}, [&](cudaStream_t stream) {
      return parts_.convolution->BackwardData(stream, shape, dx.rows, Data(dy), FilterData(shape, filters), Data(dx));
    });
  }

  void ConvolveBackwardFilters(const ConvShape& shape, Matrix x, Matrix dy, Buffer& dfilters, Buffer* dbias) override {
    CheckImages(shape, x, dy);
    Run({x.buffer, dy.buffer}, {&dfilters, dbias}, [&](cudaStream_t stream) {
      absl::Status status =
          parts_.convolution->BackwardFilters(stream, shape, x.rows, Data(x), Data(dy), FilterData(shape, dfilters));
      if (!status.ok() || dbias == nullptr) return status;
      const Matrix places = {dy.buffer, dy.rows * shape.output().pixels(), shape.filters};
      return SumInto(stream, places, Data(*dbias, shape.filters));
    });
  }

  void MaxPool(const PoolShape& shape, Matrix x, Matrix y) override {
    CheckImages(shape, x, y);
    RunKernel("max pool", {x.buffer}, {y.buffer},
              [&](cudaStream_t stream) { return LaunchMaxPool(stream, shape, x.rows, Data(x), Data(y)); });
  }

  void MaxPoolBackward(const PoolShape& shape, Matrix x, Matrix dy, Matrix dx) override {
    CheckImages(shape, x, dy);
    CheckImages(shape, dx, dy);
    RunKernel("max pool backward", {x.buffer, dy.buffer}, {dx.buffer}, [&](cudaStream_t stream) {
      return LaunchMaxPoolBackward(stream, shape, x.rows, Data(x), Data(dy), Data(dx));
    });
  }

  void AveragePool(const PoolShape& shape, Matrix x, Matrix y) override {
    CheckImages(shape, x, y);
    RunKernel("average pool", {x.buffer}, {y.buffer},
              [&](cudaStream_t stream) { return LaunchAveragePool(stream, shape, x.rows, Data(x), Data(y)); });
  }

  void AveragePoolBackward(const PoolShape& shape, Matrix dy, Matrix dx) override {
    CheckImages(shape, dx, dy);
    RunKernel("average pool backward", {dy.buffer}, {dx.buffer}, [&](cudaStream_t stream) {
      return LaunchAveragePoolBackward(stream, shape, dx.rows, Data(dy), Data(dx));
    });
  }

  void BatchNorm(const BatchNormRates& rates, Matrix x, const Affine& affine, const SavedStatistics& saved,
                 const ColumnStatistics& running, Matrix y) override {
    CheckSame(x, y);
    Run({x.buffer, &affine.scale, &affine.offset},
        {&saved.mean, &saved.inverse_stddev, &running.mean, &running.variance, y.buffer}, [&](cudaStream_t stream) {
          absl::StatusOr<Scratch> scratch = MakeScratch(BatchNormScratch(x.rows, x.columns));
          if (!scratch.ok()) return scratch.status();
          return CudaStatus(LaunchBatchNorm(stream, BatchNormOf(x, affine, &saved, scratch->floats()),
                                            RunningOf(rates.epsilon, rates.momentum, running, x.columns), Data(y)),
                            "batch norm");
        });
  }

  void BatchNormInference(float epsilon, Matrix x, const Affine& affine, const ColumnStatistics& running,
                          Matrix y) override {
    CheckSame(x, y);
    RunKernel("batch norm inference", {x.buffer, &affine.scale, &affine.offset, &running.mean, &running.variance},
              {y.buffer}, [&](cudaStream_t stream) {
                return LaunchBatchNormInference(stream, BatchNormOf(x, affine, nullptr, nullptr),
                                                RunningOf(epsilon, 0.0f, running, x.columns), Data(y));
              });
  }

  void BatchNormBackward(Matrix x, Matrix dy, const Affine& affine, const SavedStatistics& saved,
                         const AffineGradient& gradient, const Matrix* dx) override {
    CheckSame(x, dy);
    if (dx != nullptr) CheckSame(x, *dx);
    Run({x.buffer, dy.buffer, &affine.scale, &saved.mean, &saved.inverse_stddev},
        {&gradient.scale, &gradient.offset, dx == nullptr ? nullptr : dx->buffer}, [&](cudaStream_t stream) {
          absl::StatusOr<Scratch> scratch = MakeScratch(BatchNormScratch(x.rows, x.columns));
          if (!scratch.ok()) return scratch.status();
          const BatchNormGradients gradients = {Data(dy), Data(gradient.scale, x.columns),
                                                Data(gradient.offset, x.columns), dx == nullptr ? nullptr : Data(*dx)};
          return CudaStatus(
              LaunchBatchNormBackward(stream, BatchNormOf(x, affine, &saved, scratch->floats()), gradients),
              "batch norm backward");
        });
  }

  void LayerNorm(float epsilon, Matrix x, const Affine& affine, Matrix y) override {
    CheckSame(x, y);
    RunKernel("layer norm", {x.buffer, &affine.scale, &affine.offset}, {y.buffer}, [&](cudaStream_t stream) {
      const LayerNormCall call = {x.rows, x.columns, epsilon, Data(x), Data(affine.scale, x.columns)};
      return LaunchLayerNorm(stream, call, Data(affine.offset, x.columns), Data(y));
    });
  }

  void LayerNormBackward(float epsilon, Matrix x, Matrix dy, const Affine& affine, const AffineGradient& gradient,
                         const Matrix* dx) override {
    CheckSame(x, dy);
    if (dx != nullptr) CheckSame(x, *dx);
    Run({x.buffer, dy.buffer, &affine.scale}, {&gradient.scale, &gradient.offset, dx == nullptr ? nullptr : dx->buffer},
        [&](cudaStream_t stream) {
          absl::StatusOr<Scratch> scratch = MakeScratch(LayerNormScratch(x.rows, x.columns));
          if (!scratch.ok()) return scratch.status();
          const LayerNormCall call = {x.rows, x.columns, epsilon, Data(x), Data(affine.scale, x.columns)};
          const LayerNormGradients gradients = {Data(dy), Data(gradient.scale, x.columns),
                                                Data(gradient.offset, x.columns), dx == nullptr ? nullptr : Data(*dx),
                                                scratch->floats()};
          return CudaStatus(LaunchLayerNormBackward(stream, call, gradients), "layer norm backward");
        });
  }

  void Fill(float value, Matrix y) override {
    RunKernel("fill", {}, {y.buffer},
              [&](cudaStream_t stream) { return LaunchFill(stream, value, y.elements(), Data(y)); });
  }

  void Copy(Matrix x, Matrix y) override {
    CheckElements(x, y);
    RunKernel("copy", {x.buffer}, {y.buffer}, [&](cudaStream_t stream) {
      if (x.elements() == 0) return cudaSuccess;
      return cudaMemcpyAsync(Data(y), Data(x), x.elements() * sizeof(float), cudaMemcpyDeviceToDevice, stream);
    });
  }

  void Scale(float alpha, Matrix x) override {
    RunKernel("scale", {}, {x.buffer},
              [&](cudaStream_t stream) { return LaunchScale(stream, alpha, x.elements(), Data(x)); });
  }

  void Narrow(HalfType type, Matrix x, Buffer& halves) override {
    RunKernel("narrow", {x.buffer}, {&halves}, [&](cudaStream_t stream) {
      return LaunchToHalf(stream, type, x.elements(), Data(x),
                          reinterpret_cast<uint16_t*>(Data(halves, (x.elements() + 1) / 2)));
    });
  }

  void Widen(HalfType type, const Buffer& halves, Matrix y) override {
    RunKernel("widen", {&halves}, {y.buffer}, [&](cudaStream_t stream) {
      return LaunchFromHalf(stream, type, y.elements(),
                            reinterpret_cast<const uint16_t*>(Data(halves, (y.elements() + 1) / 2)), ColumnBias(),
                            Data(y));
    });
  }

  void Axpy(float alpha, Matrix x, Matrix y) override {
    CheckElements(x, y);
    RunKernel("axpy", {x.buffer}, {y.buffer},
              [&](cudaStream_t stream) { return LaunchAxpy(stream, alpha, x.elements(), Data(x), Data(y)); });
  }

  void Add(Matrix a, Matrix b, Matrix y) override {
    CheckElements(a, y);
    CheckElements(b, y);
    RunKernel("add", {a.buffer, b.buffer}, {y.buffer},
              [&](cudaStream_t stream) { return LaunchAdd(stream, y.elements(), Data(a), Data(b), Data(y)); });
  }

  void GatherRows(Matrix table, absl::Span<const int64_t> rows, Matrix y) override {
    CheckRows(table, rows, y);
    Run({table.buffer}, {y.buffer}, [&](cudaStream_t stream) {
      absl::StatusOr<Scratch> numbers = PutNumbers(stream, {rows});
      if (!numbers.ok()) return numbers.status();
      return CudaStatus(LaunchGatherRows(stream, Data(table), table.columns,
                                         static_cast<const int64_t*>(numbers->bytes()), y.rows, Data(y)),
                        "gather rows");
    });
  }

  void ScatterAddRows(Matrix dy, absl::Span<const int64_t> rows, Matrix table) override {
    CheckRows(table, rows, dy);
    const GroupedRows grouped(rows);
    Run({dy.buffer}, {table.buffer}, [&](cudaStream_t stream) {
      absl::StatusOr<Scratch> numbers = PutNumbers(stream, {grouped.target, grouped.begin, grouped.source});
      if (!numbers.ok()) return numbers.status();
      const int64_t* const target = static_cast<const int64_t*>(numbers->bytes());
      const int64_t* const begin = target + grouped.target.size();
      const RowGroups groups = {target, begin, begin + grouped.begin.size(),
                                static_cast<int64_t>(grouped.target.size())};
      return CudaStatus(LaunchScatterAddRows(stream, Data(dy), dy.columns, groups, Data(table)), "scatter-add rows");
    });
  }

 private:
  static void CheckRows(const Matrix& table, absl::Span<const int64_t> rows, const Matrix& values) {
    Require(values.rows == static_cast<int64_t>(rows.size()) && values.columns == table.columns,
            "rows of another size");
    for (const int64_t row : rows) Require(row >= 0 && row < table.rows, "row outside the table");
  }

  static float* FilterData(const ConvShape& shape, const Buffer& filters) {
    return Data(filters, shape.filters * shape.filter_elements());
  }

  static BatchNormCall BatchNormOf(const Matrix& x, const Affine& affine, const SavedStatistics* saved,
                                   float* scratch) {
    return {x.rows,
            x.columns,
            Data(x),
            Data(affine.scale, x.columns),
            Data(affine.offset, x.columns),
            saved == nullptr ? nullptr : Data(saved->mean, x.columns),
            saved == nullptr ? nullptr : Data(saved->inverse_stddev, x.columns),
            scratch};
  }

  static RunningStatistics RunningOf(float epsilon, float momentum, const ColumnStatistics& running, int64_t columns) {
    return {epsilon, momentum, Data(running.mean, columns), Data(running.variance, columns)};
  }

  static GemmCall Product(const Factor& a, const Factor& b, const Matrix& c) {
    GemmCall call;
    call.rows = c.rows;
    call.columns = c.columns;
    call.depth = a.transposed ? a.matrix.rows : a.matrix.columns;
    Require((a.transposed ? a.matrix.columns : a.matrix.rows) == c.rows &&
                (b.transposed ? b.matrix.rows : b.matrix.columns) == c.columns &&
                (b.transposed ? b.matrix.columns : b.matrix.rows) == call.depth,
            "factors that do not fit");
    call.a = Data(a.matrix);
    call.a_transposed = a.transposed;
    call.b = Data(b.matrix);
    call.b_transposed = b.transposed;
    call.c = Data(c);
    return call;
  }

  // A product of any size, also over no terms.
  absl::Status Compute(cudaStream_t stream, const GemmCall& call) {
    const int64_t elements = call.rows * call.columns;
    if (elements == 0) return absl::OkStatus();
    if (call.depth > 0) return parts_.gemm->Multiply(stream, call);
    cudaError_t error = call.beta == 0.0f ? LaunchFill(stream, 0.0f, elements, call.c)
                                          : LaunchScale(stream, call.beta, elements, call.c);
    if (error == cudaSuccess && call.bias != nullptr) {
      error = LaunchAddBias(stream, call.bias, call.rows, call.columns, call.c);
    }
    if (error == cudaSuccess && call.relu) error = LaunchActivate(stream, Activation::kRelu, elements, call.c, call.c);
    return CudaStatus(error, "product over no terms");
  }

  absl::Status SumInto(cudaStream_t stream, const Matrix& x, float* sums) {
    absl::StatusOr<Scratch> scratch = MakeScratch(SumRowsScratch(x.rows, x.columns));
    if (!scratch.ok()) return scratch.status();
    return CudaStatus(LaunchSumRows(stream, Data(x), x.rows, x.columns, scratch->floats(), sums), "sum rows");
  }

  absl::StatusOr<Scratch> MakeScratch(int64_t floats) {
    return Scratch::Make(parts_.memory.get(), floats * static_cast<int64_t>(sizeof(float)));
  }

  // Lists of numbers, one after the other, for an operation in `stream`.
  absl::StatusOr<Scratch> PutNumbers(cudaStream_t stream, std::initializer_list<absl::Span<const int64_t>> lists) {
    std::vector<int64_t> all;
    for (const absl::Span<const int64_t> list : lists) all.insert(all.end(), list.begin(), list.end());
    const size_t bytes = all.size() * sizeof(int64_t);
    absl::StatusOr<Scratch> scratch = Scratch::Make(parts_.memory.get(), static_cast<int64_t>(bytes));
    if (!scratch.ok()) return scratch;
    const size_t piece_bytes = parts_.staging->piece_floats() * sizeof(float);
    for (size_t done = 0; done < bytes; done += piece_bytes) {
      absl::StatusOr<StagingPool::Piece*> piece = parts_.staging->Take();
      if (!piece.ok()) return piece.status();
      const size_t part = std::min(piece_bytes, bytes - done);
      std::memcpy((*piece)->floats(), reinterpret_cast<const char*>(all.data()) + done, part);
      absl::Status status = CudaStatus(cudaMemcpyAsync(static_cast<char*>(scratch->bytes()) + done, (*piece)->floats(),
                                                       part, cudaMemcpyHostToDevice, stream),
                                       "cudaMemcpyAsync");
      status.Update(parts_.staging->GiveBack(*piece, stream));
      if (!status.ok()) return status;
    }
    return scratch;
  }

  using Buffers = std::initializer_list<const Buffer*>;

  // Issues an operation that reads and writes buffers, of which some may be null. After an error nothing more is
  // issued.
  template <typename Launch>
  void Run(Buffers read, Buffers written, Launch launch) {
    if (!Enter().ok()) return;
    absl::InlinedVector<BufferUse*, 8> operands;
    for (const Buffers& buffers : {read, written}) {
      for (const Buffer* buffer : buffers) {
        if (buffer != nullptr) operands.push_back(&Own(*buffer).use());
      }
    }
    absl::Status status = parts_.order->BeforeOperation(operands);
    if (status.ok()) status = launch(parts_.order->compute());
    parts_.order->AfterOperation(operands);
    for (const Buffer* buffer : written) {
      if (buffer != nullptr) Own(*buffer).Written();
    }
    Keep(status).IgnoreError();
  }

  // The same with a kernel or one call of CUDA.
  template <typename Launch>
  void RunKernel(const char* name, Buffers read, Buffers written, Launch launch) {
    Run(read, written, [&](cudaStream_t stream) { return CudaStatus(launch(stream), name); });
  }

  // What every call begins with: the GPU is a thread's own choice, and an error stays.
  absl::Status Enter() ABSL_LOCKS_EXCLUDED(mutex_) {
    {
      absl::MutexLock lock(&mutex_);
      if (!first_error_.ok()) return first_error_;
    }
    return Keep(CudaStatus(cudaSetDevice(parts_.gpu.index), "cudaSetDevice"));
  }

  // Keeps the first error; answers it, or that there is none.
  absl::Status Keep(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_) {
    if (status.ok()) return status;
    absl::MutexLock lock(&mutex_);
    first_error_.Update(status);
    return first_error_;
  }

  const Parts parts_;
  HostCopies copies_;
  absl::Mutex mutex_;
  absl::Status first_error_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

absl::StatusOr<std::unique_ptr<Device>> OpenCudaDevice(const CudaOptions& options) {
  absl::StatusOr<Gpu> gpu = ChooseGpu(options.gpu);
  if (!gpu.ok()) return gpu.status();
  CudaDevice::Parts parts;
  parts.gpu = *std::move(gpu);
  absl::Status status = CudaStatus(cudaSetDevice(parts.gpu.index), "cudaSetDevice");
  if (!status.ok()) return OpeningFailed(parts.gpu, status);
  absl::StatusOr<std::unique_ptr<StreamOrder>> order = StreamOrder::Create();
  if (!order.ok()) return OpeningFailed(parts.gpu, order.status());
  parts.order = *std::move(order);
  absl::StatusOr<MemoryPool> memory = MemoryPool::Create(parts.gpu.index, parts.order->compute());
  if (!memory.ok()) return OpeningFailed(parts.gpu, memory.status());
  parts.memory = std::make_unique<MemoryPool>(*memory);
  parts.halves = std::make_unique<HalfCopies>(parts.memory.get());
  parts.staging = std::make_unique<StagingPool>(kPieceFloats, kMostPieces);
  absl::StatusOr<std::unique_ptr<Gemm>> gemm =
      MakeGemm(options, parts.gpu.name, parts.memory.get(), parts.halves.get());
  if (!gemm.ok()) return OpeningFailed(parts.gpu, gemm.status());
  parts.gemm = *std::move(gemm);
  parts.convolution =
      MakeBestConvolution({parts.gemm.get(), parts.memory.get(), parts.halves.get(), options, parts.gpu.name});
  return std::make_unique<CudaDevice>(std::move(parts));
}

}  // namespace ballast
