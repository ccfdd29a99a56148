// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "worker/device/cuda/emulator/emulated_gpu.h"

// A device's memory pool: bytes in use, the most in use at once, and the other devices that it is open to.
struct CUmemPoolHandle_st {
  uint64_t used = 0;
  uint64_t most_used = 0;
  std::set<int> open_to;
};

// State of the emulated GPU, and the order in which work in its streams runs.
namespace ballast::emulator {

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
using Nodes = std::vector<std::function<void()>>;

// Work enqueued in a stream between begin and end of its capture.
struct Capture {
  std::thread::id thread = std::this_thread::get_id();
  bool valid = true;
  Nodes nodes;
};

// Owns allocated pieces of memory.
class Pieces {
 public:
  void* Take(size_t bytes);
  // Returns the bytes of the piece.
  size_t Return(void* memory);
  void ReturnAll();
  // Adds memory that stays the caller's, until Remove, which returns its bytes.
  void Add(void* memory, size_t bytes);
  size_t Remove(void* memory);
  // Returns whether [memory, memory + bytes) lies inside one of the pieces.
  bool Contain(const void* memory, size_t bytes) const;
  size_t bytes() const { return bytes_; }

 private:
  std::map<char*, size_t> pieces_;
  size_t bytes_ = 0;
};

struct Fault {
  std::string call;
  cudaError_t error;
  int after;
};

struct Gpu {
  Settings settings;
  std::mt19937 random;
  Pieces device_memory;
  Pieces host_memory;
  std::vector<cudaStream_t> streams;
  // Keyed by device.
  std::map<int, CUmemPoolHandle_st> pools;
  // Pairs of a device and one that it has peer access to.
  std::set<std::pair<int, int>> peers;
  // Counts without bytes and streams.
  Counts counts;
  int captures = 0;
  std::function<void(int)> on_capture;
  float milliseconds = 0;
  std::chrono::steady_clock::time_point reset = std::chrono::steady_clock::now();
  cudaError_t everything = cudaSuccess;
  int everything_after = 0;
  std::vector<Fault> faults;

  ~Gpu();
};

// Set by cudaSetDevice.
extern thread_local int current_device;

// Guards everything; work runs while it is held.
extern std::recursive_mutex mutex;
extern Gpu gpu;
using Lock = std::lock_guard<std::recursive_mutex>;

[[noreturn]] void Die(const char* what);

// Called first in every CUDA call: returns the error that the call is to fail with.
cudaError_t Enter(const char* call);
// Returns an error if this thread is capturing, when calls that wait or query are not allowed.
cudaError_t CheckMayWait();

// The GPU's clock.
float Milliseconds();

bool Done(const Queue* queue, uint64_t position);
// Runs the work that a queue's first `position` pieces need.
void RunUntil(Queue& queue, uint64_t position);
// Runs all work of a stream.
void Finish(cudaStream_t stream);
void Put(cudaStream_t stream, Work work);
// Enqueues a kernel or a copy.
cudaError_t PutNode(cudaStream_t stream, std::function<void()> work);

}  // namespace ballast::emulator

struct CUgraph_st {
  ballast::emulator::Nodes nodes;
};

struct CUgraphExec_st {
  // Shared with the work in a stream, which may outlive the graph.
  std::shared_ptr<const ballast::emulator::Nodes> nodes;
};

struct CUstream_st {
  int device = ballast::emulator::current_device;
  std::shared_ptr<ballast::emulator::Queue> queue = std::make_shared<ballast::emulator::Queue>();
  // Null if not capturing.
  std::unique_ptr<ballast::emulator::Capture> capture;
};

// Position `position` of a queue; null: never recorded, which counts as done.
struct CUevent_st {
  int device = ballast::emulator::current_device;
  std::shared_ptr<ballast::emulator::Queue> queue;
  uint64_t position = 0;
  // GPU time at which the event was reached; null if the event keeps no time.
  std::shared_ptr<float> time;
};
