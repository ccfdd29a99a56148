// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace ballast {

// Decompresses a gzip file (RFC 1952, members one after the other) piece by piece, in constant memory.
//
// Thread safety: one thread at a time.
class GzipReader {
 public:
  // NOT_FOUND where there is no file, INVALID_ARGUMENT for what is no regular file. Whether it is gzip shows on
  // reading.
  static absl::StatusOr<std::unique_ptr<GzipReader>> Open(const std::string& path);

  virtual ~GzipReader() = default;

  // Fills the buffer; fewer bytes come only at the end. DATA_LOSS for a file that is damaged or cut short,
  // INVALID_ARGUMENT for one that is not gzip; the message says at which byte of it.
  virtual absl::StatusOr<size_t> Read(absl::Span<uint8_t> buffer) = 0;

  // No gzip file of this size holds more: deflate's bound (zlib's technical notes: 1032 to 1).
  virtual uint64_t most_bytes() const = 0;
};

}  // namespace ballast
