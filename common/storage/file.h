// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace ballast {

// The whole of a regular file. NOT_FOUND where there is none; every error names the path.
absl::StatusOr<std::string> ReadFile(const std::string& path);

// Replaces path by the concatenation of parts so that a reader, even after a crash, finds either
// the old content or the new: a temporary file beside it, synced, then renamed. A failure leaves
// path as it was and no temporary file; the call may be repeated.
absl::Status WriteFileAtomically(const std::string& path, absl::Span<const absl::string_view> parts);

// Writes all of data to fd, which path names in errors. RESOURCE_EXHAUSTED where the disk is full.
absl::Status WriteAll(int fd, absl::string_view data, const std::string& path);

}  // namespace ballast
