// SPDX-License-Identifier: Apache-2.0
#include "worker/device/cuda/segment_graphs.h"

#include <algorithm>
#include <iostream>

#include "worker/device/cuda/kernels/dropout.h"

namespace ballast {
namespace {

// Number of segments remembered: enough for a deep model at several batch sizes.
constexpr size_t kMaxKnown = 4096;
// A segment not issued during this many repeats is forgotten when the table is full.
constexpr uint64_t kOld = 4 * kMaxKnown;
constexpr size_t kMaxGraphsOfOne = 4;
// Captures per segment, including failures: if its graphs keep getting stale, capturing wastes time.
constexpr int kMaxCaptures = 16;

struct CapturedGraphDeleter {
  void operator()(cudaGraph_t graph) const { cudaGraphDestroy(graph); }
};
using CapturedGraph = std::unique_ptr<std::remove_pointer_t<cudaGraph_t>, CapturedGraphDeleter>;

}  // namespace

SegmentGraphs::SegmentGraphs(StreamOrder* order, MemoryPool* memory, HalfCopies* halves, bool on)
    : order_(*order), memory_(*memory), halves_(*halves), on_(on), shelf_(memory) {
  memory_.OnShortage(this, [this] { Drop(); });
}

SegmentGraphs::~SegmentGraphs() {
  memory_.OnShortage(this, nullptr);
  Drop();
}

void SegmentGraphs::Repeat(const Segment& segment, absl::FunctionRef<void()> issue) {
  if (!on_) return issue();
  ++repeats_;
  Known* known = Find(segment.key);
  if (known == nullptr) return issue();
  known->used = repeats_;
  if (known->operands.empty() || !Current(*known)) {
    Destroy(known->graphs);
    return IssuePlainly(segment, issue);
  }
  segment_ = &segment;
  for (const Graph& graph : known->graphs) {
    if (!halves_.Fits(*graph.halves)) continue;
    if (Launch(segment, *known, graph)) return;
    return IssuePlainly(segment, issue);
  }
  if (known->captures < kMaxCaptures) {
    ++known->captures;
    if (std::optional<Graph> graph = Capture(*known, issue); graph.has_value()) {
      if (known->graphs.size() == kMaxGraphsOfOne) Destroy(known->graphs);
      known->graphs.push_back(*std::move(graph));
      if (Launch(segment, *known, known->graphs.back())) return;
    }
  }
  IssuePlainly(segment, issue);
}

absl::Status SegmentGraphs::Note(absl::Span<const CudaBuffer* const> operands) {
  if (segment_ == nullptr) return absl::OkStatus();
  for (const CudaBuffer* buffer : operands) {
    const auto same = [&](const Operand& operand) { return operand.memory == buffer->data(); };
    if (std::any_of(operands_.begin(), operands_.end(), same)) continue;
    if (capturing_) return absl::FailedPreconditionError("a segment's operations use other buffers than before");
    operands_.push_back({buffer->data(), halves_.SerialOf(buffer->data()), &buffer->use()});
  }
  return capturing_ ? capture_status_ : absl::OkStatus();
}

const uint64_t* SegmentGraphs::DropoutSeed(const DropoutKey& key) {
  if (!capturing_) return nullptr;
  if (key.seed != segment_->seed || key.step != segment_->step) {
    Fail(absl::InternalError("the seed or step of a dropout's key differs from its segment's"));
  }
  draws_ = true;
  return static_cast<const uint64_t*>(dropout_seed_->bytes());
}

void SegmentGraphs::Drop() {
  // The segments stay, because one of them may be in use by Repeat.
  for (auto& [key, known] : known_) Destroy(known.graphs);
  shelf_.Clear();
}

void SegmentGraphs::Destroy(std::vector<Graph>& graphs) {
  if (graphs.empty()) return;
  // One of the graphs may still be running.
  cudaStreamSynchronize(order_.compute());
  graphs.clear();
}

bool SegmentGraphs::Current(const Known& known) const {
  return std::all_of(known.operands.begin(), known.operands.end(),
                     [this](const Operand& operand) { return halves_.SerialOf(operand.memory) == operand.serial; });
}

SegmentGraphs::Known* SegmentGraphs::Find(const Segment::Key& key) {
  if (const auto found = known_.find(key); found != known_.end()) return &found->second;
  if (known_.size() == kMaxKnown) {
    cudaStreamSynchronize(order_.compute());
    absl::erase_if(known_, [this](const auto& known) { return known.second.used + kOld < repeats_; });
  }
  return known_.size() < kMaxKnown ? &known_[key] : nullptr;
}

void SegmentGraphs::IssuePlainly(const Segment& segment, absl::FunctionRef<void()> issue) {
  if (!on_) return issue();
  segment_ = &segment;
  operands_.clear();
  shelf_.SetUse(ScratchShelf::Use::kGrowing);
  issue();
  shelf_.SetUse(ScratchShelf::Use::kOff);
  segment_ = nullptr;
  known_[segment.key].operands = std::move(operands_);
  if (dropout_seed_.has_value()) return;
  absl::StatusOr<Scratch> seed = Scratch::MakeLasting(&memory_, 2 * sizeof(uint64_t));
  if (seed.ok()) dropout_seed_.emplace(*std::move(seed));
}

std::optional<SegmentGraphs::Graph> SegmentGraphs::Capture(const Known& known, absl::FunctionRef<void()> issue) {
  if (!dropout_seed_.has_value()) return std::nullopt;
  std::vector<BufferUse*> uses;
  for (const Operand& operand : known.operands) uses.push_back(operand.use);
  // A captured operation must not wait for an upload, and no concurrent copy may wait for a captured operation.
  if (!order_.BeforeOperation(uses).ok() || !order_.Mark().ok()) return std::nullopt;
  operands_ = known.operands;
  draws_ = false;
  capture_status_ = absl::OkStatus();
  shelf_.SetUse(ScratchShelf::Use::kFixed);
  cudaError_t error = cudaStreamBeginCapture(order_.compute(), cudaStreamCaptureModeThreadLocal);
  if (error != cudaSuccess) {
    shelf_.SetUse(ScratchShelf::Use::kOff);
    TurnOff(error, "cudaStreamBeginCapture");
    return std::nullopt;
  }
  halves_.BeginTrace();
  capturing_ = true;
  issue();
  capturing_ = false;
  Graph made{.graph = nullptr, .halves = halves_.EndTrace(), .draws = draws_};
  cudaGraph_t captured = nullptr;
  error = cudaStreamEndCapture(order_.compute(), &captured);
  const CapturedGraph graph(captured);
  shelf_.SetUse(ScratchShelf::Use::kOff);
  if (error != cudaSuccess) {
    TurnOff(error, "cudaStreamEndCapture");
    return std::nullopt;
  }
  if (!capture_status_.ok()) return std::nullopt;
  cudaGraphExec_t executable = nullptr;
  error = cudaGraphInstantiateWithFlags(&executable, graph.get(), 0);
  if (error != cudaSuccess) {
    TurnOff(error, "cudaGraphInstantiateWithFlags");
    return std::nullopt;
  }
  made.graph.reset(executable);
  return made;
}

bool SegmentGraphs::Launch(const Segment& segment, const Known& known, const Graph& graph) {
  std::vector<BufferUse*> uses;
  for (const Operand& operand : known.operands) uses.push_back(operand.use);
  if (!order_.BeforeOperation(uses).ok()) return false;
  cudaError_t error = graph.draws ? SetDropoutSeed(segment) : cudaSuccess;
  if (error == cudaSuccess) error = cudaGraphLaunch(graph.graph.get(), order_.compute());
  order_.AfterOperation(uses);
  if (error != cudaSuccess) {
    TurnOff(error, "cudaGraphLaunch");
    return false;
  }
  halves_.Apply(*graph.halves);
  segment_ = nullptr;
  return true;
}

cudaError_t SegmentGraphs::SetDropoutSeed(const Segment& segment) {
  const std::pair<uint64_t, uint64_t> wanted(segment.seed, segment.step);
  if (seed_and_step_ == wanted) return cudaSuccess;
  seed_and_step_ = wanted;
  return LaunchSetDropoutSeed(order_.compute(), segment.seed, segment.step,
                              static_cast<uint64_t*>(dropout_seed_->bytes()));
}

void SegmentGraphs::TurnOff(cudaError_t error, const char* call) {
  cudaGetLastError();
  on_ = false;
  segment_ = nullptr;
  std::cerr << "warning: CUDA graphs are disabled after an error: " << call << ": " << cudaGetErrorName(error)
            << std::endl;
  Drop();
}

}  // namespace ballast
