// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/security/certificate_authority.h"
#include "common/security/security_options.h"

namespace ballast {

// Owns a new directory, readable by this user only, with all secrets that a job's processes need to authenticate:
//   ca.pem                    the authority; its key exists only in this object
//   server.pem, server.key    shared by all servers
//   client.pem, client.key    shared by workers and read-only clients
//   tokens                    the servers' token table: an admin, a worker and a reader of the job
//   worker.token, reader.token, admin.token   one of those tokens each
// Thread safety: confined to one thread.
class KeyFolder {
 public:
  struct Options {
    // Job name, or "*" for all jobs.
    std::string job;
    // Names and addresses at which clients reach the servers. All certificates are also for localhost and 127.0.0.1.
    std::vector<std::string> hosts;
    CertificateAuthority::Validity authority;
    CertificateAuthority::Validity certificates;
  };

  // Creates the directory; ALREADY_EXISTS if it exists.
  static absl::StatusOr<KeyFolder> Make(const std::string& path, Options options);

  // Replaces all certificates and keys except the authority's.
  absl::Status Renew(const CertificateAuthority::Validity& validity) const;

  // Flags to start the programs with.
  std::vector<std::string> ServerFlags() const;
  std::vector<std::string> WorkerFlags() const;
  // Further flags for a worker that serves HTTP pages: a reader's token reads those of servers and workers alike.
  std::vector<std::string> WorkerPageFlags() const;
  // Flags for `ballast status` and other read-only commands.
  std::vector<std::string> ReaderFlags() const;

  // Options for a client that acts on behalf of the job's processes.
  SecurityOptions AdminOptions() const { return AdminOptions(path_); }

  // The same, and options for a read-only client, from an existing directory.
  static SecurityOptions AdminOptions(const std::string& path);
  static SecurityOptions ReaderOptions(const std::string& path);

 private:
  static SecurityOptions ClientOptions(const std::string& path, const char* token);
  KeyFolder(std::string path, Options options, CertificateAuthority authority)
      : path_(std::move(path)), options_(std::move(options)), authority_(std::move(authority)) {}

  std::string PathOf(const char* name) const;
  absl::Status WriteTokens() const;

  std::string path_;
  Options options_;
  CertificateAuthority authority_;
};

}  // namespace ballast
