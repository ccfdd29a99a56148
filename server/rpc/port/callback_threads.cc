// SPDX-License-Identifier: Apache-2.0
#include "server/rpc/port/callback_threads.h"

#include <dlfcn.h>

#include <set>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/concurrency/named_thread.h"
#include "grpc/grpc.h"
#include "grpc/support/time.h"

// grpc::CompletionQueue::CallbackAlternativeCQ and ReleaseCallbackAlternativeCQ, which are private. In a static
// program gRPC's own are in the same file as the rest of its queue, so the linker renames the calls (--wrap).
#ifdef BALLAST_WRAPS_CALLBACK_QUEUE
#define BALLAST_TAKE_QUEUE __wrap__ZN4grpc15CompletionQueue21CallbackAlternativeCQEv
#define BALLAST_RELEASE_QUEUE __wrap__ZN4grpc15CompletionQueue28ReleaseCallbackAlternativeCQEPS0_
extern "C" grpc::CompletionQueue* __real__ZN4grpc15CompletionQueue21CallbackAlternativeCQEv();
extern "C" void __real__ZN4grpc15CompletionQueue28ReleaseCallbackAlternativeCQEPS0_(grpc::CompletionQueue* queue);
#else
#define BALLAST_TAKE_QUEUE _ZN4grpc15CompletionQueue21CallbackAlternativeCQEv
#define BALLAST_RELEASE_QUEUE _ZN4grpc15CompletionQueue28ReleaseCallbackAlternativeCQEPS0_
#endif
extern "C" grpc::CompletionQueue* BALLAST_TAKE_QUEUE();
extern "C" void BALLAST_RELEASE_QUEUE(grpc::CompletionQueue* queue);

namespace ballast {
namespace {

thread_local CallbackThreads::Scope* present = nullptr;

// Owns the set of this process's queues that are not gRPC's own.
class Queues {
 public:
  static Queues& All() {
    static Queues& all = *new Queues;
    return all;
  }
  void Add(const grpc::CompletionQueue* queue) {
    absl::MutexLock lock(&mutex_);
    queues_.insert(queue);
  }
  void Remove(const grpc::CompletionQueue* queue) {
    absl::MutexLock lock(&mutex_);
    queues_.erase(queue);
  }
  bool Has(const grpc::CompletionQueue* queue) {
    absl::MutexLock lock(&mutex_);
    return queues_.count(queue) > 0;
  }

 private:
  absl::Mutex mutex_;
  std::set<const grpc::CompletionQueue*> queues_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

CallbackThreads::CallbackThreads(int count) {
  Queues::All().Add(&queue_);
  for (int i = 0; i < count; ++i) threads_.push_back(NamedThread("grpc callbacks", [this] { Run(); }));
}

CallbackThreads::~CallbackThreads() {
  queue_.Shutdown();
  for (std::thread& thread : threads_) thread.join();
  Queues::All().Remove(&queue_);
}

void CallbackThreads::Run() {
  while (true) {
    // grpc::CompletionQueue::Next would finalize the tag, which only the callback may do.
    const grpc_event event = grpc_completion_queue_next(queue_.cq(), gpr_inf_future(GPR_CLOCK_REALTIME), nullptr);
    if (event.type == GRPC_QUEUE_SHUTDOWN) return;
    if (event.type != GRPC_OP_COMPLETE) continue;
    auto* const callback = static_cast<grpc_completion_queue_functor*>(event.tag);
    callback->functor_run(callback, event.success);
  }
}

CallbackThreads::Scope::Scope(CallbackThreads* threads) : threads_(threads) { present = this; }

CallbackThreads::Scope::~Scope() { present = nullptr; }

absl::Status CallbackThreads::Scope::Check() const {
  if (taken_) return absl::OkStatus();
  return absl::InternalError("gRPC does not use this program's callback threads; the program is linked incorrectly");
}

grpc::CompletionQueue* CallbackThreads::Take() {
  if (present == nullptr) return nullptr;
  present->taken_ = true;
  return &present->threads_->queue_;
}

bool CallbackThreads::Owns(const grpc::CompletionQueue* queue) { return Queues::All().Has(queue); }

}  // namespace ballast

extern "C" {

grpc::CompletionQueue* BALLAST_TAKE_QUEUE() {
  if (grpc::CompletionQueue* const own = ballast::CallbackThreads::Take(); own != nullptr) return own;
#ifdef BALLAST_WRAPS_CALLBACK_QUEUE
  return __real__ZN4grpc15CompletionQueue21CallbackAlternativeCQEv();
#else
  static const auto next = reinterpret_cast<grpc::CompletionQueue* (*)()>(
      dlsym(RTLD_NEXT, "_ZN4grpc15CompletionQueue21CallbackAlternativeCQEv"));
  return next();
#endif
}

void BALLAST_RELEASE_QUEUE(grpc::CompletionQueue* queue) {
  if (ballast::CallbackThreads::Owns(queue)) return;
#ifdef BALLAST_WRAPS_CALLBACK_QUEUE
  __real__ZN4grpc15CompletionQueue28ReleaseCallbackAlternativeCQEPS0_(queue);
#else
  static const auto next = reinterpret_cast<void (*)(grpc::CompletionQueue*)>(
      dlsym(RTLD_NEXT, "_ZN4grpc15CompletionQueue28ReleaseCallbackAlternativeCQEPS0_"));
  next(queue);
#endif
}

}  // extern "C"
