// SPDX-License-Identifier: Apache-2.0
#include "worker/device/cuda/emulator/emulated_gpu.h"

#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

// Work of a stream: runs once `awaited` (null: nothing) has done `position` pieces.
struct Work {
  std::function<void()> run;
  std::shared_ptr<struct Queue> awaited;
  uint64_t position = 0;
};

// Outlives its stream while events refer to it.
struct Queue {
  std::deque<Work> work;
  uint64_t issued = 0;
  uint64_t done = 0;
};

// Kernels and copies in stream order.
struct CUgraph_st {
  std::vector<std::function<void()>> nodes;
};

struct CUgraphExec_st {
  // Shared with the work in a stream, which may outlive the graph.
  std::shared_ptr<const std::vector<std::function<void()>>> nodes;
};

// Work enqueued in a stream between begin and end of its capture.
struct Capture {
  std::thread::id thread = std::this_thread::get_id();
  bool valid = true;
  CUgraph_st graph;
};

struct CUstream_st {
  int device = 0;
  std::shared_ptr<Queue> queue = std::make_shared<Queue>();
  // Null if not capturing.
  std::unique_ptr<Capture> capture;
};

// Position `position` of a queue; null: never recorded, which counts as done.
struct CUevent_st {
  int device = 0;
  std::shared_ptr<Queue> queue;
  uint64_t position = 0;
  // GPU time at which the event was reached; null if the event keeps no time.
  std::shared_ptr<float> time;
};

namespace ballast::emulator {
namespace {

struct Fault {
  std::string call;
  cudaError_t error;
  int after;
};

struct Gpu {
  Settings settings;
  std::mt19937 random;
  std::map<char*, size_t> device_memory;
  size_t device_bytes = 0;
  std::map<char*, size_t> host_memory;
  size_t host_bytes = 0;
  int host_allocations = 0;
  std::vector<CUstream_st*> streams;
  int events = 0;
  int graphs = 0;
  int captures = 0;
  std::function<void(int)> on_capture;
  int launches = 0;
  int graph_launches = 0;
  float milliseconds = 0;
  cudaError_t everything = cudaSuccess;
  int everything_after = 0;
  std::vector<Fault> faults;

  // Frees the memory that a process could not return to a lost GPU, like the end of the process.
  ~Gpu() {
    if (everything == cudaSuccess) return;
    for (const auto* memory : {&device_memory, &host_memory}) {
      for (const auto& [piece, bytes] : *memory) std::free(piece);
    }
  }
};

// Set by cudaSetDevice.
thread_local int current_device = 0;

// Guards everything; work runs while it is held.
std::recursive_mutex mutex;
Gpu gpu;

[[noreturn]] void Die(const char* what) {
  std::fprintf(stderr, "emulated GPU: %s\n", what);
  std::abort();
}

bool Done(const Queue* queue, uint64_t position) { return queue == nullptr || queue->done >= position; }

bool Lost() { return gpu.everything != cudaSuccess && gpu.everything_after <= 0; }

void RunFront(Queue& queue) {
  // Moved out first, because it may enqueue more work.
  const Work work = std::move(queue.work.front());
  queue.work.pop_front();
  // A lost GPU computes nothing.
  if (work.run && !Lost()) work.run();
  ++queue.done;
}

// Runs the work that a queue's first `position` pieces need.
void RunUntil(Queue& queue, uint64_t position) {
  while (queue.done < position) {
    const Work& front = queue.work.front();
    if (!Done(front.awaited.get(), front.position)) {
      const std::shared_ptr<Queue> awaited = front.awaited;
      RunUntil(*awaited, front.position);
    }
    RunFront(queue);
  }
}

// Runs one piece if one is ready; returns whether it did.
bool Step(Queue& queue) {
  if (queue.work.empty() || !Done(queue.work.front().awaited.get(), queue.work.front().position)) return false;
  RunFront(queue);
  return true;
}

void RunSome() {
  if (gpu.settings.schedule == Schedule::kAtOnce) {
    bool more = true;
    while (more) {
      more = false;
      for (CUstream_st* stream : gpu.streams) more = Step(*stream->queue) || more;
    }
  } else if (gpu.settings.schedule == Schedule::kRandom && !gpu.streams.empty()) {
    for (int steps = static_cast<int>(gpu.random() % 4); steps > 0; --steps) {
      Step(*gpu.streams[gpu.random() % gpu.streams.size()]->queue);
    }
  }
}

// Called first in every call: returns the error that the call is to fail with.
cudaError_t Enter(const char* call) {
  if (Lost()) return gpu.everything;
  if (gpu.everything_after > 0) --gpu.everything_after;
  for (size_t i = 0; i < gpu.faults.size(); ++i) {
    if (gpu.faults[i].call != call || gpu.faults[i].after-- > 0) continue;
    const cudaError_t error = gpu.faults[i].error;
    gpu.faults.erase(gpu.faults.begin() + i);
    return error;
  }
  RunSome();
  return cudaSuccess;
}

// Returns whether [memory, memory + bytes) lies inside one of the pieces.
bool Inside(const std::map<char*, size_t>& pieces, const void* memory, size_t bytes) {
  const char* const begin = static_cast<const char*>(memory);
  auto piece = pieces.upper_bound(const_cast<char*>(begin));
  if (piece == pieces.begin()) return false;
  --piece;
  return begin + bytes <= piece->first + piece->second;
}

void Put(cudaStream_t stream, Work work) {
  if (stream == nullptr) Die("the default stream is used");
  if (stream->capture != nullptr) Die("work that a graph cannot hold is put into a stream that is being captured");
  stream->queue->work.push_back(std::move(work));
  ++stream->queue->issued;
  RunSome();
}

// Enqueues a kernel or a copy.
cudaError_t PutNode(cudaStream_t stream, std::function<void()> work) {
  if (stream != nullptr && stream->capture != nullptr) {
    Capture& capture = *stream->capture;
    if (capture.thread != std::this_thread::get_id()) Die("another thread's work is captured");
    if (!capture.valid) return cudaErrorStreamCaptureInvalidated;
    capture.graph.nodes.push_back(std::move(work));
    return cudaSuccess;
  }
  Put(stream, {std::move(work), nullptr, 0});
  return cudaSuccess;
}

// Returns an error if this thread is capturing, when calls that wait or query are not allowed.
cudaError_t CheckMayWait() {
  for (CUstream_st* stream : gpu.streams) {
    if (stream->capture == nullptr || stream->capture->thread != std::this_thread::get_id()) continue;
    stream->capture->valid = false;
    return cudaErrorStreamCaptureUnsupported;
  }
  return cudaSuccess;
}

}  // namespace

void Reset(const Settings& settings) {
  const std::lock_guard<std::recursive_mutex> lock(mutex);
  if (!gpu.streams.empty() || gpu.events != 0 || gpu.graphs != 0 || gpu.device_bytes != 0 || gpu.host_bytes != 0) {
    Die("reset while resources are still in use");
  }
  gpu = Gpu{};
  gpu.settings = settings;
  gpu.random.seed(settings.seed);
}

void FailEverything(cudaError_t error, int after) {
  const std::lock_guard<std::recursive_mutex> lock(mutex);
  gpu.everything = error;
  gpu.everything_after = after;
}

void FailCall(const char* call, cudaError_t error, int after) {
  const std::lock_guard<std::recursive_mutex> lock(mutex);
  gpu.faults.push_back({call, error, after});
}

size_t DeviceBytes() {
  const std::lock_guard<std::recursive_mutex> lock(mutex);
  return gpu.device_bytes;
}

size_t HostBytes() {
  const std::lock_guard<std::recursive_mutex> lock(mutex);
  return gpu.host_bytes;
}

int Streams() {
  const std::lock_guard<std::recursive_mutex> lock(mutex);
  return static_cast<int>(gpu.streams.size());
}

void OnCapture(std::function<void(int)> call) {
  const std::lock_guard<std::recursive_mutex> lock(mutex);
  gpu.on_capture = std::move(call);
}

void PassTime(float milliseconds) {
  const std::lock_guard<std::recursive_mutex> lock(mutex);
  gpu.milliseconds += milliseconds;
}

int Events() {
  const std::lock_guard<std::recursive_mutex> lock(mutex);
  return gpu.events;
}

int Graphs() {
  const std::lock_guard<std::recursive_mutex> lock(mutex);
  return gpu.graphs;
}

int Launches() {
  const std::lock_guard<std::recursive_mutex> lock(mutex);
  return gpu.launches;
}

int GraphLaunches() {
  const std::lock_guard<std::recursive_mutex> lock(mutex);
  return gpu.graph_launches;
}

int HostAllocations() {
  const std::lock_guard<std::recursive_mutex> lock(mutex);
  return gpu.host_allocations;
}

cudaError_t Enqueue(const char* call, cudaStream_t stream, std::function<void()> work) {
  const std::lock_guard<std::recursive_mutex> lock(mutex);
  if (const cudaError_t error = Enter(call); error != cudaSuccess) return error;
  if (stream != nullptr && stream->device != current_device) return cudaErrorInvalidResourceHandle;
  if (stream != nullptr && stream->capture == nullptr) ++gpu.launches;
  return PutNode(stream, std::move(work));
}

}  // namespace ballast::emulator

using ballast::emulator::CheckMayWait;
using ballast::emulator::current_device;
using ballast::emulator::Die;
using ballast::emulator::Done;
using ballast::emulator::Enter;
using ballast::emulator::gpu;
using ballast::emulator::Inside;
using ballast::emulator::Put;
using ballast::emulator::PutNode;
using ballast::emulator::RunUntil;
using Lock = std::lock_guard<std::recursive_mutex>;

#define BALLAST_ENTER(call)                  \
  const Lock lock(ballast::emulator::mutex); \
  if (const cudaError_t error = Enter(call); error != cudaSuccess) return error
// Begins each call that waits.
#define BALLAST_ENTER_WAITING(call) \
  BALLAST_ENTER(call);              \
  if (const cudaError_t error = CheckMayWait(); error != cudaSuccess) return error

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "cudaSuccess";
    case cudaErrorInvalidValue:
      return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation:
      return "cudaErrorMemoryAllocation";
    case cudaErrorInsufficientDriver:
      return "cudaErrorInsufficientDriver";
    case cudaErrorDevicesUnavailable:
      return "cudaErrorDevicesUnavailable";
    case cudaErrorNoDevice:
      return "cudaErrorNoDevice";
    case cudaErrorNoKernelImageForDevice:
      return "cudaErrorNoKernelImageForDevice";
    case cudaErrorECCUncorrectable:
      return "cudaErrorECCUncorrectable";
    case cudaErrorInvalidResourceHandle:
      return "cudaErrorInvalidResourceHandle";
    case cudaErrorNotReady:
      return "cudaErrorNotReady";
    case cudaErrorIllegalAddress:
      return "cudaErrorIllegalAddress";
    case cudaErrorLaunchFailure:
      return "cudaErrorLaunchFailure";
    case cudaErrorSystemDriverMismatch:
      return "cudaErrorSystemDriverMismatch";
    case cudaErrorStreamCaptureUnsupported:
      return "cudaErrorStreamCaptureUnsupported";
    case cudaErrorStreamCaptureInvalidated:
      return "cudaErrorStreamCaptureInvalidated";
    case cudaErrorStreamCaptureIsolation:
      return "cudaErrorStreamCaptureIsolation";
    case cudaErrorUnknown:
      return "cudaErrorUnknown";
  }
  return "unrecognized error code";
}

const char* cudaGetErrorString(cudaError_t) { return "emulated"; }

cudaError_t cudaGetLastError() { return cudaSuccess; }

cudaError_t cudaDriverGetVersion(int* version) {
  const Lock lock(ballast::emulator::mutex);
  *version = gpu.settings.driver_version;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = 13000;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int* count) {
  BALLAST_ENTER("cudaGetDeviceCount");
  *count = gpu.settings.devices;
  return *count == 0 ? cudaErrorNoDevice : cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  BALLAST_ENTER("cudaGetDeviceProperties");
  if (device < 0 || device >= gpu.settings.devices) return cudaErrorInvalidValue;
  *properties = {"Emulated", gpu.settings.memory_bytes, gpu.settings.compute_major, gpu.settings.compute_minor, 4};
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  BALLAST_ENTER("cudaSetDevice");
  if (device < 0 || device >= gpu.settings.devices) return cudaErrorInvalidValue;
  current_device = device;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int) {
  BALLAST_ENTER("cudaDeviceGetDefaultMemPool");
  *pool = nullptr;
  return cudaSuccess;
}

cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t, cudaMemPoolAttr, void*) {
  BALLAST_ENTER("cudaMemPoolSetAttribute");
  return cudaSuccess;
}

cudaError_t cudaMemPoolTrimTo(cudaMemPool_t, size_t) {
  BALLAST_ENTER_WAITING("cudaMemPoolTrimTo");
  return cudaSuccess;
}

cudaError_t cudaMallocAsync(void** memory, size_t bytes, cudaStream_t stream) {
  BALLAST_ENTER("cudaMallocAsync");
  if (bytes == 0) return cudaErrorInvalidValue;
  // Memory freed earlier in the same stream can be used.
  if (gpu.device_bytes + bytes > gpu.settings.memory_bytes) RunUntil(*stream->queue, stream->queue->issued);
  if (gpu.device_bytes + bytes > gpu.settings.memory_bytes) return cudaErrorMemoryAllocation;
  char* const piece = static_cast<char*>(std::malloc(bytes));
  // Fills it with NaN, so that a read of uninitialized memory shows.
  std::memset(piece, 0xFF, bytes);
  gpu.device_memory[piece] = bytes;
  gpu.device_bytes += bytes;
  *memory = piece;
  return cudaSuccess;
}

cudaError_t cudaFreeAsync(void* memory, cudaStream_t stream) {
  BALLAST_ENTER("cudaFreeAsync");
  Put(stream, {[piece = static_cast<char*>(memory)] {
                 const auto found = gpu.device_memory.find(piece);
                 if (found == gpu.device_memory.end()) Die("freed memory that is not allocated");
                 std::memset(piece, 0xFF, found->second);
                 gpu.device_bytes -= found->second;
                 gpu.device_memory.erase(found);
                 std::free(piece);
               },
               nullptr, 0});
  return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  BALLAST_ENTER("cudaMemGetInfo");
  *total = gpu.settings.memory_bytes;
  *free = *total - gpu.device_bytes;
  return cudaSuccess;
}

cudaError_t cudaHostAlloc(void** memory, size_t bytes, unsigned) {
  BALLAST_ENTER_WAITING("cudaHostAlloc");
  char* const piece = static_cast<char*>(std::malloc(bytes));
  std::memset(piece, 0xFF, bytes);
  gpu.host_memory[piece] = bytes;
  gpu.host_bytes += bytes;
  ++gpu.host_allocations;
  *memory = piece;
  return cudaSuccess;
}

cudaError_t cudaFreeHost(void* memory) {
  const Lock lock(ballast::emulator::mutex);
  const auto found = gpu.host_memory.find(static_cast<char*>(memory));
  if (found == gpu.host_memory.end()) Die("freed host memory that is not allocated");
  // The real call waits for all work, too.
  for (CUstream_st* stream : gpu.streams) RunUntil(*stream->queue, stream->queue->issued);
  gpu.host_bytes -= found->second;
  gpu.host_memory.erase(found);
  std::free(memory);
  return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void* memory, int value, size_t bytes, cudaStream_t stream) {
  BALLAST_ENTER("cudaMemsetAsync");
  return PutNode(stream, [=] {
    if (!Inside(gpu.device_memory, memory, bytes)) Die("memory set outside an allocation");
    std::memset(memory, value, bytes);
  });
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  BALLAST_ENTER("cudaMemcpyAsync");
  return PutNode(stream, [=] {
    const auto& source = kind == cudaMemcpyHostToDevice ? gpu.host_memory : gpu.device_memory;
    const auto& target = kind == cudaMemcpyDeviceToHost ? gpu.host_memory : gpu.device_memory;
    if (!Inside(source, from, bytes)) Die("copied from memory that is not allocated or not pinned");
    if (!Inside(target, to, bytes)) Die("copied to memory that is not allocated or not pinned");
    std::memcpy(to, from, bytes);
  });
}

cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t bytes, cudaStream_t stream) {
  BALLAST_ENTER("cudaMemcpyPeerAsync");
  return PutNode(stream, [=] {
    if (!Inside(gpu.device_memory, from, bytes)) Die("copied from memory that is not allocated");
    if (!Inside(gpu.device_memory, to, bytes)) Die("copied to memory that is not allocated");
    std::memcpy(to, from, bytes);
  });
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  BALLAST_ENTER("cudaStreamCreateWithFlags");
  *stream = new CUstream_st;
  (*stream)->device = current_device;
  gpu.streams.push_back(*stream);
  return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  const Lock lock(ballast::emulator::mutex);
  RunUntil(*stream->queue, stream->queue->issued);
  std::erase(gpu.streams, stream);
  delete stream;
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  BALLAST_ENTER_WAITING("cudaStreamSynchronize");
  RunUntil(*stream->queue, stream->queue->issued);
  return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  BALLAST_ENTER("cudaStreamWaitEvent");
  if (stream->capture != nullptr) {
    // The event belongs to work outside the graph.
    stream->capture->valid = false;
    return cudaErrorStreamCaptureIsolation;
  }
  Put(stream, {nullptr, event->queue, event->position});
  return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  BALLAST_ENTER("cudaStreamBeginCapture");
  if (stream == nullptr || stream->capture != nullptr) return cudaErrorInvalidValue;
  stream->capture = std::make_unique<Capture>();
  ++gpu.captures;
  if (gpu.on_capture) gpu.on_capture(gpu.captures);
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  const Lock lock(ballast::emulator::mutex);
  *graph = nullptr;
  if (stream->capture == nullptr) return cudaErrorInvalidValue;
  if (stream->capture->thread != std::this_thread::get_id()) Die("ended a capture that another thread began");
  const std::unique_ptr<Capture> capture = std::move(stream->capture);
  // The capture has ended, even if a later step fails.
  if (const cudaError_t error = Enter("cudaStreamEndCapture"); error != cudaSuccess) return error;
  if (!capture->valid) return cudaErrorStreamCaptureInvalidated;
  *graph = new CUgraph_st(std::move(capture->graph));
  ++gpu.graphs;
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long) {
  BALLAST_ENTER("cudaGraphInstantiateWithFlags");
  *executable = new CUgraphExec_st{std::make_shared<const std::vector<std::function<void()>>>(graph->nodes)};
  ++gpu.graphs;
  return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  BALLAST_ENTER("cudaGraphLaunch");
  ++gpu.launches;
  ++gpu.graph_launches;
  Put(stream, {[nodes = executable->nodes] {
                 for (const std::function<void()>& node : *nodes) node();
               },
               nullptr, 0});
  return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  const Lock lock(ballast::emulator::mutex);
  delete graph;
  --gpu.graphs;
  return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  const Lock lock(ballast::emulator::mutex);
  delete executable;
  --gpu.graphs;
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  BALLAST_ENTER("cudaEventCreateWithFlags");
  *event = new CUevent_st;
  (*event)->device = current_device;
  if ((flags & cudaEventDisableTiming) == 0) (*event)->time = std::make_shared<float>();
  ++gpu.events;
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  const Lock lock(ballast::emulator::mutex);
  delete event;
  --gpu.events;
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  BALLAST_ENTER("cudaEventRecord");
  if (event->device != stream->device) return cudaErrorInvalidResourceHandle;
  std::function<void()> keep_time;
  if (event->time != nullptr) keep_time = [time = event->time] { *time = gpu.milliseconds; };
  Put(stream, {keep_time, nullptr, 0});
  event->queue = stream->queue;
  event->position = stream->queue->issued;
  return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  BALLAST_ENTER("cudaEventElapsedTime");
  if (begin->time == nullptr || end->time == nullptr) return cudaErrorInvalidValue;
  *milliseconds = *end->time - *begin->time;
  return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  BALLAST_ENTER_WAITING("cudaEventQuery");
  return Done(event->queue.get(), event->position) ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  BALLAST_ENTER_WAITING("cudaEventSynchronize");
  if (event->queue != nullptr) RunUntil(*event->queue, event->position);
  return cudaSuccess;
}
