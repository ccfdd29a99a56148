// SPDX-License-Identifier: Apache-2.0
#include "worker/device/cuda/emulator/emulated_gpu.h"

#include <cstdio>
#include <cstdlib>

#include "worker/device/cuda/emulator/gpu_state.h"

namespace ballast::emulator {
namespace {

bool Lost() { return gpu.everything != cudaSuccess && gpu.everything_after <= 0; }

void RunFront(Queue& queue) {
  // Moved out first, because it may enqueue more work.
  const Work work = std::move(queue.work.front());
  queue.work.pop_front();
  // A lost GPU computes nothing.
  if (work.run && !Lost()) work.run();
  ++queue.done;
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
      for (cudaStream_t stream : gpu.streams) more = Step(*stream->queue) || more;
    }
  } else if (gpu.settings.schedule == Schedule::kRandom && !gpu.streams.empty()) {
    for (int steps = static_cast<int>(gpu.random() % 4); steps > 0; --steps) {
      Step(*gpu.streams[gpu.random() % gpu.streams.size()]->queue);
    }
  }
}

}  // namespace

thread_local int current_device = 0;
std::recursive_mutex mutex;
Gpu gpu;

// Frees the memory that a process could not return to a lost GPU, like the end of the process.
Gpu::~Gpu() {
  if (everything == cudaSuccess) return;
  device_memory.ReturnAll();
  host_memory.ReturnAll();
}

void Die(const char* what) {
  std::fprintf(stderr, "emulated GPU: %s\n", what);
  std::abort();
}

void* Pieces::Take(size_t bytes) {
  char* const piece = static_cast<char*>(std::malloc(bytes));
  // Fills it with NaN, so that a read of uninitialized memory shows.
  std::memset(piece, 0xFF, bytes);
  Add(piece, bytes);
  return piece;
}

void Pieces::Add(void* memory, size_t bytes) {
  pieces_[static_cast<char*>(memory)] = bytes;
  bytes_ += bytes;
}

size_t Pieces::Remove(void* memory) {
  const auto found = pieces_.find(static_cast<char*>(memory));
  if (found == pieces_.end()) Die("freed memory that is not allocated, or unregistered memory that is not registered");
  const size_t bytes = found->second;
  bytes_ -= bytes;
  pieces_.erase(found);
  return bytes;
}

size_t Pieces::Return(void* memory) {
  const size_t bytes = Remove(memory);
  std::memset(memory, 0xFF, bytes);
  std::free(memory);
  return bytes;
}

void Pieces::ReturnAll() {
  while (!pieces_.empty()) Return(pieces_.begin()->first);
}

bool Pieces::Contain(const void* memory, size_t bytes) const {
  const char* const begin = static_cast<const char*>(memory);
  auto piece = pieces_.upper_bound(const_cast<char*>(begin));
  if (piece == pieces_.begin()) return false;
  --piece;
  return begin + bytes <= piece->first + piece->second;
}

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

cudaError_t CheckMayWait() {
  for (cudaStream_t stream : gpu.streams) {
    if (stream->capture == nullptr || stream->capture->thread != std::this_thread::get_id()) continue;
    stream->capture->valid = false;
    return cudaErrorStreamCaptureUnsupported;
  }
  return cudaSuccess;
}

float Milliseconds() {
  if (!gpu.settings.timed) return gpu.milliseconds;
  return gpu.milliseconds +
         std::chrono::duration<float, std::milli>(std::chrono::steady_clock::now() - gpu.reset).count();
}

bool Done(const Queue* queue, uint64_t position) { return queue == nullptr || queue->done >= position; }

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

void Finish(cudaStream_t stream) { RunUntil(*stream->queue, stream->queue->issued); }

void Put(cudaStream_t stream, Work work) {
  if (stream == nullptr) Die("the default stream is used");
  if (stream->capture != nullptr) Die("work that a graph cannot hold is put into a stream that is being captured");
  stream->queue->work.push_back(std::move(work));
  ++stream->queue->issued;
  RunSome();
}

cudaError_t PutNode(cudaStream_t stream, std::function<void()> work) {
  if (stream != nullptr && stream->capture != nullptr) {
    Capture& capture = *stream->capture;
    if (capture.thread != std::this_thread::get_id()) Die("another thread's work is captured");
    if (!capture.valid) return cudaErrorStreamCaptureInvalidated;
    capture.nodes.push_back(std::move(work));
    return cudaSuccess;
  }
  Put(stream, {std::move(work), nullptr, 0});
  return cudaSuccess;
}

void Reset(const Settings& settings) {
  const Lock lock(mutex);
  const Counts counts = Count();
  if (counts.streams + counts.events + counts.graphs != 0 || counts.device_bytes + counts.host_bytes != 0) {
    Die("reset while resources are still in use");
  }
  gpu = Gpu{};
  gpu.settings = settings;
  gpu.random.seed(settings.seed);
}

void FailEverything(cudaError_t error, int after) {
  const Lock lock(mutex);
  gpu.everything = error;
  gpu.everything_after = after;
}

void FailCall(const char* call, cudaError_t error, int after) {
  const Lock lock(mutex);
  gpu.faults.push_back({call, error, after});
}

void OnCapture(std::function<void(int)> call) {
  const Lock lock(mutex);
  gpu.on_capture = std::move(call);
}

void PassTime(float milliseconds) {
  const Lock lock(mutex);
  gpu.milliseconds += milliseconds;
}

Counts Count() {
  const Lock lock(mutex);
  Counts counts = gpu.counts;
  counts.device_bytes = gpu.device_memory.bytes();
  counts.host_bytes = gpu.host_memory.bytes();
  counts.streams = static_cast<int>(gpu.streams.size());
  return counts;
}

cudaError_t Enqueue(const char* call, cudaStream_t stream, std::function<void()> work) {
  const Lock lock(mutex);
  if (const cudaError_t error = Enter(call); error != cudaSuccess) return error;
  if (stream != nullptr && stream->device != current_device) return cudaErrorInvalidResourceHandle;
  if (stream != nullptr && stream->capture == nullptr) ++gpu.counts.launches;
  return PutNode(stream, std::move(work));
}

}  // namespace ballast::emulator
