// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/security/key_folder.h"
#include "common/security/security_options.h"

namespace ballast {

// The certificates and tokens of one launch, in the folder `security` of its run folder: good for processes of this
// machine, renewed while it lasts and removed at its end. Thread safety: confined to one thread.
class LaunchSecurity {
 public:
  // Certificates last for two of these: who reads one has it for one at least.
  static constexpr absl::Duration kRenewal = absl::Hours(12);

  static absl::StatusOr<std::unique_ptr<LaunchSecurity>> Create(const std::string& run_dir, const std::string& job,
                                                                absl::Time now);
  ~LaunchSecurity();
  LaunchSecurity(const LaunchSecurity&) = delete;

  const KeyFolder& keys() const { return keys_; }

  // What who looks at a running launch shows its servers. NOT_FOUND where the run folder has none: the launch has
  // ended, or was --insecure.
  static absl::StatusOr<SecurityOptions> OfReader(const std::string& run_dir);

  // Replaces the certificates when it is time to.
  absl::Status RenewIfDue(absl::Time now);

 private:
  LaunchSecurity(std::string path, KeyFolder keys, absl::Time now)
      : path_(std::move(path)), keys_(std::move(keys)), renewed_(now) {}

  const std::string path_;
  const KeyFolder keys_;
  absl::Time renewed_;
};

}  // namespace ballast
