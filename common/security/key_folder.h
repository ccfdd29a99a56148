// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/security/certificate_authority.h"
#include "common/security/security_options.h"

namespace ballast {

// A folder of everything that a job's processes need to know each other by, made anew and for this user alone:
//   ca.pem                    the authority; its key is nowhere but in this object
//   server.pem, server.key    of all servers
//   client.pem, client.key    of workers, and of who looks
//   tokens                    the servers' table: an admin, a worker and a reader of the job
//   worker.token, reader.token, admin.token   one of them each
// Thread safety: confined to one thread.
class KeyFolder {
 public:
  struct Options {
    // Or "*".
    std::string job;
    // That servers are reached by: names and addresses.
    std::vector<std::string> hosts;
    CertificateAuthority::Validity authority;
    CertificateAuthority::Validity certificates;
  };

  // ALREADY_EXISTS where there is such a folder.
  static absl::StatusOr<KeyFolder> Make(const std::string& path, Options options);

  // Replaces all certificates and keys but the authority's.
  absl::Status Renew(const CertificateAuthority::Validity& validity) const;

  // What the programs are started with.
  std::vector<std::string> ServerFlags() const;
  std::vector<std::string> WorkerFlags() const;
  // Of `ballast status` and its like.
  std::vector<std::string> ReaderFlags() const;

  // For one who speaks for the job's processes.
  SecurityOptions AdminOptions() const;

  // For one who looks, of a folder that was made before.
  static SecurityOptions ReaderOptions(const std::string& path);

 private:
  KeyFolder(std::string path, Options options, CertificateAuthority authority)
      : path_(std::move(path)), options_(std::move(options)), authority_(std::move(authority)) {}

  std::string PathOf(const char* name) const;
  absl::Status WriteTokens() const;

  std::string path_;
  Options options_;
  CertificateAuthority authority_;
};

}  // namespace ballast
