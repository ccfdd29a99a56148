// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "grpcpp/completion_queue.h"

namespace ballast {

// Owns threads that run the callbacks of one gRPC server. gRPC 1.51 runs those of all servers and channels of a
// process on the same few threads, so a flood of calls at one server starves the others. This library defines the
// function by which gRPC finds these threads (decision 0023 describes the same method for reads) and returns its own
// for servers built in a Scope; all others keep gRPC's. Must outlive the servers. Thread safety: all methods may be
// called from any thread.
class CallbackThreads {
 public:
  explicit CallbackThreads(int count);
  // Ends the threads; the servers must have ended.
  ~CallbackThreads();
  CallbackThreads(const CallbackThreads&) = delete;

  // Servers that this thread builds during the scope use `threads`. At most one scope per thread.
  class Scope {
   public:
    explicit Scope(CallbackThreads* threads);
    ~Scope();
    Scope(const Scope&) = delete;

    // INTERNAL if a server with callbacks was built but does not use the threads: the program is linked differently.
    absl::Status Check() const;

   private:
    friend class CallbackThreads;
    CallbackThreads* const threads_;
    bool taken_ = false;
  };

  // Called by gRPC. Take returns the current scope's queue or null; Owns is true for the queue of any scope.
  static grpc::CompletionQueue* Take();
  static bool Owns(const grpc::CompletionQueue* queue);

 private:
  void Run();

  grpc::CompletionQueue queue_;
  std::vector<std::thread> threads_;
};

}  // namespace ballast
