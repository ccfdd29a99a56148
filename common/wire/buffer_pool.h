// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <utility>

#include "absl/strings/string_view.h"

namespace ballast {

// Owns the memory of received messages. The memory of large ones is kept for reuse by messages of about the same size,
// because new memory costs as much as copying the message. Deliberately does not limit the number of buffers.
// Thread safety: all methods may be called from any thread; a buffer may be used by one thread at a time.
class BufferPool {
  struct Free {
    void operator()(char* memory) const { std::free(memory); }
  };
  struct Memory {
    std::unique_ptr<char, Free> start;
    size_t bytes = 0;
    // Bytes of all memory that was ever taken from the store, when this was taken last.
    uint64_t taken_at = 0;
    // Little else was taken between then and the time before.
    bool in_caches = false;
  };
  class Store;

 public:
  // The memory of a message, until destroyed. May outlive the pool.
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
    // True if that is part of bytes().
    bool Has(absl::string_view part) const { return part.begin() >= bytes().begin() && part.end() <= bytes().end(); }
    // Bytes of memory, at least those of the message.
    size_t capacity() const { return memory_.bytes; }
    // True if the memory is likely still in the caches, because another message was there until a moment ago.
    bool was_in_caches() const { return memory_.in_caches; }
    // Looks at the floats in the first `end` bytes, of which the last call has seen some. Best called for each part
    // that arrives, while that is still in the caches.
    void CheckFloats(size_t end);
    // True if the floats of that part of bytes() are known to be finite: one of the methods that look has seen them.
    bool HasFiniteFloats(absl::string_view part) const;

   private:
    friend class BufferPool;

    void Swap(Buffer& other) {
      std::swap(memory_, other.memory_);
      std::swap(store_, other.store_);
      std::swap(data_, other.data_);
      std::swap(size_, other.size_);
      std::swap(checked_, other.checked_);
      std::swap(finite_, other.finite_);
    }

    Memory memory_;
    // Null for memory that does not return to the pool.
    std::shared_ptr<Store> store_;
    char* data_ = nullptr;
    size_t size_ = 0;
    // The floats at aligned addresses in that many bytes are finite, or not all are.
    size_t checked_ = 0;
    bool finite_ = true;
  };

  // How long a message will probably be kept. Matters for speed only: memory that is likely in the caches is for those
  // that are soon gone, so that it stays there.
  enum class Stay { kShort, kLong };

  // `most_bytes`: size of the largest message that is worth keeping memory for. `kept_bytes`: the most that is kept.
  BufferPool(size_t most_bytes, size_t kept_bytes);

  // Returns memory for a message of that size, of which the byte `lead`, below kAlignment, is aligned to kAlignment.
  // One that stays short gets the memory that is most likely in the caches, and leaves it there for the next.
  Buffer Get(size_t size, size_t lead = 0, Stay stay = Stay::kShort);
  // Reads each byte once. Bytes that are aligned to kAlignment in `message` are also aligned in the copy.
  Buffer Copy(absl::string_view message, Stay stay = Stay::kShort);

  // Bytes of the memory that is kept and free now.
  size_t free_bytes() const;

  // Returns the number of bytes that the process's pools did not keep, but freed, since the last call: about the memory
  // that the next messages will allocate again.
  static uint64_t TakeFreedBytes();

  static constexpr size_t kAlignment = 64;
  // Memory is taken to be in the caches until messages have got that many bytes of other memory.
  static constexpr size_t kCachedBytes = size_t{8} << 20;
  // Memory that is larger than needed by more than one part in that many is left for larger messages.
  static constexpr size_t kWaste = 8;

 private:
  const size_t most_bytes_;
  const std::shared_ptr<Store> store_;
};

}  // namespace ballast
