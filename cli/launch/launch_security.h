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

// Owns the certificates and tokens of one launch, in the directory `security` of its run directory. They are valid for
// servers on this machine and on the launch's other hosts, and the destructor removes them. Thread safety: confined to
// one thread.
class LaunchSecurity {
 public:
  // Certificates are valid for two intervals, so a reader always gets one that is valid for at least one more.
  static constexpr absl::Duration kRenewal = absl::Hours(12);

  // `hosts` are the names and addresses of other hosts.
  static absl::StatusOr<std::unique_ptr<LaunchSecurity>> Create(const std::string& run_dir, const std::string& job,
                                                                const std::vector<std::string>& hosts, absl::Time now);
  ~LaunchSecurity();
  LaunchSecurity(const LaunchSecurity&) = delete;

  const KeyFolder& keys() const { return keys_; }

  // Returns the options with which a reader, such as `ballast status`, or an administrator connects to the servers of a
  // running launch. NOT_FOUND if the launch has ended or runs with --insecure.
  static absl::StatusOr<SecurityOptions> OfReader(const std::string& run_dir) { return OfClient(run_dir, false); }
  static absl::StatusOr<SecurityOptions> OfAdmin(const std::string& run_dir) { return OfClient(run_dir, true); }

  // Replaces the certificates if kRenewal has passed; a failed renewal can be retried.
  absl::Status RenewIfDue(absl::Time now);

 private:
  static absl::StatusOr<SecurityOptions> OfClient(const std::string& run_dir, bool admin);
  LaunchSecurity(std::string path, KeyFolder keys, absl::Time now)
      : path_(std::move(path)), keys_(std::move(keys)), renewed_(now) {}

  const std::string path_;
  const KeyFolder keys_;
  absl::Time renewed_;
};

}  // namespace ballast
