// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "grpcpp/completion_queue.h"

namespace ballast {

// Threads that run the callbacks of one gRPC server. gRPC 1.51 runs those of all servers and channels of a process on
// the same few threads, of which a flood of calls at one server leaves nothing to the others. This library defines the
// function by which gRPC finds them, as decision 0023 says of reads, and answers it for servers that are built in a
// Scope; all others keep gRPC's own. Must outlive the servers. Thread safety: all methods may be called from any
// thread.
class CallbackThreads {
 public:
  explicit CallbackThreads(int count);
  // Ends the threads; the servers have ended.
  ~CallbackThreads();
  CallbackThreads(const CallbackThreads&) = delete;

  // Servers that this thread builds while it lives use `threads`. One at a time for a thread.
  class Scope {
   public:
    explicit Scope(CallbackThreads* threads);
    ~Scope();
    Scope(const Scope&) = delete;

    // INTERNAL if a server with callbacks was built and did not take the threads, as it would not in a program that was
    // linked otherwise.
    absl::Status Check() const;

   private:
    friend class CallbackThreads;
    CallbackThreads* const threads_;
    bool taken_ = false;
  };

  // As gRPC asks for: the queue of the present scope, null if there is none; and whether the queue is any such one's.
  static grpc::CompletionQueue* Take();
  static bool Owns(const grpc::CompletionQueue* queue);

 private:
  void Run();

  grpc::CompletionQueue queue_;
  std::vector<std::thread> threads_;
};

}  // namespace ballast
