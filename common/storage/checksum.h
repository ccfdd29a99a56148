// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>

#include "absl/strings/string_view.h"

namespace ballast {

// XXH3 of 64 bits (github.com/Cyan4973/xxHash, doc/xxhash_spec.md), seed 0: finds what disks and crashes do to bytes;
// no defence against who wants to deceive.
uint64_t Checksum(absl::string_view bytes);

// The same of bytes that come in parts. Thread safety: none.
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
