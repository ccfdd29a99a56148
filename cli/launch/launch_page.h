// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ostream>
#include <string>

#include "absl/status/statusor.h"
#include "common/program/process.h"

namespace ballast {

// Owns the process `ballast page` of one launch, which shows its run while it runs. Thread safety: confined to the
// thread that started it, the main one.
class LaunchPage {
 public:
  // Starts `program page RUN_DIR`, waits at most 10 s for the page's address and prints it on `err`. Call before other
  // threads start. DEADLINE_EXCEEDED or INTERNAL, with what the program printed, if it has no address.
  static absl::StatusOr<LaunchPage> Start(const std::string& program, const std::string& run_dir, std::ostream& err);

  LaunchPage(LaunchPage&&) = default;
  // Lets the page write its record, for at most 5 s, and ends it.
  ~LaunchPage();

 private:
  explicit LaunchPage(Process process) : process_(std::move(process)) {}

  Process process_;
};

}  // namespace ballast
