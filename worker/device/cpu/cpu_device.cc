// SPDX-License-Identifier: Apache-2.0
#include "worker/device/cpu/cpu_device.h"

#include <cblas.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <memory>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "worker/device/cpu/elementwise.h"
#include "worker/device/cpu/loss.h"
#include "worker/device/cpu/small_batch_gemm.h"

namespace ballast {
namespace {

// Two AVX-512 loads; the same alignment everywhere keeps the arithmetic the same.
constexpr size_t kAlignment = 128;

void Require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "cpu device: %s\n", what);
  std::abort();
}

class CpuBuffer : public Buffer {
 public:
  CpuBuffer(void* memory, int64_t size) : memory_(memory), size_(size) {}
  ~CpuBuffer() override { std::free(memory_); }
  CpuBuffer(const CpuBuffer&) = delete;
  CpuBuffer& operator=(const CpuBuffer&) = delete;

  int64_t size() const override { return size_; }
  absl::Span<float> host() override { return {data(), static_cast<size_t>(size_)}; }

  float* data() const {
    const uintptr_t address = reinterpret_cast<uintptr_t>(memory_);
    return reinterpret_cast<float*>((address + kAlignment - 1) / kAlignment * kAlignment);
  }

 private:
  // From calloc, which takes large pieces from the system as zeros that cost nothing until they are
  // touched.
  void* const memory_;
  const int64_t size_;
};

// Pages of 2 MiB where the system gives them when asked: a product that walks down a large matrix's columns misses the
// TLB at each row otherwise. No harm where it does not.
void AskForHugePages(void* memory, size_t bytes) {
  constexpr uintptr_t kHugePage = uintptr_t{2} << 20;
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(memory) + kHugePage - 1) / kHugePage * kHugePage;
  const uintptr_t end = (reinterpret_cast<uintptr_t>(memory) + bytes) / kHugePage * kHugePage;
  if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
}

std::optional<SmallBatchGemm> MakeSmallBatchGemm(int threads) {
  const TileKernel* kernel = Avx512TileKernel();
  if (kernel == nullptr) kernel = Avx2TileKernel();
  if (kernel == nullptr) return std::nullopt;
  return std::make_optional<SmallBatchGemm>(*kernel, threads);
}

float* Data(const Buffer& buffer) { return static_cast<const CpuBuffer&>(buffer).data(); }

absl::Span<float> Elements(const Matrix& m) {
  Require(m.buffer != nullptr && m.elements() <= m.buffer->size(), "matrix outside its buffer");
  return {Data(*m.buffer), static_cast<size_t>(m.elements())};
}

absl::Status CheckRange(const Buffer& buffer, int64_t offset, size_t elements) {
  if (offset >= 0 && offset <= buffer.size() && elements <= static_cast<size_t>(buffer.size() - offset)) {
    return absl::OkStatus();
  }
  return absl::OutOfRangeError(absl::StrCat("device buffer of ", buffer.size(), " elements: got ", elements,
                                            " elements at ", offset, ", want a range inside it"));
}

class CpuDevice : public Device {
 public:
  explicit CpuDevice(int threads) : threads_(threads), small_batch_(MakeSmallBatchGemm(threads)) {
    openblas_set_num_threads(threads);
  }

  std::string Describe() const override {
    const std::string own =
        small_batch_.has_value() ? absl::StrCat(", small batches by ", small_batch_->kernel().name) : "";
    return absl::StrCat("cpu (OpenBLAS, ", openblas_get_corename(), own, ", ", threads_,
                        threads_ == 1 ? " thread)" : " threads)");
  }

  absl::StatusOr<std::unique_ptr<Buffer>> Allocate(int64_t elements) override {
    Require(elements >= 0, "negative size");
    // Asked first, for Linux grants memory that is not there and kills the process that touches it.
    const size_t bytes = elements <= machine_floats_ ? elements * sizeof(float) + kAlignment : 0;
    void* const memory = bytes > 0 ? std::calloc(bytes, 1) : nullptr;
    if (memory == nullptr) {
      return absl::ResourceExhaustedError(absl::StrCat("cpu device: no memory for ", elements,
                                                       " floats more; this machine has room for ", machine_floats_,
                                                       " in all"));
    }
    AskForHugePages(memory, bytes);
    return std::make_unique<CpuBuffer>(memory, elements);
  }

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

  absl::Status Synchronize() override { return absl::OkStatus(); }

  void Multiply(const Factor& a, const Factor& b, float alpha, float beta, Matrix c) override {
    const int64_t k = a.transposed ? a.matrix.rows : a.matrix.columns;
    Require((a.transposed ? a.matrix.columns : a.matrix.rows) == c.rows &&
                (b.transposed ? b.matrix.rows : b.matrix.columns) == c.columns &&
                (b.transposed ? b.matrix.columns : b.matrix.rows) == k,
            "factors that do not fit");
    constexpr int64_t kMost = std::numeric_limits<blasint>::max();
    Require(c.rows <= kMost && c.columns <= kMost && k <= kMost, "matrix too large for BLAS");
    const absl::Span<float> result = Elements(c);
    if (result.empty()) return;
    if (k == 0) {
      // BLAS may leave c as it is here.
      for (float& value : result) value = beta == 0.0f ? 0.0f : beta * value;
      return;
    }
    const Product product{Elements(a.matrix).data(),
                          a.transposed,
                          Elements(b.matrix).data(),
                          b.transposed,
                          result.data(),
                          c.rows,
                          c.columns,
                          k};
    if (alpha == 1.0f && beta == 0.0f && small_batch_.has_value() && small_batch_->Suits(product)) {
      small_batch_->Multiply(product);
      return;
    }
    cblas_sgemm(CblasRowMajor, a.transposed ? CblasTrans : CblasNoTrans, b.transposed ? CblasTrans : CblasNoTrans,
                c.rows, c.columns, k, alpha, product.a, a.matrix.columns, product.b, b.matrix.columns, beta, product.c,
                c.columns);
  }

  void AddBias(const Buffer& bias, Matrix x) override {
    Require(bias.size() >= x.columns, "bias too short");
    const float* const b = Data(bias);
    float* row = Elements(x).data();
    for (int64_t i = 0; i < x.rows; ++i, row += x.columns) {
      for (int64_t j = 0; j < x.columns; ++j) row[j] += b[j];
    }
  }

  void SumRows(Matrix x, Buffer& sums) override {
    Require(sums.size() >= x.columns, "sums too short");
    float* const total = Data(sums);
    std::fill_n(total, x.columns, 0.0f);
    const float* row = Elements(x).data();
    for (int64_t i = 0; i < x.rows; ++i, row += x.columns) {
      for (int64_t j = 0; j < x.columns; ++j) total[j] += row[j];
    }
  }

  void Activate(Activation f, Matrix x, Matrix y) override {
    Require(x.elements() == y.elements(), "activation of another size");
    ballast::Activate(f, Elements(x), Elements(y));
  }

  void ActivateBackward(Activation f, Matrix x, Matrix dy, Matrix dx) override {
    Require(x.elements() == dy.elements() && x.elements() == dx.elements(), "activation gradient of another size");
    ballast::ActivateBackward(f, Elements(x), Elements(dy), Elements(dx));
  }

  void Dropout(float rate, const DropoutKey& key, Matrix x, Matrix y) override {
    Require(x.elements() == y.elements(), "dropout of another size");
    Require(rate >= 0.0f && rate < 1.0f, "dropout rate outside [0, 1)");
    ballast::Dropout(rate, key, Elements(x), Elements(y));
  }

  void Loss(LossFunction f, Matrix outputs, const Buffer& labels, Buffer& totals, const Matrix* gradient) override {
    Require(labels.size() >= outputs.rows, "fewer labels than outputs");
    Require(totals.size() >= kLossTotals, "no room for the totals");
    Require(gradient == nullptr || gradient->elements() == outputs.elements(), "loss gradient of another size");
    const absl::Span<const float> label(Data(labels), outputs.rows);
    const absl::Span<float> derivative = gradient == nullptr ? absl::Span<float>() : Elements(*gradient);
    LossTotals sums;
    switch (f) {
      case LossFunction::kSoftmaxCrossEntropy:
        for (const float value : label) {
          Require(value >= 0.0f && value < outputs.columns, "label that is no class");
        }
        sums = SoftmaxCrossEntropy(Elements(outputs), outputs.columns, label, derivative);
        break;
      case LossFunction::kMeanSquaredError:
        Require(outputs.columns == 1, "mean squared error of several columns");
        sums = MeanSquaredError(Elements(outputs), label, derivative);
        break;
    }
    Data(totals)[kLossSum] = static_cast<float>(sums.loss_sum);
    Data(totals)[kCorrect] = static_cast<float>(sums.correct);
  }

 private:
  const int threads_;
  // Where the processor has a kernel for it.
  std::optional<SmallBatchGemm> small_batch_;
  const int64_t machine_floats_ = static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE) / sizeof(float);
};

}  // namespace

std::unique_ptr<Device> CreateCpuDevice(int threads) { return std::make_unique<CpuDevice>(threads); }

}  // namespace ballast
