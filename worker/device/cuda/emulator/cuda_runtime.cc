// SPDX-License-Identifier: Apache-2.0
// The CUDA calls of cuda_runtime.h.
#include "worker/device/cuda/emulator/cuda_runtime.h"

#include <algorithm>

#include "worker/device/cuda/emulator/gpu_state.h"

using ballast::emulator::Capture;
using ballast::emulator::CheckMayWait;
using ballast::emulator::current_device;
using ballast::emulator::Die;
using ballast::emulator::Done;
using ballast::emulator::Enter;
using ballast::emulator::Finish;
using ballast::emulator::gpu;
using ballast::emulator::Lock;
using ballast::emulator::Milliseconds;
using ballast::emulator::mutex;
using ballast::emulator::Nodes;
using ballast::emulator::Put;
using ballast::emulator::PutNode;
using ballast::emulator::RunUntil;

#define BALLAST_ENTER()   \
  const Lock lock(mutex); \
  if (const cudaError_t error = Enter(__func__); error != cudaSuccess) return error
// Begins each call that waits.
#define BALLAST_ENTER_WAITING() \
  BALLAST_ENTER();              \
  if (const cudaError_t error = CheckMayWait(); error != cudaSuccess) return error

const char* cudaGetErrorName(cudaError_t error) {
#define BALLAST_NAME(code) \
  case code:               \
    return #code
  switch (error) {
    BALLAST_NAME(cudaSuccess);
    BALLAST_NAME(cudaErrorInvalidValue);
    BALLAST_NAME(cudaErrorMemoryAllocation);
    BALLAST_NAME(cudaErrorInsufficientDriver);
    BALLAST_NAME(cudaErrorDevicesUnavailable);
    BALLAST_NAME(cudaErrorNoDevice);
    BALLAST_NAME(cudaErrorNoKernelImageForDevice);
    BALLAST_NAME(cudaErrorPeerAccessUnsupported);
    BALLAST_NAME(cudaErrorECCUncorrectable);
    BALLAST_NAME(cudaErrorInvalidResourceHandle);
    BALLAST_NAME(cudaErrorNotReady);
    BALLAST_NAME(cudaErrorIllegalAddress);
    BALLAST_NAME(cudaErrorPeerAccessAlreadyEnabled);
    BALLAST_NAME(cudaErrorHostMemoryAlreadyRegistered);
    BALLAST_NAME(cudaErrorLaunchFailure);
    BALLAST_NAME(cudaErrorSystemDriverMismatch);
    BALLAST_NAME(cudaErrorStreamCaptureUnsupported);
    BALLAST_NAME(cudaErrorStreamCaptureInvalidated);
    BALLAST_NAME(cudaErrorStreamCaptureIsolation);
    BALLAST_NAME(cudaErrorUnknown);
  }
#undef BALLAST_NAME
  return "unrecognized error code";
}

const char* cudaGetErrorString(cudaError_t) { return "emulated"; }

cudaError_t cudaGetLastError() { return cudaSuccess; }

cudaError_t cudaDriverGetVersion(int* version) {
  const Lock lock(mutex);
  *version = gpu.settings.driver_version;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = 13000;
  return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int* count) {
  BALLAST_ENTER();
  *count = gpu.settings.devices;
  return *count == 0 ? cudaErrorNoDevice : cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  BALLAST_ENTER();
  if (device < 0 || device >= gpu.settings.devices) return cudaErrorInvalidValue;
  *properties = {"Emulated", gpu.settings.memory_bytes, gpu.settings.compute_major, gpu.settings.compute_minor, 4};
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int device) {
  BALLAST_ENTER();
  if (device < 0 || device >= gpu.settings.devices) return cudaErrorInvalidValue;
  *value = gpu.settings.compute_mode;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  BALLAST_ENTER();
  if (device < 0 || device >= gpu.settings.devices) return cudaErrorInvalidValue;
  const bool exclusive = gpu.settings.compute_mode == cudaComputeModeExclusiveProcess;
  if (gpu.settings.compute_mode == cudaComputeModeProhibited || (exclusive && gpu.settings.held)) {
    return cudaErrorDevicesUnavailable;
  }
  current_device = device;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int device) {
  BALLAST_ENTER();
  if (device < 0 || device >= gpu.settings.devices) return cudaErrorInvalidValue;
  *pool = &gpu.pools[device];
  return cudaSuccess;
}

cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void* value) {
  BALLAST_ENTER();
  if (attribute != cudaMemPoolAttrUsedMemHigh) return cudaSuccess;
  if (*static_cast<const uint64_t*>(value) != 0) return cudaErrorInvalidValue;
  pool->most_used = 0;
  return cudaSuccess;
}

cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute, void* value) {
  BALLAST_ENTER();
  if (attribute == cudaMemPoolAttrReleaseThreshold) return cudaErrorInvalidValue;
  *static_cast<uint64_t*>(value) = attribute == cudaMemPoolAttrUsedMemHigh ? pool->most_used : pool->used;
  return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  BALLAST_ENTER();
  *can = gpu.settings.connected && device != peer ? 1 : 0;
  return cudaSuccess;
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned) {
  BALLAST_ENTER();
  if (!gpu.settings.connected || peer == current_device) return cudaErrorPeerAccessUnsupported;
  return gpu.peers.emplace(current_device, peer).second ? cudaSuccess : cudaErrorPeerAccessAlreadyEnabled;
}

cudaError_t cudaMemPoolSetAccess(cudaMemPool_t pool, const cudaMemAccessDesc* accesses, size_t count) {
  BALLAST_ENTER();
  if (!gpu.settings.connected) return cudaErrorInvalidValue;
  for (size_t i = 0; i < count; ++i) pool->open_to.insert(accesses[i].location.id);
  return cudaSuccess;
}

cudaError_t cudaMemPoolTrimTo(cudaMemPool_t, size_t) {
  BALLAST_ENTER_WAITING();
  return cudaSuccess;
}

cudaError_t cudaMallocAsync(void** memory, size_t bytes, cudaStream_t stream) {
  BALLAST_ENTER();
  if (bytes == 0) return cudaErrorInvalidValue;
  // Memory freed earlier in the same stream can be used.
  if (gpu.device_memory.bytes() + bytes > gpu.settings.memory_bytes) Finish(stream);
  if (gpu.device_memory.bytes() + bytes > gpu.settings.memory_bytes) return cudaErrorMemoryAllocation;
  *memory = gpu.device_memory.Take(bytes);
  CUmemPoolHandle_st& pool = gpu.pools[stream->device];
  pool.used += bytes;
  pool.most_used = std::max(pool.most_used, pool.used);
  return cudaSuccess;
}

cudaError_t cudaFreeAsync(void* memory, cudaStream_t stream) {
  BALLAST_ENTER();
  CUmemPoolHandle_st* const pool = &gpu.pools[stream->device];
  Put(stream, {[memory, pool] { pool->used -= gpu.device_memory.Return(memory); }, nullptr, 0});
  return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  BALLAST_ENTER();
  *total = gpu.settings.memory_bytes;
  *free = *total - gpu.device_memory.bytes();
  return cudaSuccess;
}

cudaError_t cudaHostAlloc(void** memory, size_t bytes, unsigned) {
  BALLAST_ENTER_WAITING();
  ++gpu.counts.host_allocations;
  *memory = gpu.host_memory.Take(bytes);
  return cudaSuccess;
}

cudaError_t cudaFreeHost(void* memory) {
  const Lock lock(mutex);
  // The real call waits for all work, too.
  for (cudaStream_t stream : gpu.streams) Finish(stream);
  gpu.host_memory.Return(memory);
  return cudaSuccess;
}

cudaError_t cudaHostRegister(void* memory, size_t bytes, unsigned) {
  BALLAST_ENTER_WAITING();
  if (gpu.host_memory.Contain(memory, bytes)) return cudaErrorHostMemoryAlreadyRegistered;
  gpu.host_memory.Add(memory, bytes);
  return cudaSuccess;
}

cudaError_t cudaHostUnregister(void* memory) {
  const Lock lock(mutex);
  for (cudaStream_t stream : gpu.streams) Finish(stream);
  gpu.host_memory.Remove(memory);
  return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void* memory, int value, size_t bytes, cudaStream_t stream) {
  BALLAST_ENTER();
  return PutNode(stream, [=] {
    if (!gpu.device_memory.Contain(memory, bytes)) Die("memory set outside an allocation");
    std::memset(memory, value, bytes);
  });
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  BALLAST_ENTER();
  return PutNode(stream, [=] {
    const auto& source = kind == cudaMemcpyHostToDevice ? gpu.host_memory : gpu.device_memory;
    const auto& target = kind == cudaMemcpyDeviceToHost ? gpu.host_memory : gpu.device_memory;
    if (!source.Contain(from, bytes)) Die("copied from memory that is not allocated or not pinned");
    if (!target.Contain(to, bytes)) Die("copied to memory that is not allocated or not pinned");
    std::memcpy(to, from, bytes);
  });
}

cudaError_t cudaMemcpyPeerAsync(void* to, int to_device, const void* from, int from_device, size_t bytes,
                                cudaStream_t stream) {
  BALLAST_ENTER();
  return PutNode(stream, [=] {
    ++(gpu.pools[from_device].open_to.contains(to_device) ? gpu.counts.direct_copies : gpu.counts.staged_copies);
    if (!gpu.device_memory.Contain(from, bytes)) Die("copied from memory that is not allocated");
    if (!gpu.device_memory.Contain(to, bytes)) Die("copied to memory that is not allocated");
    std::memcpy(to, from, bytes);
  });
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  BALLAST_ENTER();
  *stream = new CUstream_st;
  gpu.streams.push_back(*stream);
  return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  const Lock lock(mutex);
  Finish(stream);
  std::erase(gpu.streams, stream);
  delete stream;
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  BALLAST_ENTER_WAITING();
  Finish(stream);
  return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  BALLAST_ENTER();
  if (stream->capture != nullptr) {
    // The event belongs to work outside the graph.
    stream->capture->valid = false;
    return cudaErrorStreamCaptureIsolation;
  }
  Put(stream, {nullptr, event->queue, event->position});
  return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  BALLAST_ENTER();
  if (stream == nullptr || stream->capture != nullptr) return cudaErrorInvalidValue;
  stream->capture = std::make_unique<Capture>();
  ++gpu.captures;
  if (gpu.on_capture) gpu.on_capture(gpu.captures);
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  const Lock lock(mutex);
  *graph = nullptr;
  if (stream->capture == nullptr) return cudaErrorInvalidValue;
  if (stream->capture->thread != std::this_thread::get_id()) Die("ended a capture that another thread began");
  const std::unique_ptr<Capture> capture = std::move(stream->capture);
  // The capture has ended, even if a later step fails.
  if (const cudaError_t error = Enter(__func__); error != cudaSuccess) return error;
  if (!capture->valid) return cudaErrorStreamCaptureInvalidated;
  *graph = new CUgraph_st{std::move(capture->nodes)};
  ++gpu.counts.graphs;
  return cudaSuccess;
}

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long) {
  BALLAST_ENTER();
  *executable = new CUgraphExec_st{std::make_shared<const Nodes>(graph->nodes)};
  ++gpu.counts.graphs;
  return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  BALLAST_ENTER();
  ++gpu.counts.launches;
  ++gpu.counts.graph_launches;
  Put(stream, {[nodes = executable->nodes] {
                 for (const std::function<void()>& node : *nodes) node();
               },
               nullptr, 0});
  return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  const Lock lock(mutex);
  delete graph;
  --gpu.counts.graphs;
  return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  const Lock lock(mutex);
  delete executable;
  --gpu.counts.graphs;
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  BALLAST_ENTER();
  *event = new CUevent_st;
  if ((flags & cudaEventDisableTiming) == 0) (*event)->time = std::make_shared<float>();
  ++gpu.counts.events;
  return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  const Lock lock(mutex);
  delete event;
  --gpu.counts.events;
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  BALLAST_ENTER();
  if (event->device != stream->device) return cudaErrorInvalidResourceHandle;
  std::function<void()> keep_time;
  if (event->time != nullptr) keep_time = [time = event->time] { *time = Milliseconds(); };
  Put(stream, {keep_time, nullptr, 0});
  event->queue = stream->queue;
  event->position = stream->queue->issued;
  return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  BALLAST_ENTER();
  if (begin->time == nullptr || end->time == nullptr) return cudaErrorInvalidValue;
  for (const cudaEvent_t event : {begin, end}) {
    if (!Done(event->queue.get(), event->position)) return cudaErrorNotReady;
  }
  *milliseconds = *end->time - *begin->time;
  return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  BALLAST_ENTER_WAITING();
  return Done(event->queue.get(), event->position) ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  BALLAST_ENTER_WAITING();
  ++gpu.counts.waits;
  if (event->queue != nullptr) RunUntil(*event->queue, event->position);
  return cudaSuccess;
}
