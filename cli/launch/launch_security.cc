// SPDX-License-Identifier: Apache-2.0
#include "cli/launch/launch_security.h"

#include <unistd.h>

#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"

namespace ballast {
namespace {

constexpr absl::Duration kAuthorityLife = absl::Hours(24 * 365);

CertificateAuthority::Validity From(absl::Time now, absl::Duration life) {
  return {now - absl::Minutes(5), now + life};
}

std::string FolderOf(const std::string& run_dir) { return absl::StrCat(run_dir, "/security"); }

}  // namespace

absl::StatusOr<std::unique_ptr<LaunchSecurity>> LaunchSecurity::Create(const std::string& run_dir,
                                                                       const std::string& job,
                                                                       const std::vector<std::string>& hosts,
                                                                       absl::Time now) {
  const std::string path = FolderOf(run_dir);
  std::vector<std::string> names = {"localhost", "127.0.0.1", "::1"};
  names.insert(names.end(), hosts.begin(), hosts.end());
  absl::StatusOr<KeyFolder> keys =
      KeyFolder::Make(path, {job, std::move(names), From(now, kAuthorityLife), From(now, 2 * kRenewal)});
  if (!keys.ok()) return keys.status();
  return std::unique_ptr<LaunchSecurity>(new LaunchSecurity(path, *std::move(keys), now));
}

LaunchSecurity::~LaunchSecurity() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

absl::Status LaunchSecurity::RenewIfDue(absl::Time now) {
  if (now - renewed_ < kRenewal) return absl::OkStatus();
  if (absl::Status status = keys_.Renew(From(now, 2 * kRenewal)); !status.ok()) return status;
  renewed_ = now;
  return absl::OkStatus();
}

absl::StatusOr<SecurityOptions> LaunchSecurity::OfClient(const std::string& run_dir, bool admin) {
  const std::string path = FolderOf(run_dir);
  if (access(path.c_str(), F_OK) == 0) return admin ? KeyFolder::AdminOptions(path) : KeyFolder::ReaderOptions(path);
  return absl::NotFoundError(
      absl::StrCat("--run ", run_dir, ": has no directory \"security\": the launch has ended or runs with --insecure"));
}

}  // namespace ballast
