// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace ballast {

// Decompresses a gzip file (RFC 1952, including files of several members) piece by piece, in constant memory.
// Thread safety: one thread at a time.
class GzipReader {
 public:
  // NOT_FOUND if there is no file, INVALID_ARGUMENT if it is not a regular file. Only Read checks the gzip format.
  static absl::StatusOr<std::unique_ptr<GzipReader>> Open(const std::string& path);

  virtual ~GzipReader() = default;

  // Fills the buffer, and returns fewer bytes only at the end of the file. DATA_LOSS if the file is damaged or
  // truncated, INVALID_ARGUMENT if it is not gzip; the message names the byte of the file.
  virtual absl::StatusOr<size_t> Read(absl::Span<uint8_t> buffer) = 0;

  // Upper bound on the decompressed size, from deflate's maximum ratio of 1032 to 1 (zlib's technical notes).
  virtual uint64_t most_bytes() const = 0;
};

}  // namespace ballast
