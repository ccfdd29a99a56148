// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "absl/strings/string_view.h"

namespace ballast {

// 64-bit XXH3 (github.com/Cyan4973/xxHash, doc/xxhash_spec.md), seed 0. Detects accidental damage by disks and
// crashes, not deliberate manipulation.
uint64_t Checksum(absl::string_view bytes);

// Computes the same checksum over bytes that arrive in parts. Thread safety: none.
class StreamChecksum {
 public:
  StreamChecksum();
  ~StreamChecksum();
  StreamChecksum(const StreamChecksum&) = delete;

  void Add(absl::string_view part);
  uint64_t value() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ballast
