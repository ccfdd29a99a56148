// SPDX-License-Identifier: Apache-2.0
#include "worker/device/testing/queued_device.h"

#include <algorithm>
#include <deque>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "worker/device/cpu/cpu_device.h"

namespace ballast {
namespace {

constexpr uint64_t kNoLimit = std::numeric_limits<uint64_t>::max();

// Shares the CPU device's buffer with the operations on it that are still queued.
class QueuedBuffer : public Buffer {
 public:
  explicit QueuedBuffer(std::unique_ptr<Buffer> memory) : memory_(std::move(memory)) {}

  int64_t size() const override { return memory_->size(); }
  ElementType type() const override { return memory_->type(); }
  absl::Span<float> host() override { return {}; }
  const std::shared_ptr<Buffer>& memory() const { return memory_; }

  // Number of the last operation on the buffer; guarded by the device's mutex.
  mutable uint64_t last = 0;

 private:
  const std::shared_ptr<Buffer> memory_;
};

const QueuedBuffer& Own(const Buffer& buffer) { return static_cast<const QueuedBuffer&>(buffer); }
Buffer& Inner(const Buffer& buffer) { return *Own(buffer).memory(); }
Matrix Inner(const Matrix& m) { return {&Inner(*m.buffer), m.rows, m.columns}; }
Factor Inner(const Factor& f) { return {Inner(f.matrix), f.transposed}; }
std::optional<Matrix> Inner(const Matrix* m) { return m == nullptr ? std::nullopt : std::make_optional(Inner(*m)); }
const Matrix* Pointer(const std::optional<Matrix>& m) { return m.has_value() ? &*m : nullptr; }
Affine Inner(const Affine& a) { return {Inner(a.scale), Inner(a.offset)}; }
AffineGradient Inner(const AffineGradient& a) { return {Inner(a.scale), Inner(a.offset)}; }
SavedStatistics Inner(const SavedStatistics& s) { return {Inner(s.mean), Inner(s.inverse_stddev)}; }
ColumnStatistics Inner(const ColumnStatistics& s) { return {Inner(s.mean), Inner(s.variance)}; }

class QueuedCpuDevice : public QueuedDevice {
 public:
  explicit QueuedCpuDevice(std::unique_ptr<Device> cpu) : cpu_(std::move(cpu)), thread_([this] { Compute(); }) {}
  ~QueuedCpuDevice() override {
    {
      absl::MutexLock lock(&mutex_);
      stop_ = true;
      limit_ = kNoLimit;
    }
    thread_.join();
  }

  void Allow(uint64_t operations) override {
    absl::MutexLock lock(&mutex_);
    limit_ = done_ + operations;
  }
  void AllowAll() override {
    absl::MutexLock lock(&mutex_);
    limit_ = kNoLimit;
  }
  uint64_t done() const override {
    absl::MutexLock lock(&mutex_);
    return done_;
  }
  uint64_t issued() const override {
    absl::MutexLock lock(&mutex_);
    return issued_;
  }
  bool AwaitIssued(uint64_t operations) override {
    absl::MutexLock lock(&mutex_);
    const auto reached = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return issued_ >= operations; };
    return mutex_.AwaitWithTimeout(absl::Condition(&reached), absl::Minutes(1));
  }
  uint64_t uploaded() const override {
    absl::MutexLock lock(&mutex_);
    return uploaded_;
  }
  uint64_t downloaded() const override {
    absl::MutexLock lock(&mutex_);
    return downloaded_;
  }
  bool AwaitDownloaded(uint64_t bytes) override {
    absl::MutexLock lock(&mutex_);
    const auto reached = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return downloaded_ >= bytes; };
    return mutex_.AwaitWithTimeout(absl::Condition(&reached), absl::Minutes(1));
  }
  void SetDuration(absl::Duration duration) override {
    absl::MutexLock lock(&mutex_);
    duration_ = duration;
  }
  void Fail(absl::Status status) override {
    absl::MutexLock lock(&mutex_);
    status_.Update(status);
  }

  std::string Describe() const override { return "queued " + cpu_->Describe(); }
  absl::StatusOr<Precision> SetPrecision(Precision precision) override { return cpu_->SetPrecision(precision); }
  bool Takes(Precision precision) const override { return cpu_->Takes(precision); }
  DeviceMemory Memory() const override { return cpu_->Memory(); }

  ElementType activation_type() const override { return cpu_->activation_type(); }

  absl::StatusOr<std::unique_ptr<Buffer>> AllocateActivations(int64_t elements) override { return Allocate(elements); }

  absl::StatusOr<std::unique_ptr<Buffer>> Allocate(int64_t elements) override {
    absl::StatusOr<std::unique_ptr<Buffer>> memory = cpu_->Allocate(elements);
    if (!memory.ok()) return memory.status();
    return std::make_unique<QueuedBuffer>(*std::move(memory));
  }

  absl::Status Upload(absl::Span<const float> values, Buffer& to, int64_t offset) override {
    if (absl::Status status = AwaitLast(to); !status.ok()) return status;
    absl::Status status = cpu_->Upload(values, Inner(to), offset);
    absl::MutexLock lock(&mutex_);
    uploaded_ += status.ok() ? values.size() * sizeof(float) : 0;
    return status;
  }
  absl::Status Download(const Buffer& from, int64_t offset, absl::Span<float> values) override {
    if (absl::Status status = AwaitLast(from); !status.ok()) return status;
    absl::Status status = cpu_->Download(Inner(from), offset, values);
    absl::MutexLock lock(&mutex_);
    downloaded_ += status.ok() ? values.size() * sizeof(float) : 0;
    return status;
  }
  bool CopyFrom(Device&, Matrix, Matrix) override { return false; }
  absl::Status Synchronize() override {
    absl::MutexLock lock(&mutex_);
    return AwaitLocked(issued_);
  }
  void Mark() override {
    absl::MutexLock lock(&mutex_);
    marks_.push_back(issued_);
  }
  void Repeat(const Segment&, absl::FunctionRef<void()> issue) override { issue(); }

  void Multiply(const Factor& a, const Factor& b, float alpha, float beta, Matrix c) override {
    Issue({a.matrix.buffer, b.matrix.buffer, c.buffer},
          [=, this, a = Inner(a), b = Inner(b), c = Inner(c)] { cpu_->Multiply(a, b, alpha, beta, c); });
  }
  void MultiplyBiasActivate(const Factor& a, const Factor& b, const Buffer& bias, std::optional<Activation> f,
                            Matrix c) override {
    Issue({a.matrix.buffer, b.matrix.buffer, &bias, c.buffer},
          [=, this, a = Inner(a), b = Inner(b), &bias = Inner(bias), c = Inner(c)] {
            cpu_->MultiplyBiasActivate(a, b, bias, f, c);
          });
  }
  void AddBias(const Buffer& bias, Matrix x) override {
    Issue({&bias, x.buffer}, [this, &bias = Inner(bias), x = Inner(x)] { cpu_->AddBias(bias, x); });
  }
  void SumRows(Matrix x, Buffer& sums) override {
    Issue({x.buffer, &sums}, [this, x = Inner(x), &sums = Inner(sums)] { cpu_->SumRows(x, sums); });
  }
  void Activate(Activation f, Matrix x, Matrix y) override {
    Issue({x.buffer, y.buffer}, [=, this, x = Inner(x), y = Inner(y)] { cpu_->Activate(f, x, y); });
  }
  void ActivateBackward(Activation f, Matrix x, Matrix dy, Matrix dx) override {
    Issue({x.buffer, dy.buffer, dx.buffer},
          [=, this, x = Inner(x), dy = Inner(dy), dx = Inner(dx)] { cpu_->ActivateBackward(f, x, dy, dx); });
  }
  void Dropout(float rate, const DropoutKey& key, Matrix x, Matrix y) override {
    Issue({x.buffer, y.buffer}, [=, this, x = Inner(x), y = Inner(y)] { cpu_->Dropout(rate, key, x, y); });
  }
  void Loss(LossFunction f, Matrix outputs, const Buffer& labels, Buffer& totals,
            const LossGradient* gradient) override {
    std::optional<LossGradient> inner;
    if (gradient != nullptr) inner = {Inner(gradient->matrix), gradient->scale};
    Issue({outputs.buffer, &labels, &totals, gradient == nullptr ? nullptr : gradient->matrix.buffer},
          [=, this, outputs = Inner(outputs), &labels = Inner(labels), &totals = Inner(totals)] {
            cpu_->Loss(f, outputs, labels, totals, inner.has_value() ? &*inner : nullptr);
          });
  }

  void Convolve(const ConvShape& shape, Matrix x, const Buffer& filters, const Buffer* bias, Matrix y) override {
    Issue({x.buffer, &filters, bias, y.buffer},
          [=, this, x = Inner(x), &filters = Inner(filters), bias = bias == nullptr ? nullptr : &Inner(*bias),
           y = Inner(y)] { cpu_->Convolve(shape, x, filters, bias, y); });
  }
  void ConvolveBackwardData(const ConvShape& shape, Matrix dy, const Buffer& filters, Matrix dx) override {
    Issue({dy.buffer, &filters, dx.buffer}, [=, this, dy = Inner(dy), &filters = Inner(filters), dx = Inner(dx)] {
      cpu_->ConvolveBackwardData(shape, dy, filters, dx);
    });
  }
  void ConvolveBackwardFilters(const ConvShape& shape, Matrix x, Matrix dy, Buffer& dfilters, Buffer* dbias) override {
    Issue({x.buffer, dy.buffer, &dfilters, dbias}, [=, this, x = Inner(x), dy = Inner(dy), &dfilters = Inner(dfilters),
                                                    dbias = dbias == nullptr ? nullptr : &Inner(*dbias)] {
      cpu_->ConvolveBackwardFilters(shape, x, dy, dfilters, dbias);
    });
  }
  void MaxPool(const PoolShape& shape, Matrix x, Matrix y) override {
    Issue({x.buffer, y.buffer}, [=, this, x = Inner(x), y = Inner(y)] { cpu_->MaxPool(shape, x, y); });
  }
  void MaxPoolBackward(const PoolShape& shape, Matrix x, Matrix dy, Matrix dx) override {
    Issue({x.buffer, dy.buffer, dx.buffer},
          [=, this, x = Inner(x), dy = Inner(dy), dx = Inner(dx)] { cpu_->MaxPoolBackward(shape, x, dy, dx); });
  }
  void AveragePool(const PoolShape& shape, Matrix x, Matrix y) override {
    Issue({x.buffer, y.buffer}, [=, this, x = Inner(x), y = Inner(y)] { cpu_->AveragePool(shape, x, y); });
  }
  void AveragePoolBackward(const PoolShape& shape, Matrix dy, Matrix dx) override {
    Issue({dy.buffer, dx.buffer},
          [=, this, dy = Inner(dy), dx = Inner(dx)] { cpu_->AveragePoolBackward(shape, dy, dx); });
  }

  void BatchNorm(const BatchNormRates& rates, Matrix x, const Affine& affine, const SavedStatistics& saved,
                 const ColumnStatistics& running, Matrix y) override {
    Issue({x.buffer, &affine.scale, &affine.offset, &saved.mean, &saved.inverse_stddev, &running.mean,
           &running.variance, y.buffer},
          [=, this, x = Inner(x), affine = Inner(affine), saved = Inner(saved), running = Inner(running),
           y = Inner(y)] { cpu_->BatchNorm(rates, x, affine, saved, running, y); });
  }
  void BatchNormInference(float epsilon, Matrix x, const Affine& affine, const ColumnStatistics& running,
                          Matrix y) override {
    Issue({x.buffer, &affine.scale, &affine.offset, &running.mean, &running.variance, y.buffer},
          [=, this, x = Inner(x), affine = Inner(affine), running = Inner(running), y = Inner(y)] {
            cpu_->BatchNormInference(epsilon, x, affine, running, y);
          });
  }
  void BatchNormBackward(Matrix x, Matrix dy, const Affine& affine, const SavedStatistics& saved,
                         const AffineGradient& gradient, const Matrix* dx) override {
    Issue({x.buffer, dy.buffer, &affine.scale, &saved.mean, &saved.inverse_stddev, &gradient.scale, &gradient.offset,
           dx == nullptr ? nullptr : dx->buffer},
          [=, this, x = Inner(x), dy = Inner(dy), affine = Inner(affine), saved = Inner(saved),
           gradient = Inner(gradient),
           dx = Inner(dx)] { cpu_->BatchNormBackward(x, dy, affine, saved, gradient, Pointer(dx)); });
  }
  void LayerNorm(float epsilon, Matrix x, const Affine& affine, Matrix y) override {
    Issue({x.buffer, &affine.scale, &affine.offset, y.buffer},
          [=, this, x = Inner(x), affine = Inner(affine), y = Inner(y)] { cpu_->LayerNorm(epsilon, x, affine, y); });
  }
  void LayerNormBackward(float epsilon, Matrix x, Matrix dy, const Affine& affine, const AffineGradient& gradient,
                         const Matrix* dx) override {
    Issue({x.buffer, dy.buffer, &affine.scale, &gradient.scale, &gradient.offset, dx == nullptr ? nullptr : dx->buffer},
          [=, this, x = Inner(x), dy = Inner(dy), affine = Inner(affine), gradient = Inner(gradient), dx = Inner(dx)] {
            cpu_->LayerNormBackward(epsilon, x, dy, affine, gradient, Pointer(dx));
          });
  }

  void Fill(float value, Matrix y) override {
    Issue({y.buffer}, [=, this, y = Inner(y)] { cpu_->Fill(value, y); });
  }
  void Copy(Matrix x, Matrix y) override {
    Issue({x.buffer, y.buffer}, [this, x = Inner(x), y = Inner(y)] { cpu_->Copy(x, y); });
  }
  void Scale(float alpha, Matrix x) override {
    Issue({x.buffer}, [=, this, x = Inner(x)] { cpu_->Scale(alpha, x); });
  }
  void ScaleAndCheck(float alpha, Matrix x, Buffer& not_finite) override {
    Issue({x.buffer, &not_finite},
          [=, this, x = Inner(x), &not_finite = Inner(not_finite)] { cpu_->ScaleAndCheck(alpha, x, not_finite); });
  }
  void Axpy(float alpha, Matrix x, Matrix y) override {
    Issue({x.buffer, y.buffer}, [=, this, x = Inner(x), y = Inner(y)] { cpu_->Axpy(alpha, x, y); });
  }
  void Add(Matrix a, Matrix b, Matrix y) override {
    Issue({a.buffer, b.buffer, y.buffer}, [this, a = Inner(a), b = Inner(b), y = Inner(y)] { cpu_->Add(a, b, y); });
  }
  void Narrow(HalfType type, Matrix x, Buffer& halves) override {
    Issue({x.buffer, &halves}, [=, this, x = Inner(x), &halves = Inner(halves)] { cpu_->Narrow(type, x, halves); });
  }
  void Widen(HalfType type, const Buffer& halves, Matrix y) override {
    Issue({&halves, y.buffer}, [=, this, &halves = Inner(halves), y = Inner(y)] { cpu_->Widen(type, halves, y); });
  }
  void GatherRows(Matrix table, absl::Span<const int64_t> rows, Matrix y) override {
    Issue({table.buffer, y.buffer}, [this, table = Inner(table), rows = std::vector<int64_t>(rows.begin(), rows.end()),
                                     y = Inner(y)] { cpu_->GatherRows(table, rows, y); });
  }
  void ScatterAddRows(Matrix dy, absl::Span<const int64_t> rows, Matrix table) override {
    Issue({dy.buffer, table.buffer}, [this, dy = Inner(dy), rows = std::vector<int64_t>(rows.begin(), rows.end()),
                                      table = Inner(table)] { cpu_->ScatterAddRows(dy, rows, table); });
  }

 private:
  struct Operation {
    std::function<void()> run;
    // Keeps the memory alive until the operation has run.
    std::vector<std::shared_ptr<Buffer>> memory;
  };

  // Buffers may be null.
  void Issue(std::initializer_list<const Buffer*> buffers, std::function<void()> run) {
    absl::MutexLock lock(&mutex_);
    Operation operation{std::move(run), {}};
    ++issued_;
    for (const Buffer* buffer : buffers) {
      if (buffer == nullptr) continue;
      Own(*buffer).last = issued_;
      operation.memory.push_back(Own(*buffer).memory());
    }
    queue_.push_back(std::move(operation));
  }

  absl::Status AwaitLast(const Buffer& buffer) {
    absl::MutexLock lock(&mutex_);
    const uint64_t last = Own(buffer).last;
    if (last <= done_) return status_;
    const auto mark = std::lower_bound(marks_.begin(), marks_.end(), last);
    return AwaitLocked(mark == marks_.end() ? issued_ : *mark);
  }

  absl::Status AwaitLocked(uint64_t operation) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const auto over = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return done_ >= operation || !status_.ok(); };
    if (!mutex_.AwaitWithTimeout(absl::Condition(&over), absl::Minutes(1))) {
      return absl::DeadlineExceededError("queued device: timed out after 1 min waiting for its operations");
    }
    return status_;
  }

  void Compute() {
    while (true) {
      Operation operation;
      absl::Duration duration;
      {
        absl::MutexLock lock(&mutex_);
        const auto called = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
          return queue_.empty() ? stop_ : done_ < limit_;
        };
        mutex_.Await(absl::Condition(&called));
        if (queue_.empty()) return;
        operation = std::move(queue_.front());
        queue_.pop_front();
        duration = duration_;
      }
      const absl::Time end = absl::Now() + duration;
      operation.run();
      absl::MutexLock lock(&mutex_);
      // Only the deadline or the device's end finishes this wait.
      const auto never = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stop_; };
      if (duration > absl::ZeroDuration()) mutex_.AwaitWithDeadline(absl::Condition(&never), end);
      ++done_;
    }
  }

  const std::unique_ptr<Device> cpu_;
  mutable absl::Mutex mutex_;
  std::deque<Operation> queue_ ABSL_GUARDED_BY(mutex_);
  uint64_t issued_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t done_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t uploaded_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t downloaded_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t limit_ ABSL_GUARDED_BY(mutex_) = kNoLimit;
  // Increasing.
  std::vector<uint64_t> marks_ ABSL_GUARDED_BY(mutex_);
  absl::Duration duration_ ABSL_GUARDED_BY(mutex_);
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace

std::unique_ptr<QueuedDevice> CreateQueuedDevice() { return std::make_unique<QueuedCpuDevice>(CreateCpuDevice(1)); }

std::unique_ptr<QueuedDevice> CreateQueuedDevice(int64_t memory_bytes) {
  return std::make_unique<QueuedCpuDevice>(CreateCpuDevice(1, memory_bytes));
}

}  // namespace ballast
