// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <boost/context/fiber.hpp>
#include <memory>
#include <utility>
#include <vector>

#include "worker/device/cuda/emulator/gpu_state.h"

thread_local dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace ballast::emulator {
namespace {

constexpr int kWarp = 32;
constexpr size_t kStackBytes = 64 * 1024;

// Leaves a stack to its owner.
struct KeptStack {
  void deallocate(boost::context::stack_context&) {}
};

// Runs the blocks of a grid one after the other, each thread on its own stack, until it waits or ends. If no thread
// of the first block waits, the threads of the other blocks run without their own stacks, which is much faster.
class Grid {
 public:
  Grid(dim3 block, const std::function<void()>& thread)
      : block_(block), thread_(thread), fibers_(size_t{block.x} * block.y * block.z), left_(fibers_.size()) {}

  // The grid that is running.
  static Grid*& Current() {
    static thread_local Grid* current = nullptr;
    return current;
  }

  void RunBlock() {
    Current() = this;
    blockDim = block_;
    if (first_ || waits_) {
      RunFibers();
    } else {
      for (size_t i = fibers_.size(); i-- > 0;) {
        SetThread(i);
        thread_();
      }
    }
    first_ = false;
    Current() = nullptr;
  }

  void WaitForBlock() { Yield(State::kAtBlockBarrier); }

  uint64_t Exchange(uint64_t bits, int lane) {
    left_[running_] = bits;
    Yield(State::kAtWarpBarrier);
    const uint64_t got = left_[running_ / kWarp * kWarp + lane];
    // Waits so that no slot is rewritten before all threads have read it.
    Yield(State::kAtWarpBarrier);
    return got;
  }

  int lane() const { return static_cast<int>(running_ % kWarp); }

 private:
  enum class State { kNew, kReady, kAtBlockBarrier, kAtWarpBarrier, kEnded };

  struct Fiber {
    State state = State::kNew;
    boost::context::fiber context;
  };

  // Stack of the i-th thread; kept between grids, because there are many, and only one grid runs at a time.
  static char* Stack(size_t i) {
    static thread_local std::vector<std::unique_ptr<char[]>> stacks;
    while (stacks.size() <= i) stacks.emplace_back(new char[kStackBytes]);
    return stacks[i].get();
  }

  void RunFibers() {
    for (Fiber& fiber : fibers_) fiber.state = State::kNew;
    size_t ended = 0;
    while (ended < fibers_.size()) {
      // Runs the last thread first, to expose kernels that rely on the first thread running first.
      bool ran = false;
      for (size_t i = fibers_.size(); i-- > 0;) {
        if (fibers_[i].state != State::kNew && fibers_[i].state != State::kReady) continue;
        ran = true;
        Resume(i);
        if (fibers_[i].state == State::kEnded) ++ended;
      }
      if (!ran) Die("threads wait at a barrier that other threads of their block or warp do not reach");
      ReleaseIfAll(0, fibers_.size(), State::kAtBlockBarrier);
      for (size_t warp = 0; warp < fibers_.size(); warp += kWarp) {
        ReleaseIfAll(warp, std::min(warp + kWarp, fibers_.size()), State::kAtWarpBarrier);
      }
    }
  }

  void SetThread(size_t i) {
    running_ = i;
    threadIdx = dim3(i % block_.x, i / block_.x % block_.y, i / block_.x / block_.y);
  }

  void Resume(size_t i) {
    SetThread(i);
    Fiber& fiber = fibers_[i];
    if (fiber.state == State::kNew) {
      boost::context::stack_context stack;
      stack.sp = Stack(i) + kStackBytes;
      stack.size = kStackBytes;
      fiber.context =
          boost::context::fiber(std::allocator_arg, boost::context::preallocated(stack.sp, stack.size, stack),
                                KeptStack(), [this](boost::context::fiber&& scheduler) {
                                  scheduler_ = std::move(scheduler);
                                  thread_();
                                  return std::move(scheduler_);
                                });
      fiber.state = State::kReady;
    }
    fiber.context = std::move(fiber.context).resume();
    if (!fiber.context) fiber.state = State::kEnded;
  }

  void Yield(State state) {
    if (!first_ && !waits_) Die("a thread reaches a barrier that no thread of the first block reached");
    waits_ = true;
    fibers_[running_].state = state;
    scheduler_ = std::move(scheduler_).resume();
  }

  // Releases the threads from `begin` to before `end` once all of them are in `state`.
  void ReleaseIfAll(size_t begin, size_t end, State state) {
    for (size_t i = begin; i < end; ++i) {
      if (fibers_[i].state != state) return;
    }
    for (size_t i = begin; i < end; ++i) fibers_[i].state = State::kReady;
  }

  const dim3 block_;
  const std::function<void()>& thread_;
  std::vector<Fiber> fibers_;
  // Bits that each thread published to its warp.
  std::vector<uint64_t> left_;
  size_t running_ = 0;
  bool first_ = true;
  bool waits_ = false;
  // Context of the scheduler, which goes on when the running thread waits.
  boost::context::fiber scheduler_;
};

}  // namespace

void RunGrid(dim3 grid, dim3 block, const std::function<void()>& thread) {
  const size_t threads = static_cast<size_t>(block.x) * block.y * block.z;
  if (threads == 0 || threads > 1024) Die("a block needs 1 to 1024 threads");
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) Die("an empty grid");
  if (grid.y > 65535 || grid.z > 65535) Die("a grid of more than 65535 blocks in y or z");
  gridDim = grid;
  Grid blocks(block, thread);
  for (unsigned z = 0; z < grid.z; ++z) {
    for (unsigned y = 0; y < grid.y; ++y) {
      for (unsigned x = 0; x < grid.x; ++x) {
        blockIdx = dim3(x, y, z);
        blocks.RunBlock();
      }
    }
  }
}

uint64_t Exchange(uint64_t bits, int lane) { return Grid::Current()->Exchange(bits, lane); }

int Lane() { return Grid::Current()->lane(); }

}  // namespace ballast::emulator

void __syncthreads() { ballast::emulator::Grid::Current()->WaitForBlock(); }
