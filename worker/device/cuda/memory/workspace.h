// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "worker/device/cuda/memory/memory_pool.h"

namespace ballast {

// Owns memory that operations of one stream use in turn, each until its end. It is reserved before the operations, so
// that they take none from the pool. Thread safety: none.
class Workspace {
 public:
  // Memory for one operation: the workspace, or scratch memory if that is too small; null for 0 bytes.
  struct Piece {
    void* memory = nullptr;
    std::optional<Scratch> scratch = std::nullopt;
  };

  // `memory` outlives it.
  explicit Workspace(MemoryPool* memory) : memory_(*memory) {}

  // Makes the workspace at least this large. RESOURCE_EXHAUSTED if memory is short.
  absl::Status Reserve(int64_t bytes) {
    if (bytes <= size_) return absl::OkStatus();
    absl::StatusOr<Scratch> memory = Scratch::MakeLasting(&memory_, bytes);
    if (!memory.ok()) return memory.status();
    held_.push_back(*std::move(memory));
    size_ = bytes;
    held_bytes_ += bytes;
    return absl::OkStatus();
  }

  // Bytes that one operation can use; 0: nothing is reserved.
  int64_t size() const { return size_; }
  // Bytes of GPU memory.
  int64_t held_bytes() const { return held_bytes_; }

  absl::StatusOr<Piece> Take(int64_t bytes) {
    if (bytes == 0) return Piece();
    if (bytes <= size_) return Piece{held_.back().bytes()};
    absl::StatusOr<Scratch> scratch = Scratch::Make(&memory_, bytes);
    if (!scratch.ok()) return scratch.status();
    void* const memory = scratch->bytes();
    return Piece{memory, *std::move(scratch)};
  }

 private:
  MemoryPool& memory_;
  // The last one is in use. The others stay, because graphs hold their addresses.
  std::vector<Scratch> held_;
  int64_t size_ = 0;
  int64_t held_bytes_ = 0;
};

}  // namespace ballast
