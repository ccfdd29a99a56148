// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tests/fault/tables/counting_worker.h"

namespace ballast {

// Pushes of a process by number, read after its death.
struct LoggedPushes {
  std::vector<uint64_t> acknowledged;
  // Begun and not acknowledged: a server may have applied them or not.
  std::vector<uint64_t> unknown;
};

// Owns a worker's file of the pushes that it has begun and of those that were acknowledged. Invariant: a push is in the
// file before it is sent. The file survives the process, though not the machine. Thread safety: none.
class PushLog : public PushObserver {
 public:
  // Replaces a file that exists.
  static absl::StatusOr<std::unique_ptr<PushLog>> Create(const std::string& path);
  static absl::StatusOr<LoggedPushes> Read(const std::string& path);
  ~PushLog() override;
  PushLog(const PushLog&) = delete;

  absl::StatusOr<bool> Begin(uint64_t number) override;
  absl::Status Acknowledge(uint64_t number, const RowUses& uses, const RowsResult& result) override;

 private:
  PushLog(std::string path, int file) : path_(std::move(path)), file_(file) {}
  absl::Status Append(uint64_t record);

  const std::string path_;
  const int file_;
};

}  // namespace ballast
