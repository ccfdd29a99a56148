// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server.h"
#include "grpcpp/server_builder.h"

namespace ballast {

// Serves one or two services on a free local port, for tests.
class FakeServer {
 public:
  // Pass `address` to reuse the address of an earlier server.
  explicit FakeServer(grpc::Service* service, grpc::Service* second = nullptr,
                      const std::string& address = "127.0.0.1:0") {
    int port = 0;
    grpc::ServerBuilder builder;
    builder.AddListeningPort(address, grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(service);
    if (second != nullptr) builder.RegisterService(second);
    server_ = builder.BuildAndStart();
    address_ = absl::StrCat("127.0.0.1:", port);
  }
  ~FakeServer() { Stop(); }

  const std::string& address() const { return address_; }

  // Blocks until the service's calls have returned; later connections are refused.
  void Stop() { server_->Shutdown(std::chrono::system_clock::now()); }

 private:
  std::unique_ptr<grpc::Server> server_;
  std::string address_;
};

}  // namespace ballast
