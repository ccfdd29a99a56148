// SPDX-License-Identifier: Apache-2.0
#include "common/security/key_folder.h"

#include <openssl/rand.h>
#include <sys/stat.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/security/private_file.h"

namespace ballast {
namespace {

constexpr char kAuthority[] = "ca.pem";
constexpr char kServerCertificate[] = "server.pem";
constexpr char kServerKey[] = "server.key";
constexpr char kClientCertificate[] = "client.pem";
constexpr char kClientKey[] = "client.key";
// Names of every process: whoever reads its HTTP pages by the address of a pod verifies it under one of these.
constexpr const char* kLocalHosts[] = {"localhost", "127.0.0.1"};
constexpr char kTokens[] = "tokens";
constexpr char kWorkerToken[] = "worker.token";
constexpr char kReaderToken[] = "reader.token";
constexpr char kAdminToken[] = "admin.token";

absl::StatusOr<std::string> MakeToken() {
  std::array<unsigned char, 32> bytes;
  if (RAND_bytes(bytes.data(), bytes.size()) != 1) {
    return absl::InternalError("cannot create a token: no random bytes available");
  }
  return absl::BytesToHexString(absl::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
}

std::vector<std::string> WithLocalHosts(std::vector<std::string> hosts) {
  for (const char* local : kLocalHosts) {
    if (!absl::c_linear_search(hosts, local)) hosts.push_back(local);
  }
  return hosts;
}

// Replaces the file atomically, because others may be reading it.
absl::Status Replace(const std::string& path, const std::string& content) {
  const std::string temporary = absl::StrCat(path, ".new");
  // Left over from a process that ended between the write and the rename.
  remove(temporary.c_str());
  if (absl::Status status = WritePrivateFile(temporary, content); !status.ok()) return status;
  if (rename(temporary.c_str(), path.c_str()) == 0) return absl::OkStatus();
  return absl::ErrnoToStatus(errno, absl::StrCat("cannot replace ", path));
}

}  // namespace

absl::StatusOr<KeyFolder> KeyFolder::Make(const std::string& path, Options options) {
  absl::StatusOr<CertificateAuthority> authority = CertificateAuthority::Create("ballast authority", options.authority);
  if (!authority.ok()) return authority.status();
  if (mkdir(path.c_str(), 0700) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot create the directory ", path));
  }
  KeyFolder folder(path, std::move(options), *std::move(authority));
  absl::Status status = WritePrivateFile(folder.PathOf(kAuthority), folder.authority_.certificate());
  if (status.ok()) status = folder.WriteTokens();
  if (status.ok()) status = folder.Renew(folder.options_.certificates);
  if (status.ok()) return folder;
  std::error_code ignored;
  std::filesystem::remove_all(path, ignored);
  return status;
}

std::string KeyFolder::PathOf(const char* name) const { return absl::StrCat(path_, "/", name); }

absl::Status KeyFolder::WriteTokens() const {
  std::string table;
  for (const char* role : {"admin", "worker", "reader"}) {
    const absl::StatusOr<std::string> token = MakeToken();
    if (!token.ok()) return token.status();
    const std::string line = absl::StrCat(role, " ", options_.job, " ", *token, "\n");
    const std::string own = absl::StrCat(role, ".token");
    if (absl::Status status = WritePrivateFile(PathOf(own.c_str()), line); !status.ok()) return status;
    table += line;
  }
  return WritePrivateFile(PathOf(kTokens), table);
}

absl::Status KeyFolder::Renew(const CertificateAuthority::Validity& validity) const {
  const auto server = authority_.Issue("ballast server", WithLocalHosts(options_.hosts), validity);
  if (!server.ok()) return server.status();
  const auto client = authority_.Issue("ballast client", WithLocalHosts({}), validity);
  if (!client.ok()) return client.status();
  const std::pair<const char*, const std::string*> files[] = {{kServerKey, &server->key},
                                                              {kServerCertificate, &server->certificate},
                                                              {kClientKey, &client->key},
                                                              {kClientCertificate, &client->certificate}};
  for (const auto& [name, content] : files) {
    if (absl::Status status = Replace(PathOf(name), *content); !status.ok()) return status;
  }
  return absl::OkStatus();
}

std::vector<std::string> KeyFolder::ServerFlags() const {
  return {"--tls_cert", PathOf(kServerCertificate), "--tls_key",    PathOf(kServerKey),
          "--tls_ca",   PathOf(kAuthority),         "--token_file", PathOf(kTokens)};
}

std::vector<std::string> KeyFolder::WorkerFlags() const {
  return {"--tls_cert", PathOf(kClientCertificate), "--tls_key",    PathOf(kClientKey),
          "--tls_ca",   PathOf(kAuthority),         "--token_file", PathOf(kWorkerToken)};
}

std::vector<std::string> KeyFolder::WorkerPageFlags() const { return {"--http_token_file", PathOf(kReaderToken)}; }

std::vector<std::string> KeyFolder::ReaderFlags() const {
  return {"--tls-cert", PathOf(kClientCertificate), "--tls-key",    PathOf(kClientKey),
          "--tls-ca",   PathOf(kAuthority),         "--token-file", PathOf(kReaderToken)};
}

SecurityOptions KeyFolder::ClientOptions(const std::string& path, const char* token) {
  const auto file = [&](const char* name) { return absl::StrCat(path, "/", name); };
  return {{file(kClientCertificate), file(kClientKey), file(kAuthority)}, file(token)};
}

SecurityOptions KeyFolder::AdminOptions(const std::string& path) { return ClientOptions(path, kAdminToken); }

SecurityOptions KeyFolder::ReaderOptions(const std::string& path) { return ClientOptions(path, kReaderToken); }

}  // namespace ballast
