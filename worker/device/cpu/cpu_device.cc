// SPDX-License-Identifier: Apache-2.0
#include "worker/device/cpu/cpu_device.h"

#include <cblas.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/codecs/codec.h"
#include "common/simd/instruction_set.h"
#include "worker/device/cpu/convolution.h"
#include "worker/device/cpu/cpu_buffer.h"
#include "worker/device/cpu/default_convolution.h"
#include "worker/device/cpu/elementwise.h"
#include "worker/device/cpu/embedding.h"
#include "worker/device/cpu/gemm/small_batch_gemm.h"
#include "worker/device/cpu/loss.h"
#include "worker/device/cpu/normalization.h"
#include "worker/device/cpu/pooling.h"

namespace ballast {
namespace {

// Requests pages of 2 MiB, which is harmless if the system has none. With small pages, a product that walks down the
// columns of a large matrix misses the TLB at each row.
void AskForHugePages(void* memory, size_t bytes) {
  constexpr uintptr_t kHugePage = uintptr_t{2} << 20;
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(memory) + kHugePage - 1) / kHugePage * kHugePage;
  const uintptr_t end = (reinterpret_cast<uintptr_t>(memory) + bytes) / kHugePage * kHugePage;
  if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
}

int64_t MachineBytes() { return static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE); }

std::optional<SmallBatchGemm> MakeSmallBatchGemm(int threads) {
  const TileKernel* const kernel = TileKernelOf(ChosenInstructionSet());
  if (kernel == nullptr) return std::nullopt;
  return std::make_optional<SmallBatchGemm>(*kernel, threads);
}

// Checks the input and output images of a window operation.
template <typename Shape>
void CheckImages(const Shape& shape, const Matrix& in, const Matrix& out) {
  Require(Fits(shape.window, shape.input), "window does not fit the image");
  Require(in.rows == out.rows && in.columns == shape.input.elements() && out.columns == shape.output().elements(),
          "images do not have the shape of the operation");
}

float* Filters(const ConvShape& shape, const Buffer& filters) {
  return Data(filters, shape.filters * shape.filter_elements());
}

void CheckSame(const Matrix& a, const Matrix& b) {
  Require(a.rows == b.rows && a.columns == b.columns, "matrices have different shapes");
}

void CheckRows(const Matrix& table, absl::Span<const int64_t> rows, const Matrix& values) {
  Require(values.rows == static_cast<int64_t>(rows.size()) && values.columns == table.columns,
          "shape of the rows does not match the table");
  for (const int64_t row : rows) Require(row >= 0 && row < table.rows, "row is outside the table");
}

// Checks bags of rows of a table against the matrix with their vectors, and returns the columns of those.
PooledColumns CheckBags(const Matrix& table, const RowBags& bags, int64_t first, const Matrix& values) {
  Require(Fits(bags, values.rows, table.rows), "bags do not fit the examples or the table");
  Require(first >= 0 && first + bags.fields * table.columns <= values.columns, "vectors of the bags are too wide");
  return {values.rows, values.columns, first, table.columns};
}

// Checks the vectors of an interaction against the matrix with their products.
InteractionShape CheckInteraction(int64_t dim, const Matrix& vectors, const Matrix& products) {
  Require(dim > 0 && vectors.columns > 0 && vectors.columns % dim == 0, "row is not vectors of that many elements");
  const InteractionShape shape = {vectors.rows, vectors.columns / dim, dim};
  Require(products.rows == vectors.rows && products.columns == dim + shape.pairs(),
          "products do not match the vectors");
  return shape;
}

Rows RowsOf(const Matrix& x) { return {Elements(x).data(), x.rows, x.columns}; }

ScaleAndOffset ValuesOf(const Affine& affine, int64_t columns) {
  return {Data(affine.scale, columns), Data(affine.offset, columns)};
}

ScaleAndOffsetGradient ValuesOf(const AffineGradient& gradient, int64_t columns) {
  return {Data(gradient.scale, columns), Data(gradient.offset, columns)};
}

Statistics ValuesOf(const ColumnStatistics& statistics, int64_t columns) {
  return {Data(statistics.mean, columns), Data(statistics.variance, columns)};
}

const Codec& CodecOf(HalfType type) {
  return **FindCodec(type == HalfType::kBf16 ? v1::ENCODING_BF16 : v1::ENCODING_FP16);
}

absl::Status CheckRange(const Buffer& buffer, int64_t offset, size_t elements) {
  if (offset >= 0 && offset <= buffer.size() && elements <= static_cast<size_t>(buffer.size() - offset)) {
    return absl::OkStatus();
  }
  return absl::OutOfRangeError(absl::StrCat("device buffer of ", buffer.size(), " elements: got ", elements,
                                            " elements at ", offset, ", want a range inside it"));
}

Product ProductOf(const Factor& a, const Factor& b, Matrix c) {
  const int64_t depth = a.transposed ? a.matrix.rows : a.matrix.columns;
  Require((a.transposed ? a.matrix.columns : a.matrix.rows) == c.rows &&
              (b.transposed ? b.matrix.rows : b.matrix.columns) == c.columns &&
              (b.transposed ? b.matrix.columns : b.matrix.rows) == depth,
          "factors do not fit each other or the result");
  return {Elements(a.matrix).data(),
          a.transposed,
          Elements(b.matrix).data(),
          b.transposed,
          Elements(c).data(),
          c.rows,
          c.columns,
          depth};
}

class CpuRowsOfProduct : public RowsOfProduct {
 public:
  CpuRowsOfProduct(SmallBatchGemm& gemm, const Product& product)
      : gemm_(gemm), gradient_(gemm.BeginWeightGradient(product)) {}
  ~CpuRowsOfProduct() override { gemm_.EndWeightGradient(std::move(gradient_)); }

  void Compute(int64_t begin, int64_t end) override { gemm_.ComputeRows(*gradient_, begin, end); }

 private:
  SmallBatchGemm& gemm_;
  std::unique_ptr<SmallBatchGemm::WeightGradient> gradient_;
};

class CpuDevice : public Device {
 public:
  CpuDevice(int threads, std::unique_ptr<Convolution> convolution, int64_t memory_bytes)
      : threads_(threads),
        small_batch_(MakeSmallBatchGemm(threads)),
        convolution_(std::move(convolution)),
        most_floats_(memory_bytes / static_cast<int64_t>(sizeof(float))) {
    openblas_set_num_threads(threads);
  }

  std::string Describe() const override {
    const std::string own =
        small_batch_.has_value() ? absl::StrCat(", small batches by ", small_batch_->kernel().name) : "";
    return absl::StrCat("cpu (OpenBLAS, ", openblas_get_corename(), own, ", convolutions by ", convolution_->name(),
                        ", ", threads_, threads_ == 1 ? " thread)" : " threads)");
  }

  absl::StatusOr<Precision> SetPrecision(Precision precision) override {
    if (Takes(precision)) return Precision::kFp32;
    return absl::UnimplementedError(absl::StrCat("cpu device: got precision ",
                                                 precision == Precision::kBf16 ? "bf16" : "fp16",
                                                 ", want fp32: use a GPU (--device cuda), or --precision fp32"));
  }

  bool Takes(Precision precision) const override {
    return precision == Precision::kFp32 || precision == Precision::kTf32;
  }

  DeviceMemory Memory() const override {
    return {.free = static_cast<int64_t>((most_floats_ - used_floats_) * sizeof(float))};
  }

  int64_t PeakBytes() const override { return peak_floats_ * static_cast<int64_t>(sizeof(float)); }
  void ResetPeak() override { peak_floats_ = used_floats_.load(); }

  ElementType activation_type() const override { return ElementType::kFp32; }

  absl::StatusOr<std::unique_ptr<Buffer>> AllocateActivations(int64_t elements) override { return Allocate(elements); }

  absl::StatusOr<std::unique_ptr<Buffer>> Allocate(int64_t elements) override {
    return Allocate(elements, /*in_heap=*/false);
  }
  absl::StatusOr<std::unique_ptr<Buffer>> AllocateGradient(int64_t floats) override {
    return Allocate(floats, /*in_heap=*/true);
  }

  std::unique_ptr<HostMemory> AllocateHost(int64_t floats) override { return std::make_unique<UnpinnedMemory>(floats); }
  std::unique_ptr<HostRegistration> RegisterHost(absl::Span<char>) override { return nullptr; }

  absl::Status ReserveWorkspace(absl::Span<const ConvShape>, int64_t) override { return absl::OkStatus(); }

  absl::Status Upload(absl::Span<const float> values, Buffer& to, int64_t offset) override {
    if (absl::Status status = CheckRange(to, offset, values.size()); !status.ok()) return status;
    std::copy(values.begin(), values.end(), Data(to) + offset);
    return absl::OkStatus();
  }

  absl::Status Download(const Buffer& from, int64_t offset, absl::Span<float> values) override {
    if (absl::Status status = CheckRange(from, offset, values.size()); !status.ok()) return status;
    std::copy_n(Data(from) + offset, values.size(), values.begin());
    return absl::OkStatus();
  }

  absl::Status DownloadAll(absl::Span<const HostCopy> copies) override {
    absl::Status status;
    for (const HostCopy& copy : copies) status.Update(Download(*copy.from, 0, copy.values));
    return status;
  }

  absl::Status Synchronize() override { return absl::OkStatus(); }
  bool CopyFrom(Device&, Matrix, Matrix) override { return false; }

  void Mark() override {}

  void Repeat(const Segment&, absl::FunctionRef<void()> issue) override { issue(); }
  void Record(TimelineRecorder*) override {}

  void Multiply(const Factor& a, const Factor& b, float alpha, float beta, Matrix c) override {
    const Product product = ProductOf(a, b, c);
    const int64_t k = product.depth;
    constexpr int64_t kMax = std::numeric_limits<blasint>::max();
    Require(c.rows <= kMax && c.columns <= kMax && k <= kMax, "matrix is too large for BLAS");
    const absl::Span<float> result = Elements(c);
    if (result.empty()) return;
    if (k == 0) {
      // BLAS may leave c unchanged in this case.
      for (float& value : result) value = beta == 0.0f ? 0.0f : beta * value;
      return;
    }
    if (alpha == 1.0f && beta == 0.0f && small_batch_.has_value() && small_batch_->Suits(product)) {
      small_batch_->Multiply(product);
      return;
    }
    cblas_sgemm(CblasRowMajor, a.transposed ? CblasTrans : CblasNoTrans, b.transposed ? CblasTrans : CblasNoTrans,
                c.rows, c.columns, k, alpha, product.a, a.matrix.columns, product.b, b.matrix.columns, beta, product.c,
                c.columns);
  }

  std::unique_ptr<RowsOfProduct> MultiplyByRows(const Factor& a, const Factor& b, Matrix c) override {
    const Product product = ProductOf(a, b, c);
    const bool suits = a.transposed && small_batch_.has_value() && small_batch_->Suits(product);
    return suits ? std::make_unique<CpuRowsOfProduct>(*small_batch_, product) : nullptr;
  }

  bool MultiplyAsRowsCome(const Factor& a, const Factor& b, ArrivingRows& rows, Matrix c) override {
    const Product product = ProductOf(a, b, c);
    if (a.transposed || !b.transposed || !small_batch_.has_value() || !small_batch_->Suits(product)) return false;
    small_batch_->BeginForward(product);
    while (const std::optional<ArrivingRows::Range> come = rows.Next()) {
      small_batch_->ForwardInside(come->begin, come->end);
    }
    small_batch_->EndForward();
    return true;
  }

  void MultiplyBiasActivate(const Factor& a, const Factor& b, const Buffer& bias, std::optional<Activation> f,
                            Matrix c) override {
    Multiply(a, b, 1.0f, 0.0f, c);
    AddBias(bias, c);
    if (f.has_value()) Activate(*f, c, c);
  }

  void AddBias(const Buffer& bias, Matrix x) override {
    Require(bias.size() >= x.columns, "bias is too short");
    const float* const b = Data(bias);
    float* row = Elements(x).data();
    for (int64_t i = 0; i < x.rows; ++i, row += x.columns) {
      for (int64_t j = 0; j < x.columns; ++j) row[j] += b[j];
    }
  }

  void SumRows(Matrix x, Buffer& sums) override {
    Require(sums.size() >= x.columns, "buffer of the sums is too short");
    float* const total = Data(sums);
    std::fill_n(total, x.columns, 0.0f);
    const float* row = Elements(x).data();
    for (int64_t i = 0; i < x.rows; ++i, row += x.columns) {
      for (int64_t j = 0; j < x.columns; ++j) total[j] += row[j];
    }
  }

  void Activate(Activation f, Matrix x, Matrix y) override {
    Require(x.elements() == y.elements(), "activation: matrices have different sizes");
    ballast::Activate(f, Elements(x), Elements(y));
  }

  void ActivateBackward(Activation f, Matrix x, Matrix dy, Matrix dx) override {
    Require(x.elements() == dy.elements() && x.elements() == dx.elements(),
            "activation gradient: matrices have different sizes");
    ballast::ActivateBackward(f, Elements(x), Elements(dy), Elements(dx));
  }

  void Dropout(float rate, const DropoutKey& key, Matrix x, Matrix y) override {
    Require(x.elements() == y.elements(), "dropout: matrices have different sizes");
    Require(rate >= 0.0f && rate < 1.0f, "dropout rate is outside [0, 1)");
    ballast::Dropout(rate, key, Elements(x), Elements(y));
  }

  void Convolve(const ConvShape& shape, Matrix x, const Buffer& filters, const Buffer* bias, Matrix y) override {
    CheckImages(shape, x, y);
    convolution_->Forward(shape, x.rows, Elements(x).data(), Filters(shape, filters),
                          bias == nullptr ? nullptr : Data(*bias, shape.filters), Elements(y).data());
  }

  void ConvolveBackwardData(const ConvShape& shape, Matrix dy, const Buffer& filters, Matrix dx) override {
    CheckImages(shape, dx, dy);
    convolution_->BackwardData(shape, dx.rows, Elements(dy).data(), Filters(shape, filters), Elements(dx).data());
  }

  void ConvolveBackwardFilters(const ConvShape& shape, Matrix x, Matrix dy, Buffer& dfilters, Buffer* dbias) override {
    CheckImages(shape, x, dy);
    convolution_->BackwardFilters(shape, x.rows, Elements(x).data(), Elements(dy).data(), Filters(shape, dfilters),
                                  dbias == nullptr ? nullptr : Data(*dbias, shape.filters));
  }

  void MaxPool(const PoolShape& shape, Matrix x, Buffer* positions, Matrix y) override {
    CheckImages(shape, x, y);
    float* const kept = positions == nullptr ? nullptr : Data(*positions, x.rows * shape.position_floats());
    ballast::MaxPool(shape, x.rows, Elements(x).data(), kept, Elements(y).data());
  }

  void MaxPoolBackward(const PoolShape& shape, const Buffer& positions, Matrix dy, Matrix dx) override {
    CheckImages(shape, dx, dy);
    ballast::MaxPoolBackward(shape, dx.rows, Data(positions, dx.rows * shape.position_floats()), Elements(dy).data(),
                             Elements(dx).data());
  }

  void AveragePool(const PoolShape& shape, Matrix x, Matrix y) override {
    CheckImages(shape, x, y);
    ballast::AveragePool(shape, x.rows, Elements(x).data(), Elements(y).data());
  }

  void AveragePoolBackward(const PoolShape& shape, Matrix dy, Matrix dx) override {
    CheckImages(shape, dx, dy);
    ballast::AveragePoolBackward(shape, dx.rows, Elements(dy).data(), Elements(dx).data());
  }

  void BatchNorm(const BatchNormRates& rates, Matrix x, const Affine& affine, const SavedStatistics& saved,
                 const ColumnStatistics& running, Matrix y) override {
    CheckSame(x, y);
    ballast::BatchNorm(rates.epsilon, RowsOf(x), ValuesOf(affine, x.columns),
                       {Data(saved.mean, x.columns), Data(saved.inverse_stddev, x.columns)},
                       {ValuesOf(running, x.columns), rates.momentum}, Elements(y).data());
  }

  void BatchNormInference(float epsilon, Matrix x, const Affine& affine, const ColumnStatistics& running,
                          Matrix y) override {
    CheckSame(x, y);
    ballast::BatchNormInference(epsilon, RowsOf(x), ValuesOf(affine, x.columns), ValuesOf(running, x.columns),
                                Elements(y).data());
  }

  void BatchNormBackward(Matrix x, Matrix dy, const Affine& affine, const SavedStatistics& saved,
                         const AffineGradient& gradient, const Matrix* dx) override {
    CheckSame(x, dy);
    if (dx != nullptr) CheckSame(x, *dx);
    ballast::BatchNormBackward(RowsOf(x), Elements(dy).data(), ValuesOf(affine, x.columns),
                               {Data(saved.mean, x.columns), Data(saved.inverse_stddev, x.columns)},
                               ValuesOf(gradient, x.columns), dx == nullptr ? nullptr : Elements(*dx).data());
  }

  void LayerNorm(float epsilon, Matrix x, const Affine& affine, Matrix y) override {
    CheckSame(x, y);
    ballast::LayerNorm(epsilon, RowsOf(x), ValuesOf(affine, x.columns), Elements(y).data());
  }

  void LayerNormBackward(float epsilon, Matrix x, Matrix dy, const Affine& affine, const AffineGradient& gradient,
                         const Matrix* dx) override {
    CheckSame(x, dy);
    if (dx != nullptr) CheckSame(x, *dx);
    ballast::LayerNormBackward(epsilon, RowsOf(x), Elements(dy).data(), ValuesOf(affine, x.columns),
                               ValuesOf(gradient, x.columns), dx == nullptr ? nullptr : Elements(*dx).data());
  }

  void Fill(float value, Matrix y) override {
    const absl::Span<float> to = Elements(y);
    std::fill(to.begin(), to.end(), value);
  }

  void Copy(Matrix x, Matrix y) override {
    Require(x.elements() == y.elements(), "copy: matrices have different sizes");
    const absl::Span<const float> from = Elements(x);
    std::copy(from.begin(), from.end(), Elements(y).begin());
  }

  void Scale(float alpha, Matrix x) override {
    for (float& value : Elements(x)) value *= alpha;
  }

  void ScaleAndCheck(float alpha, Matrix x, Buffer& not_finite) override {
    float& flag = *Data(not_finite, 1);
    if (!ballast::ScaleAndCheck(alpha, Elements(x))) flag = 1;
  }

  // Uses the wire's codecs, so that the bits are the same.
  void Narrow(HalfType type, Matrix x, Buffer& halves) override {
    char* const bytes = reinterpret_cast<char*>(Data(halves, (x.elements() + 1) / 2));
    CodecOf(type).Encode(Elements(x), 0, bytes);
  }

  void Widen(HalfType type, const Buffer& halves, Matrix y) override {
    const char* const bytes = reinterpret_cast<const char*>(Data(halves, (y.elements() + 1) / 2));
    const absl::string_view payload(bytes, y.elements() * 2);
    Require(CodecOf(type).Decode({&payload, 1}, Elements(y)).ok(), "16-bit values cannot be decoded");
  }

  void Axpy(float alpha, Matrix x, Matrix y) override {
    Require(x.elements() == y.elements(), "axpy: matrices have different sizes");
    ballast::Axpy(alpha, Elements(x), Elements(y));
  }

  void Add(Matrix a, Matrix b, Matrix y) override {
    Require(a.elements() == y.elements() && b.elements() == y.elements(), "sum: matrices have different sizes");
    ballast::Add(Elements(a), Elements(b), Elements(y));
  }

  void GatherRows(Matrix table, absl::Span<const int64_t> rows, Matrix y) override {
    CheckRows(table, rows, y);
    const float* const from = Elements(table).data();
    float* to = Elements(y).data();
    for (const int64_t row : rows) to = std::copy_n(from + row * table.columns, table.columns, to);
  }

  void ScatterAddRows(Matrix dy, absl::Span<const int64_t> rows, Matrix table) override {
    CheckRows(table, rows, dy);
    const absl::Span<const float> from = Elements(dy);
    const absl::Span<float> to = Elements(table);
    const size_t width = table.columns;
    for (size_t i = 0; i < rows.size(); ++i) {
      ballast::Axpy(1.0f, from.subspan(i * width, width), to.subspan(rows[i] * width, width));
    }
  }

  void CopyColumns(int64_t columns, Matrix x, Matrix y) override {
    Require(x.rows == y.rows && columns >= 0 && columns <= std::min(x.columns, y.columns),
            "columns to copy are outside a matrix");
    ballast::CopyColumns(x.rows, columns, Elements(x).data(), x.columns, Elements(y).data(), y.columns);
  }

  void PoolRows(Matrix table, const RowBags& bags, int64_t first, Matrix y) override {
    const PooledColumns in_y = CheckBags(table, bags, first, y);
    ballast::PoolRows(Elements(table).data(), bags, in_y, Elements(y).data());
  }

  void PoolRowsBackward(Matrix dy, const RowBags& bags, int64_t first, Matrix dtable) override {
    const PooledColumns in_dy = CheckBags(dtable, bags, first, dy);
    ballast::PoolRowsBackward(Elements(dy).data(), bags, in_dy, dtable.rows, Elements(dtable).data());
  }

  void DotInteraction(int64_t dim, Matrix x, Matrix y) override {
    ballast::DotInteraction(CheckInteraction(dim, x, y), Elements(x).data(), Elements(y).data());
  }

  void DotInteractionBackward(int64_t dim, Matrix x, Matrix dy, Matrix dx) override {
    CheckSame(x, dx);
    ballast::DotInteractionBackward(CheckInteraction(dim, x, dy), Elements(x).data(), Elements(dy).data(),
                                    Elements(dx).data());
  }

  void Loss(LossFunction f, Matrix outputs, const Buffer& labels, Buffer& totals,
            const LossGradient* gradient) override {
    Require(labels.size() >= outputs.rows, "fewer labels than outputs");
    Require(totals.size() >= kLossTotals, "buffer of the loss totals is too short");
    Require(gradient == nullptr || gradient->matrix.elements() == outputs.elements(),
            "loss gradient has another size than the outputs");
    const absl::Span<const float> label(Data(labels), outputs.rows);
    const absl::Span<float> derivative = gradient == nullptr ? absl::Span<float>() : Elements(gradient->matrix);
    LossTotals sums;
    switch (f) {
      case LossFunction::kSoftmaxCrossEntropy:
        for (const float value : label) {
          Require(value >= 0.0f && value < outputs.columns, "label is not a class");
        }
        sums = SoftmaxCrossEntropy(Elements(outputs), outputs.columns, label, derivative);
        break;
      case LossFunction::kMeanSquaredError:
        Require(outputs.columns == 1, "mean squared error needs one output column");
        sums = MeanSquaredError(Elements(outputs), label, derivative);
        break;
      case LossFunction::kSigmoidCrossEntropy:
        Require(outputs.columns == 1, "sigmoid cross-entropy needs one output column");
        for (const float value : label) Require(value == 0.0f || value == 1.0f, "label is not 0 or 1");
        sums = SigmoidCrossEntropy(Elements(outputs), label, derivative);
        break;
    }
    if (gradient != nullptr && gradient->scale != 1) Scale(gradient->scale, gradient->matrix);
    Data(totals)[kLossSum] = static_cast<float>(sums.loss_sum);
    Data(totals)[kCorrect] = static_cast<float>(sums.correct);
  }

 private:
  // In this process's heap, if `in_heap` and that has room.
  absl::StatusOr<std::unique_ptr<Buffer>> Allocate(int64_t elements, bool in_heap) {
    Require(elements >= 0, "negative size");
    // Checked first, because Linux grants memory that it does not have and kills the process that touches it.
    const int64_t free = most_floats_ - used_floats_;
    FloatMemory memory;
    if (elements <= free) memory = in_heap ? FloatMemory::Readable(elements) : FloatMemory::Zeroed(elements);
    if (!memory) {
      return absl::ResourceExhaustedError(absl::StrCat("cpu device: got ", elements,
                                                       " floats to allocate, want at most ", free,
                                                       "; its total memory is ", most_floats_, " floats"));
    }
    AskForHugePages(memory.data(), elements * sizeof(float));
    if (in_heap) std::fill_n(memory.data(), elements, 0.0f);
    auto buffer = std::make_unique<CpuBuffer>(std::move(memory), elements, &used_floats_);
    peak_floats_ = std::max(peak_floats_.load(), used_floats_.load());
    return buffer;
  }

  const int threads_;
  // Set if the processor has a kernel for it.
  std::optional<SmallBatchGemm> small_batch_;
  const std::unique_ptr<Convolution> convolution_;
  const int64_t most_floats_;
  std::atomic<int64_t> used_floats_{0};
  // The most of them at once since ResetPeak.
  std::atomic<int64_t> peak_floats_{0};
};

}  // namespace

std::unique_ptr<Device> CreateCpuDevice(int threads) {
  return CreateCpuDevice(threads, MakeDefaultConvolution(threads));
}

std::unique_ptr<Device> CreateCpuDevice(int threads, std::unique_ptr<Convolution> convolution) {
  return std::make_unique<CpuDevice>(threads, std::move(convolution), MachineBytes());
}

std::unique_ptr<Device> CreateCpuDevice(int threads, int64_t memory_bytes) {
  return std::make_unique<CpuDevice>(threads, MakeDefaultConvolution(threads), memory_bytes);
}

}  // namespace ballast
