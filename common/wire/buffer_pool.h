// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"

namespace ballast {

// Owns the memory of received messages. Large ones use buffers of one size, and a few are kept for reuse, because new
// memory of that size costs as much as copying the message. Deliberately does not limit the number of buffers.
// Thread safety: all methods may be called from any thread; a buffer may be used by one thread at a time.
class BufferPool {
 public:
  // The memory of a message, until destroyed. The pool must outlive it.
  class Buffer {
   public:
    Buffer() = default;
    Buffer(Buffer&& other) noexcept { Swap(other); }
    Buffer& operator=(Buffer&& other) noexcept {
      Buffer taken(std::move(other));
      Swap(taken);
      return *this;
    }
    ~Buffer();

    absl::string_view bytes() const { return {data_, size_}; }
    char* data() { return data_; }
    // Looks at the floats in the first `end` bytes, of which the last call has seen some. Best called for each part
    // that arrives, while that is still in the caches.
    void CheckFloats(size_t end);
    // Copies bytes that another process may change to `at`, and looks at the floats up to their end. Reads each byte
    // once.
    void Fill(size_t at, absl::string_view from);
    // True if the floats of that part of bytes() are known to be finite: one of the methods that look has seen them.
    bool HasFiniteFloats(absl::string_view part) const;

   private:
    friend class BufferPool;
    struct Free {
      void operator()(char* memory) const { std::free(memory); }
    };
    using Memory = std::unique_ptr<char, Free>;

    void Swap(Buffer& other) {
      std::swap(memory_, other.memory_);
      std::swap(pool_, other.pool_);
      std::swap(data_, other.data_);
      std::swap(size_, other.size_);
      std::swap(checked_, other.checked_);
      std::swap(finite_, other.finite_);
    }

    Memory memory_;
    // Null for memory that does not return to the pool.
    BufferPool* pool_ = nullptr;
    char* data_ = nullptr;
    size_t size_ = 0;
    // The floats at aligned addresses in that many bytes are finite, or not all are.
    size_t checked_ = 0;
    bool finite_ = true;
  };

  // `buffer_bytes`: size of the largest message plus kAlignment.
  BufferPool(size_t buffer_bytes, size_t kept) : buffer_bytes_(buffer_bytes), kept_(kept) {}

  // Returns memory for a message of that size, of which the byte `lead`, below kAlignment, is aligned to kAlignment.
  Buffer Get(size_t size, size_t lead = 0);
  // Reads each byte once. Bytes that are aligned to kAlignment in `message` are also aligned in the copy.
  Buffer Copy(absl::string_view message);

  // Bytes of the buffers that are kept and free now.
  size_t free_bytes() const {
    absl::MutexLock lock(&mutex_);
    return free_.size() * buffer_bytes_;
  }

  static constexpr size_t kAlignment = 64;

 private:
  Buffer::Memory Take();
  void GiveBack(Buffer::Memory memory);

  const size_t buffer_bytes_;
  const size_t kept_;
  mutable absl::Mutex mutex_;
  std::vector<Buffer::Memory> free_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace ballast
