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
#include "worker/device/cuda/memory/scratch.h"
#include "worker/device/cuda/memory/scratch_shelf.h"
#include "worker/device/cuda/stream/stream_order.h"
#include "worker/device/segment.h"

namespace ballast {

// Owns the CUDA graphs of a device's segments. A segment is issued plainly the first time, which leaves the memory that
// it needs on a shelf and its algorithms chosen; the next time it is captured, and from then on its graph is launched.
// A graph holds operations of the compute stream alone: uploads are waited for before it. What it depends on and what
// it changes beside memory, the 16-bit copies of its buffers and the dropouts' keys, is checked and kept up with each
// launch. Whatever cannot be captured is issued plainly, and after an error of CUDA's about graphs all is. See
// docs/decisions/0014. Thread safety: one thread, which issues the device's operations.
class SegmentGraphs {
 public:
  // All outlive this. Without `on` each segment is issued plainly.
  SegmentGraphs(StreamOrder* order, MemoryPool* memory, HalfCopies* halves, bool on);
  ~SegmentGraphs();
  SegmentGraphs(const SegmentGraphs&) = delete;
  SegmentGraphs& operator=(const SegmentGraphs&) = delete;

  // As Device::Repeat. The GPU is the thread's.
  void Repeat(const Segment& segment, absl::FunctionRef<void()> issue);

  // For operations. Whether what is issued now goes into a graph and not to the GPU.
  bool capturing() const { return capturing_; }
  // An operation on these is about to be issued. An error, while capturing, where it cannot be captured.
  absl::Status Note(absl::Span<const CudaBuffer* const> operands);
  // An operation could not be captured.
  void Fail(const absl::Status& status) { capture_status_.Update(status); }
  // While capturing: where a dropout's kernel finds seed and step; else null.
  const uint64_t* DropoutSeed(const DropoutKey& key);

  // Gives up all graphs and their memory.
  void Drop();

 private:
  struct Operand {
    const void* memory;
    // Of the buffer, in HalfCopies: while it is this, `use` is there.
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
  // Of a key.
  struct Known {
    // Those of the last time that it was issued.
    std::vector<Operand> operands;
    // They differ in which 16-bit copies were there.
    std::vector<Graph> graphs;
    int captures = 0;
    // Number of the last Repeat.
    uint64_t used = 0;
  };

  void Destroy(std::vector<Graph>& graphs);
  // Whether the buffers are those that were issued on.
  bool Current(const Known& known) const;
  Known* Find(const Segment::Key& key);
  void IssuePlainly(const Segment& segment, absl::FunctionRef<void()> issue);
  // Nothing where it cannot be captured now.
  std::optional<Graph> Capture(const Known& known, absl::FunctionRef<void()> issue);
  // False where it was not launched.
  bool Launch(const Segment& segment, const Known& known, const Graph& graph);
  // Has the dropouts of graphs draw by the segment's seed and step from now on.
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
  // What it holds.
  std::optional<std::pair<uint64_t, uint64_t>> seed_and_step_;

  // Of the segment that is being issued; null: of none.
  const Segment* segment_ = nullptr;
  std::vector<Operand> operands_;
  bool capturing_ = false;
  bool draws_ = false;
  absl::Status capture_status_;
};

}  // namespace ballast
