// SPDX-License-Identifier: Apache-2.0
#include "cli/launch_security.h"

#include <openssl/rand.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/security/private_file.h"

namespace ballast {
namespace {

// Clocks differ, and this is one machine's.
constexpr absl::Duration kSlack = absl::Minutes(5);
constexpr absl::Duration kAuthorityLife = absl::Hours(24 * 365);

constexpr char kAuthority[] = "ca.pem";
constexpr char kServerCertificate[] = "server.pem";
constexpr char kServerKey[] = "server.key";
constexpr char kClientCertificate[] = "client.pem";
constexpr char kClientKey[] = "client.key";
constexpr char kTokens[] = "tokens";
constexpr char kWorkerToken[] = "worker.token";
constexpr char kReaderToken[] = "reader.token";

std::string FolderOf(const std::string& run_dir) { return absl::StrCat(run_dir, "/security"); }

absl::StatusOr<std::string> MakeToken() {
  std::array<unsigned char, 32> bytes;
  if (RAND_bytes(bytes.data(), bytes.size()) != 1) return absl::InternalError("cannot make a token: no randomness");
  return absl::BytesToHexString(absl::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
}

// Whole at once, for those who read it meanwhile.
absl::Status Replace(const std::string& path, const std::string& content) {
  const std::string beside = absl::StrCat(path, ".new");
  if (absl::Status status = WritePrivateFile(beside, content); !status.ok()) return status;
  if (rename(beside.c_str(), path.c_str()) == 0) return absl::OkStatus();
  return absl::ErrnoToStatus(errno, absl::StrCat("cannot replace ", path));
}

}  // namespace

absl::StatusOr<std::unique_ptr<LaunchSecurity>> LaunchSecurity::Create(const std::string& run_dir,
                                                                       const std::string& job, absl::Time now) {
  absl::StatusOr<CertificateAuthority> authority =
      CertificateAuthority::Create("ballast launch", {now - kSlack, now + kAuthorityLife});
  if (!authority.ok()) return authority.status();
  const std::string folder = FolderOf(run_dir);
  if (mkdir(folder.c_str(), 0700) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot make the folder ", folder));
  }
  auto security = std::unique_ptr<LaunchSecurity>(new LaunchSecurity(folder, *std::move(authority)));
  absl::Status status = WritePrivateFile(security->Path(kAuthority), security->authority_.certificate());
  if (status.ok()) status = security->WriteTokens(job);
  if (status.ok()) status = security->Renew(now);
  if (!status.ok()) return status;
  return security;
}

LaunchSecurity::~LaunchSecurity() {
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

std::string LaunchSecurity::Path(const char* name) const { return absl::StrCat(folder_, "/", name); }

absl::Status LaunchSecurity::WriteTokens(const std::string& job) const {
  const absl::StatusOr<std::string> admin = MakeToken(), worker = MakeToken(), reader = MakeToken();
  for (const auto* token : {&admin, &worker, &reader}) {
    if (!token->ok()) return token->status();
  }
  const std::string worker_line = absl::StrCat("worker ", job, " ", *worker, "\n");
  const std::string reader_line = absl::StrCat("reader ", job, " ", *reader, "\n");
  absl::Status status =
      WritePrivateFile(Path(kTokens), absl::StrCat("admin ", job, " ", *admin, "\n", worker_line, reader_line));
  if (status.ok()) status = WritePrivateFile(Path(kWorkerToken), worker_line);
  if (status.ok()) status = WritePrivateFile(Path(kReaderToken), reader_line);
  return status;
}

absl::Status LaunchSecurity::RenewIfDue(absl::Time now) {
  return now - renewed_ < kRenewal ? absl::OkStatus() : Renew(now);
}

absl::Status LaunchSecurity::Renew(absl::Time now) {
  const CertificateAuthority::Validity validity = {now - kSlack, now + 2 * kRenewal};
  const auto server = authority_.Issue("ballast server", {"localhost", "127.0.0.1", "::1"}, validity);
  if (!server.ok()) return server.status();
  const auto client = authority_.Issue("ballast client", {}, validity);
  if (!client.ok()) return client.status();
  const std::pair<const char*, const std::string*> files[] = {{kServerKey, &server->key},
                                                              {kServerCertificate, &server->certificate},
                                                              {kClientKey, &client->key},
                                                              {kClientCertificate, &client->certificate}};
  for (const auto& [name, content] : files) {
    if (absl::Status status = Replace(Path(name), *content); !status.ok()) return status;
  }
  renewed_ = now;
  return absl::OkStatus();
}

std::vector<std::string> LaunchSecurity::ServerFlags() const {
  return {"--tls_cert", Path(kServerCertificate), "--tls_key",    Path(kServerKey),
          "--tls_ca",   Path(kAuthority),         "--token_file", Path(kTokens)};
}

std::vector<std::string> LaunchSecurity::WorkerFlags() const {
  return {"--tls_cert", Path(kClientCertificate), "--tls_key",    Path(kClientKey),
          "--tls_ca",   Path(kAuthority),         "--token_file", Path(kWorkerToken)};
}

absl::StatusOr<SecurityOptions> LaunchSecurity::OfReader(const std::string& run_dir) {
  const std::string folder = FolderOf(run_dir);
  if (access(folder.c_str(), F_OK) != 0) {
    return absl::NotFoundError(
        absl::StrCat("--run ", run_dir, ": has no folder \"security\": the launch has ended, or was --insecure"));
  }
  auto path = [&](const char* name) { return absl::StrCat(folder, "/", name); };
  return SecurityOptions{{path(kClientCertificate), path(kClientKey), path(kAuthority)}, path(kReaderToken)};
}

}  // namespace ballast
