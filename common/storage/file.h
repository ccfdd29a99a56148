// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace ballast {

// Reads a whole regular file. NOT_FOUND if it does not exist; every error names the path.
absl::StatusOr<std::string> ReadFile(const std::string& path);

// Replaces `path` by the concatenated parts so that a reader, even after a crash, finds either the old or the new
// content: writes and syncs a temporary file in the same directory, then renames it. A failure leaves `path`
// unchanged and no temporary file; a retry is safe. A pipe or a device is written to.
absl::Status WriteFileAtomically(const std::string& path, absl::Span<const absl::string_view> parts);

// Writes all data to fd; errors name `path`. RESOURCE_EXHAUSTED if the disk is full.
absl::Status WriteAll(int fd, absl::string_view data, const std::string& path);

}  // namespace ballast
