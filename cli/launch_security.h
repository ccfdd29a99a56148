// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/security/certificate_authority.h"
#include "common/security/security_options.h"

namespace ballast {

// The certificates and tokens of one launch, in the folder `security` of its run folder: made for it, good for
// processes of this machine, renewed while it lasts and removed at its end. The authority's key never leaves this
// process. Thread safety: confined to one thread.
class LaunchSecurity {
 public:
  // Certificates last for two of these; a process that reads them anew finds one that lasts for one at least.
  static constexpr absl::Duration kRenewal = absl::Hours(12);

  // Makes the folder and all files in it, for nobody else to read.
  static absl::StatusOr<std::unique_ptr<LaunchSecurity>> Create(const std::string& run_dir, const std::string& job,
                                                                absl::Time now);
  // Removes the folder.
  ~LaunchSecurity();
  LaunchSecurity(const LaunchSecurity&) = delete;

  // What the programs are started with.
  std::vector<std::string> ServerFlags() const;
  std::vector<std::string> WorkerFlags() const;

  // What who looks at a running launch shows its servers. NOT_FOUND where the folder has none: it has ended, or was
  // launched with --insecure.
  static absl::StatusOr<SecurityOptions> OfReader(const std::string& run_dir);

  // Replaces the certificates when it is time to.
  absl::Status RenewIfDue(absl::Time now);

 private:
  LaunchSecurity(std::string folder, CertificateAuthority authority)
      : folder_(std::move(folder)), authority_(std::move(authority)) {}

  std::string Path(const char* name) const;
  absl::Status WriteTokens(const std::string& job) const;
  absl::Status Renew(absl::Time now);

  const std::string folder_;
  const CertificateAuthority authority_;
  absl::Time renewed_ = absl::InfinitePast();
};

}  // namespace ballast
