// SPDX-License-Identifier: Apache-2.0
#include "worker/device/testing/queued_device.h"

#include <algorithm>
#include <deque>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
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

// An operation's optional argument, kept until the operation runs.
template <typename T>
struct Optional {
  std::optional<T> value;

  operator const T*() const { return value.has_value() ? &*value : nullptr; }
};

// Bags of rows that outlive the call that issued their operation.
struct OwnedBags {
  std::vector<uint32_t> ends, places;
  int64_t fields;
  bool mean;

  operator RowBags() const { return {ends, places, fields, mean}; }
};

// Collects the buffers among an operation's arguments, and converts the arguments to those of the CPU device.
struct Operands {
  std::vector<const QueuedBuffer*> buffers;

  template <typename T>
  const T& Inner(const T& value) {
    return value;
  }
  std::reference_wrapper<Buffer> Inner(const Buffer& buffer) {
    buffers.push_back(static_cast<const QueuedBuffer*>(&buffer));
    return *buffers.back()->memory();
  }
  Buffer* Inner(Buffer* buffer) { return Inner(static_cast<const Buffer*>(buffer)); }
  Buffer* Inner(const Buffer* buffer) { return buffer == nullptr ? nullptr : &Inner(*buffer).get(); }
  Matrix Inner(const Matrix& m) { return {Inner(m.buffer), m.rows, m.columns}; }
  Factor Inner(const Factor& f) { return {Inner(f.matrix), f.transposed}; }
  Affine Inner(const Affine& a) { return {Inner(a.scale), Inner(a.offset)}; }
  AffineGradient Inner(const AffineGradient& a) { return {Inner(a.scale), Inner(a.offset)}; }
  SavedStatistics Inner(const SavedStatistics& s) { return {Inner(s.mean), Inner(s.inverse_stddev)}; }
  ColumnStatistics Inner(const ColumnStatistics& s) { return {Inner(s.mean), Inner(s.variance)}; }
  LossGradient Inner(const LossGradient& g) { return {Inner(g.matrix), g.scale}; }
  // The caller may reuse the numbers when the operation was issued.
  std::vector<int64_t> Inner(absl::Span<const int64_t> rows) { return {rows.begin(), rows.end()}; }
  OwnedBags Inner(const RowBags& bags) {
    return {{bags.ends.begin(), bags.ends.end()}, {bags.places.begin(), bags.places.end()}, bags.fields, bags.mean};
  }
  template <typename T>
  Optional<T> Inner(const T* value) {
    return {value == nullptr ? std::nullopt : std::make_optional(Inner(*value))};
  }
};

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
  int64_t PeakBytes() const override { return cpu_->PeakBytes(); }
  void ResetPeak() override { cpu_->ResetPeak(); }
  absl::Status ReserveWorkspace(absl::Span<const ConvShape> shapes, int64_t examples) override {
    return cpu_->ReserveWorkspace(shapes, examples);
  }

  ElementType activation_type() const override { return cpu_->activation_type(); }

  absl::StatusOr<std::unique_ptr<Buffer>> AllocateActivations(int64_t elements) override { return Allocate(elements); }

  std::unique_ptr<HostMemory> AllocateHost(int64_t floats) override { return cpu_->AllocateHost(floats); }
  std::unique_ptr<HostRegistration> RegisterHost(absl::Span<char>) override { return nullptr; }

  absl::StatusOr<std::unique_ptr<Buffer>> Allocate(int64_t elements) override {
    absl::StatusOr<std::unique_ptr<Buffer>> memory = cpu_->Allocate(elements);
    if (!memory.ok()) return memory.status();
    return std::make_unique<QueuedBuffer>(*std::move(memory));
  }

  absl::Status Upload(absl::Span<const float> values, Buffer& to, int64_t offset) override {
    if (absl::Status status = AwaitLast(to); !status.ok()) return status;
    absl::Status status = cpu_->Upload(values, *Own(to).memory(), offset);
    absl::MutexLock lock(&mutex_);
    uploaded_ += status.ok() ? values.size() * sizeof(float) : 0;
    return status;
  }
  absl::Status Download(const Buffer& from, int64_t offset, absl::Span<float> values) override {
    if (absl::Status status = AwaitLast(from); !status.ok()) return status;
    absl::Status status = cpu_->Download(*Own(from).memory(), offset, values);
    absl::MutexLock lock(&mutex_);
    downloaded_ += status.ok() ? values.size() * sizeof(float) : 0;
    return status;
  }
  absl::Status DownloadAll(absl::Span<const HostCopy> copies) override {
    for (const HostCopy& copy : copies) {
      if (absl::Status status = Download(*copy.from, 0, copy.values); !status.ok()) return status;
    }
    return absl::OkStatus();
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
  void Record(TimelineRecorder*) override {}

  void Multiply(const Factor& a, const Factor& b, float alpha, float beta, Matrix c) override {
    Issue(&Device::Multiply, a, b, alpha, beta, c);
  }
  void MultiplyBiasActivate(const Factor& a, const Factor& b, const Buffer& bias, std::optional<Activation> f,
                            Matrix c) override {
    Issue(&Device::MultiplyBiasActivate, a, b, bias, f, c);
  }
  void AddBias(const Buffer& bias, Matrix x) override { Issue(&Device::AddBias, bias, x); }
  void SumRows(Matrix x, Buffer& sums) override { Issue(&Device::SumRows, x, sums); }
  void Activate(Activation f, Matrix x, Matrix y) override { Issue(&Device::Activate, f, x, y); }
  void ActivateBackward(Activation f, Matrix x, Matrix dy, Matrix dx) override {
    Issue(&Device::ActivateBackward, f, x, dy, dx);
  }
  void Dropout(float rate, const DropoutKey& key, Matrix x, Matrix y) override {
    Issue(&Device::Dropout, rate, key, x, y);
  }
  void Loss(LossFunction f, Matrix outputs, const Buffer& labels, Buffer& totals,
            const LossGradient* gradient) override {
    Issue(&Device::Loss, f, outputs, labels, totals, gradient);
  }

  void Convolve(const ConvShape& shape, Matrix x, const Buffer& filters, const Buffer* bias, Matrix y) override {
    Issue(&Device::Convolve, shape, x, filters, bias, y);
  }
  void ConvolveBackwardData(const ConvShape& shape, Matrix dy, const Buffer& filters, Matrix dx) override {
    Issue(&Device::ConvolveBackwardData, shape, dy, filters, dx);
  }
  void ConvolveBackwardFilters(const ConvShape& shape, Matrix x, Matrix dy, Buffer& dfilters, Buffer* dbias) override {
    Issue(&Device::ConvolveBackwardFilters, shape, x, dy, dfilters, dbias);
  }
  void MaxPool(const PoolShape& shape, Matrix x, Buffer* positions, Matrix y) override {
    Issue(&Device::MaxPool, shape, x, positions, y);
  }
  void MaxPoolBackward(const PoolShape& shape, const Buffer& positions, Matrix dy, Matrix dx) override {
    Issue(&Device::MaxPoolBackward, shape, positions, dy, dx);
  }
  void AveragePool(const PoolShape& shape, Matrix x, Matrix y) override { Issue(&Device::AveragePool, shape, x, y); }
  void AveragePoolBackward(const PoolShape& shape, Matrix dy, Matrix dx) override {
    Issue(&Device::AveragePoolBackward, shape, dy, dx);
  }

  void BatchNorm(const BatchNormRates& rates, Matrix x, const Affine& affine, const SavedStatistics& saved,
                 const ColumnStatistics& running, Matrix y) override {
    Issue(&Device::BatchNorm, rates, x, affine, saved, running, y);
  }
  void BatchNormInference(float epsilon, Matrix x, const Affine& affine, const ColumnStatistics& running,
                          Matrix y) override {
    Issue(&Device::BatchNormInference, epsilon, x, affine, running, y);
  }
  void BatchNormBackward(Matrix x, Matrix dy, const Affine& affine, const SavedStatistics& saved,
                         const AffineGradient& gradient, const Matrix* dx) override {
    Issue(&Device::BatchNormBackward, x, dy, affine, saved, gradient, dx);
  }
  void LayerNorm(float epsilon, Matrix x, const Affine& affine, Matrix y) override {
    Issue(&Device::LayerNorm, epsilon, x, affine, y);
  }
  void LayerNormBackward(float epsilon, Matrix x, Matrix dy, const Affine& affine, const AffineGradient& gradient,
                         const Matrix* dx) override {
    Issue(&Device::LayerNormBackward, epsilon, x, dy, affine, gradient, dx);
  }

  void Fill(float value, Matrix y) override { Issue(&Device::Fill, value, y); }
  void Copy(Matrix x, Matrix y) override { Issue(&Device::Copy, x, y); }
  void Scale(float alpha, Matrix x) override { Issue(&Device::Scale, alpha, x); }
  void ScaleAndCheck(float alpha, Matrix x, Buffer& not_finite) override {
    Issue(&Device::ScaleAndCheck, alpha, x, not_finite);
  }
  void Axpy(float alpha, Matrix x, Matrix y) override { Issue(&Device::Axpy, alpha, x, y); }
  void Add(Matrix a, Matrix b, Matrix y) override { Issue(&Device::Add, a, b, y); }
  void Narrow(HalfType type, Matrix x, Buffer& halves) override { Issue(&Device::Narrow, type, x, halves); }
  void Widen(HalfType type, const Buffer& halves, Matrix y) override { Issue(&Device::Widen, type, halves, y); }
  void GatherRows(Matrix table, absl::Span<const int64_t> rows, Matrix y) override {
    Issue(&Device::GatherRows, table, rows, y);
  }
  void ScatterAddRows(Matrix dy, absl::Span<const int64_t> rows, Matrix table) override {
    Issue(&Device::ScatterAddRows, dy, rows, table);
  }

  void CopyColumns(int64_t columns, Matrix x, Matrix y) override { Issue(&Device::CopyColumns, columns, x, y); }
  void PoolRows(Matrix table, const RowBags& bags, int64_t first, Matrix y) override {
    Issue(&Device::PoolRows, table, bags, first, y);
  }
  void PoolRowsBackward(Matrix dy, const RowBags& bags, int64_t first, Matrix dtable) override {
    Issue(&Device::PoolRowsBackward, dy, bags, first, dtable);
  }
  void DotInteraction(int64_t dim, Matrix x, Matrix y) override { Issue(&Device::DotInteraction, dim, x, y); }
  void DotInteractionBackward(int64_t dim, Matrix x, Matrix dy, Matrix dx) override {
    Issue(&Device::DotInteractionBackward, dim, x, dy, dx);
  }

 private:
  struct Operation {
    std::function<void()> run;
    // Keeps the memory alive until the operation has run.
    std::vector<std::shared_ptr<Buffer>> memory;
  };

  static const QueuedBuffer& Own(const Buffer& buffer) { return static_cast<const QueuedBuffer&>(buffer); }

  // Queues an operation of the CPU device.
  template <typename Operations, typename... Parameters, typename... Arguments>
  void Issue(void (Operations::*operation)(Parameters...), const Arguments&... arguments) {
    Operands operands;
    std::tuple inner{operands.Inner(arguments)...};
    const auto call = [this, operation](const auto&... values) { (cpu_.get()->*operation)(values...); };
    absl::MutexLock lock(&mutex_);
    ++issued_;
    Operation& queued = queue_.emplace_back();
    queued.run = [call, inner = std::move(inner)] { std::apply(call, inner); };
    for (const QueuedBuffer* buffer : operands.buffers) {
      buffer->last = issued_;
      queued.memory.push_back(buffer->memory());
    }
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
