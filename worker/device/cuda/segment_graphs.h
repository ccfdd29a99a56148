// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "worker/device/cuda/memory/cuda_buffer.h"
#include "worker/device/cuda/memory/half_copies.h"
#include "worker/device/cuda/memory/memory_pool.h"
#include "worker/device/cuda/stream/stream_order.h"
#include "worker/device/segment.h"

namespace ballast {

// Owns the CUDA graphs of a device's segments. The first time, a segment is issued plainly, which puts the memory
// that it needs on a shelf and chooses its algorithms. The second time it is captured, and from then on its graph is
// launched. A graph holds only operations of the compute stream; uploads are waited for before it. Besides memory, a
// graph depends on and changes the 16-bit copies of its buffers and the dropout keys; each launch checks and updates
// these. A segment that cannot be captured is issued plainly; after a CUDA error about graphs, all segments are. See
// docs/decisions/0014. Thread safety: one thread, which issues the device's operations.
class SegmentGraphs {
 public:
  // The pointers outlive this. If not `on`, every segment is issued plainly.
  SegmentGraphs(StreamOrder* order, MemoryPool* memory, HalfCopies* halves, bool on);
  ~SegmentGraphs();
  SegmentGraphs(const SegmentGraphs&) = delete;
  SegmentGraphs& operator=(const SegmentGraphs&) = delete;

  // Like Device::Repeat. Requires the device's GPU to be the thread's current one.
  void Repeat(const Segment& segment, absl::FunctionRef<void()> issue);

  // For operations: returns whether operations issued now are captured into a graph instead of run.
  bool capturing() const { return capturing_; }
  // Call it before issuing an operation on `operands`. Returns an error, while capturing, if it cannot be captured.
  absl::Status Note(absl::Span<const CudaBuffer* const> operands);
  // Reports that an operation could not be captured.
  void Fail(const absl::Status& status) { capture_status_.Update(status); }
  // While capturing, the address where a dropout's kernel finds seed and step; otherwise null.
  const uint64_t* DropoutSeed(const DropoutKey& key);

  void Drop();

 private:
  struct Operand {
    const void* memory;
    // Serial of the buffer in HalfCopies; `use` is valid while it is unchanged.
    uint64_t serial;
    BufferUse* use;
  };
  struct GraphDeleter {
    void operator()(cudaGraphExec_t graph) const { cudaGraphExecDestroy(graph); }
  };
  struct Graph {
    std::unique_ptr<std::remove_pointer_t<cudaGraphExec_t>, GraphDeleter> graph;
    std::unique_ptr<const HalfCopies::Trace> halves;
    bool draws = false;
  };
  // State of one segment key.
  struct Known {
    // Operands of the last plain issue.
    std::vector<Operand> operands;
    // They differ in which 16-bit copies existed.
    std::vector<Graph> graphs;
    int captures = 0;
    // Number of the last Repeat of this key.
    uint64_t used = 0;
  };

  void Destroy(std::vector<Graph>& graphs);
  // Returns whether the operands are still the buffers of the last plain issue.
  bool Current(const Known& known) const;
  Known* Find(const Segment::Key& key);
  void IssuePlainly(const Segment& segment, absl::FunctionRef<void()> issue);
  // Returns nothing if the segment cannot be captured now.
  std::optional<Graph> Capture(const Known& known, absl::FunctionRef<void()> issue);
  // Returns false if the graph was not launched.
  bool Launch(const Segment& segment, const Known& known, const Graph& graph);
  // Sets the seed and step that dropouts in graphs use from now on.
  cudaError_t SetDropoutSeed(const Segment& segment);
  void TurnOff(cudaError_t error, const char* call);

  StreamOrder& order_;
  MemoryPool& memory_;
  HalfCopies& halves_;
  bool on_;
  ScratchShelf shelf_;
  absl::flat_hash_map<Segment::Key, Known> known_;
  uint64_t repeats_ = 0;
  // On the GPU; null until the first segment.
  std::optional<Scratch> dropout_seed_;
  // Contents of dropout_seed_.
  std::optional<std::pair<uint64_t, uint64_t>> seed_and_step_;

  // The segment that is being issued; null if none.
  const Segment* segment_ = nullptr;
  std::vector<Operand> operands_;
  bool capturing_ = false;
  bool draws_ = false;
  absl::Status capture_status_;
};

}  // namespace ballast
