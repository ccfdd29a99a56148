// SPDX-License-Identifier: Apache-2.0
#include "worker/device/cuda/emulated_nccl.h"

#include <cstddef>

#include "worker/device/cuda/emulator/emulated_gpu.h"

namespace ballast {

struct NcclCommunicator {
  int gpu = 0;
};

namespace emulator {
namespace {

// ncclInvalidArgument, ncclInvalidUsage.
constexpr int kInvalidArgument = 4, kInvalidUsage = 5;

struct Call {
  const float* part;
  float* sum;
  size_t count;
  int gpu;
  cudaStream_t stream;
};

NcclState state;
bool in_group = false;
std::vector<Call> calls;

int RunGroup() {
  std::vector<cudaEvent_t> arrived;
  const Call root = calls[0];
  bool ok = true;
  for (const Call& call : calls) {
    cudaEvent_t event = nullptr;
    ok &= cudaSetDevice(call.gpu) == cudaSuccess;
    ok &= cudaEventCreateWithFlags(&event, cudaEventDisableTiming) == cudaSuccess;
    ok = ok && cudaEventRecord(event, call.stream) == cudaSuccess;
    arrived.push_back(event);
  }
  cudaSetDevice(root.gpu);
  for (const cudaEvent_t event : arrived) ok = ok && cudaStreamWaitEvent(root.stream, event) == cudaSuccess;
  const auto sum = [parts = calls] {
    for (size_t i = 0; i < parts[0].count; ++i) {
      float all = 0;
      for (const Call& call : parts) all += call.part[i];
      parts[0].sum[i] = all;
    }
  };
  ok = ok && Enqueue("ncclReduce", root.stream, sum) == cudaSuccess;
  ok = ok && cudaEventRecord(arrived[0], root.stream) == cudaSuccess;
  for (const Call& call : calls) ok = ok && cudaStreamWaitEvent(call.stream, arrived[0]) == cudaSuccess;
  for (const cudaEvent_t event : arrived) cudaEventDestroy(event);
  state.sums += ok ? 1 : 0;
  return ok ? 0 : kInvalidUsage;
}

int Reduce(const void* part, void* sum, size_t count, int type, int operation, int root,
           Nccl::Communicator communicator, cudaStream_t stream) {
  if (state.reduce_result != 0) return state.reduce_result;
  if (!in_group) return kInvalidUsage;
  if (type != Nccl::kFloat32 || operation != Nccl::kSum || root != 0) return kInvalidArgument;
  calls.push_back({static_cast<const float*>(part), static_cast<float*>(sum), count, communicator->gpu, stream});
  return 0;
}

int InitAll(Nccl::Communicator* communicators, int count, const int* gpus) {
  if (state.init_result != 0) return state.init_result;
  state.gpus.assign(gpus, gpus + count);
  for (int i = 0; i < count; ++i) communicators[i] = new NcclCommunicator{gpus[i]};
  return 0;
}

int Destroy(Nccl::Communicator communicator) {
  delete communicator;
  ++state.destroyed;
  return 0;
}

int Abort(Nccl::Communicator communicator) {
  delete communicator;
  ++state.aborted;
  return 0;
}

int StartGroup() {
  in_group = true;
  calls.clear();
  return 0;
}

int EndGroup() {
  in_group = false;
  return calls.empty() ? 0 : RunGroup();
}

int Version(int* version) {
  *version = 22703;
  return 0;
}

int AsyncError(Nccl::Communicator, int* error) {
  *error = state.async_error;
  return 0;
}

}  // namespace

const Nccl& EmulatedNccl() {
  static const Nccl table = {.GetVersion = Version,
                             .GetErrorString = [](int) { return "an emulated fault"; },
                             .CommInitAll = InitAll,
                             .CommGetAsyncError = AsyncError,
                             .CommDestroy = Destroy,
                             .CommAbort = Abort,
                             .GroupStart = StartGroup,
                             .GroupEnd = EndGroup,
                             .Reduce = Reduce};
  return table;
}

NcclState& NcclNow() { return state; }

void ResetNccl() { state = NcclState(); }

}  // namespace emulator
}  // namespace ballast
