// SPDX-License-Identifier: Apache-2.0
#include "worker/device/cuda/nccl_reducer.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "worker/device/cuda/cuda_device.h"
#include "worker/device/cuda/operands.h"
#include "worker/device/cuda/operation_queue.h"

namespace ballast {
namespace {

class NcclReducer : public Reducer {
 public:
  NcclReducer(const Nccl& nccl, std::vector<OperationQueue*> gpus, std::vector<Nccl::Communicator> communicators)
      : nccl_(nccl), gpus_(std::move(gpus)), communicators_(std::move(communicators)) {}

  ~NcclReducer() override {
    // Another GPU may be waiting in a sum for one that has failed.
    if (std::any_of(gpus_.begin(), gpus_.end(), [](OperationQueue* gpu) { return !gpu->Enter().ok(); })) Abort();
    absl::MutexLock lock(&mutex_);
    for (size_t i = 0; i < communicators_.size(); ++i) {
      cudaSetDevice(gpus_[i]->gpu().index);
      cudaStreamSynchronize(gpus_[i]->order().peer());
      nccl_.CommDestroy(communicators_[i]);
    }
  }

  std::string Describe() const override {
    int version = 0;
    nccl_.GetVersion(&version);
    return absl::StrCat("by NCCL ", version / 10000, ".", version / 100 % 100, ".", version % 100);
  }

  absl::Status Sum(absl::Span<const Matrix> parts) override {
    if (parts.size() != gpus_.size()) {
      return absl::InternalError(absl::StrCat("reducer: got ", parts.size(), " parts, want ", gpus_.size()));
    }
    if (parts[0].elements() == 0) return absl::OkStatus();
    absl::MutexLock lock(&mutex_);
    if (communicators_.empty()) {
      return absl::UnavailableError("sum of gradients over GPUs: aborted after a GPU failed");
    }
    absl::Status status = CheckNoneFailed();
    for (size_t i = 0; i < parts.size() && status.ok(); ++i) {
      status = gpus_[i]->Enter();
      const BufferUse& use = gpu::Own(*parts[i].buffer).use();
      if (status.ok()) status = gpus_[i]->order().BeforePeer(gpus_[i]->order().peer(), use);
    }
    if (!status.ok()) return status;
    status = Issue(parts);
    for (size_t i = 0; i < parts.size(); ++i) {
      // The next operation that writes a part waits until the sum has read it.
      status.Update(gpus_[i]->Enter());
      status.Update(gpus_[i]->order().AfterPeer(gpu::Own(*parts[i].buffer).use()));
    }
    gpu::Own(*parts[0].buffer).Written();
    return status;
  }

  void Abort() override {
    absl::MutexLock lock(&mutex_);
    for (const Nccl::Communicator communicator : communicators_) nccl_.CommAbort(communicator);
    communicators_.clear();
  }

 private:
  absl::Status ToStatus(int result, const char* call) const {
    if (result == Nccl::kSuccess) return absl::OkStatus();
    return absl::UnavailableError(
        absl::StrCat("sum of gradients over GPUs: ", call, ": ", nccl_.GetErrorString(result)));
  }

  // Returns the error of an earlier sum, if one has failed since it was issued.
  absl::Status CheckNoneFailed() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    for (const Nccl::Communicator communicator : communicators_) {
      int error = Nccl::kSuccess;
      absl::Status status = ToStatus(nccl_.CommGetAsyncError(communicator, &error), "ncclCommGetAsyncError");
      status.Update(ToStatus(error, "ncclReduce"));
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

  // All calls form one group, because one thread issues calls that must run at the same time.
  absl::Status Issue(absl::Span<const Matrix> parts) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    absl::Status status = ToStatus(nccl_.GroupStart(), "ncclGroupStart");
    if (!status.ok()) return status;
    for (size_t i = 0; i < parts.size(); ++i) {
      float* const part = gpu::Floats(parts[i]);
      // Only the first GPU's result is written.
      status.Update(ToStatus(nccl_.Reduce(part, part, parts[i].elements(), Nccl::kFloat32, Nccl::kSum, /*root=*/0,
                                          communicators_[i], gpus_[i]->order().peer()),
                             "ncclReduce"));
    }
    status.Update(ToStatus(nccl_.GroupEnd(), "ncclGroupEnd"));
    return status;
  }

  const Nccl& nccl_;
  const std::vector<OperationQueue*> gpus_;
  // NCCL does not allow concurrent calls for one communicator.
  absl::Mutex mutex_;
  // Empty once aborted.
  std::vector<Nccl::Communicator> communicators_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

absl::StatusOr<std::unique_ptr<Reducer>> MakeNcclReducer(const Nccl& nccl, absl::Span<const NamedDevice> devices) {
  std::vector<OperationQueue*> gpus;
  std::vector<int> numbers;
  for (const NamedDevice& device : devices) {
    OperationQueue* const queue = QueueOf(*device.device);
    if (queue == nullptr) return absl::FailedPreconditionError(absl::StrCat("device ", device.name, " is not a GPU"));
    gpus.push_back(queue);
    numbers.push_back(queue->gpu().index);
  }
  std::vector<Nccl::Communicator> communicators(gpus.size());
  const int result = nccl.CommInitAll(communicators.data(), static_cast<int>(numbers.size()), numbers.data());
  if (result != Nccl::kSuccess) {
    return absl::UnavailableError(absl::StrCat("ncclCommInitAll: ", nccl.GetErrorString(result)));
  }
  return std::make_unique<NcclReducer>(nccl, std::move(gpus), std::move(communicators));
}

}  // namespace ballast
