// SPDX-License-Identifier: Apache-2.0
#include "client/shared_memory/slot_sender.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/shared_memory/message_pieces.h"
#include "common/shared_memory/shared_message.h"
#include "common/shared_memory/shared_region.h"
#include "grpcpp/client_context.h"
#include "grpcpp/support/client_callback.h"

namespace ballast {
namespace {

// Pause before the next request after the server was lost.
constexpr absl::Duration kRetryPause = absl::Seconds(1);

}  // namespace

class SlotSender::Stream : public grpc::ClientReadReactor<v1::ShareMemoryResponse> {
 public:
  explicit Stream(SlotSender* sender) : sender_(*sender), stub_(sender->channel_()) {
    request_.set_job(sender->job_);
    request_.set_machine(MachineId());
    if (const std::optional<HeapDescription> heap = SharedHeap::OfProcess().Describe(); heap.has_value()) {
      *request_.mutable_heap() = ToProto(*heap);
    }
  }

  void Start() {
    stub_.async()->ShareMemory(&context_, &request_, this);
    StartRead(&response_);
    StartCall();
  }
  void Cancel() { context_.TryCancel(); }

  void OnReadDone(bool ok) override {
    if (!ok) return;
    sender_.OnRegion(response_);
    // This read fails when the call ends.
    StartRead(&response_);
  }
  void OnDone(const grpc::Status& status) override { sender_.OnEnd(status); }

 private:
  SlotSender& sender_;
  v1::ParameterService::Stub stub_;
  grpc::ClientContext context_;
  v1::ShareMemoryRequest request_;
  v1::ShareMemoryResponse response_;
};

SlotSender::SlotSender(Channel channel, std::string job, PinMemory pin)
    : channel_(std::move(channel)), job_(std::move(job)), pin_(std::move(pin)) {}

SlotSender::~SlotSender() {
  Shutdown();
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(
      +[](bool* streaming) { return !*streaming; }, &streaming_));
}

void SlotSender::Shutdown() {
  absl::MutexLock lock(&mutex_);
  shutdown_ = true;
  pool_.reset();
  if (streaming_) stream_->Cancel();
}

std::optional<BlockLoan> SlotSender::Lend(const grpc::ByteBuffer& message, uint64_t bytes, bool in_pieces,
                                          CopyPiece copy) {
  std::shared_ptr<SlotPool> pool;
  {
    absl::MutexLock lock(&mutex_);
    pool = pool_;
    if (pool == nullptr) AskIfDueLocked();
  }
  if (pool == nullptr || (pool->caller() == nullptr && bytes < kMinSharedBytes)) return std::nullopt;
  return BlockLoan::Make(std::move(pool), message, in_pieces, copy);
}

bool SlotSender::has_memory() const {
  absl::MutexLock lock(&mutex_);
  return pool_ != nullptr;
}

bool SlotSender::takes_pieces() const {
  absl::MutexLock lock(&mutex_);
  return pool_ != nullptr && pool_->takes_pieces();
}

bool SlotSender::is_refused() const {
  absl::MutexLock lock(&mutex_);
  return !streaming_ && ask_at_ == absl::InfiniteFuture();
}

void SlotSender::AskIfDueLocked() {
  if (shutdown_ || streaming_ || absl::Now() < ask_at_) return;
  streaming_ = true;
  stream_ = std::make_unique<Stream>(this);
  // Safe under the lock, because it calls back only from other threads.
  stream_->Start();
}

void SlotSender::OnRegion(const v1::ShareMemoryResponse& shared) {
  absl::StatusOr<std::shared_ptr<SharedRegion>> region = SharedRegion::Open(shared.region());
  // Without it, the server copies its values to the slots.
  std::shared_ptr<SharedHeapView> heap;
  if (shared.has_heap()) heap = SharedHeapView::Open(FromProto(shared.heap())).value_or(nullptr);
  std::shared_ptr<void> pin;
  if (region.ok() && pin_) pin = pin_((*region)->memory());
  absl::MutexLock lock(&mutex_);
  if (region.ok() && !shutdown_) {
    if ((*region)->offers_calls()) {
      caller_ = std::make_shared<SlotCaller>(*region);
      receivers_.Start("slot answers", [caller = caller_] { caller->Run(); });
    }
    pool_ = std::make_shared<SlotPool>(*std::move(region), std::move(pin), caller_, std::move(heap));
    return;
  }
  ask_at_ = absl::InfiniteFuture();
  stream_->Cancel();
}

void SlotSender::OnEnd(const grpc::Status& status) {
  absl::MutexLock lock(&mutex_);
  pool_.reset();
  if (caller_ != nullptr) {
    caller_->End({grpc::UNAVAILABLE, absl::StrCat("the server no longer shares memory: ", status.error_message())});
    caller_.reset();
  }
  streaming_ = false;
  const bool server_lost = status.error_code() == grpc::StatusCode::UNAVAILABLE;
  ask_at_ = std::max(ask_at_, server_lost ? absl::Now() + kRetryPause : absl::InfiniteFuture());
}

SlotPool::SlotPool(std::shared_ptr<SharedRegion> region, std::shared_ptr<void> pin, std::shared_ptr<SlotCaller> caller,
                   std::shared_ptr<SharedHeapView> heap)
    : region_(std::move(region)), pin_(std::move(pin)), caller_(std::move(caller)), heap_(std::move(heap)) {
  for (uint32_t slot = region_->slots(); slot-- > 0;) free_.push_back(slot);
}

std::optional<uint32_t> SlotPool::Take() {
  absl::MutexLock lock(&mutex_);
  for (size_t i = abandoned_.size(); i-- > 0;) {
    if (!region_->TakeBack(abandoned_[i])) continue;
    free_.push_back(abandoned_[i]);
    abandoned_.erase(abandoned_.begin() + i);
  }
  if (free_.empty()) return std::nullopt;
  const uint32_t slot = free_.back();
  free_.pop_back();
  return slot;
}

void SlotPool::Return(uint32_t slot) {
  absl::MutexLock lock(&mutex_);
  (region_->TakeBack(slot) ? free_ : abandoned_).push_back(slot);
}

std::optional<BlockLoan> BlockLoan::Make(std::shared_ptr<SlotPool> pool, const grpc::ByteBuffer& message,
                                         bool in_pieces, CopyPiece copy) {
  SharedRegion& region = pool->region();
  in_pieces = in_pieces && pool->takes_pieces();
  const std::optional<uint32_t> slot = pool->Take();
  if (!slot.has_value()) return std::nullopt;
  BlockLoan loan(std::move(pool));
  loan.reference_.set_region(region.id());
  loan.reference_.set_slot(*slot);
  std::optional<MessageSpot> spot;
  if (in_pieces) spot = WritePieces(message, SharedHeap::OfProcess(), region.Slot(*slot));
  loan.in_pieces_ = spot.has_value();
  if (!loan.in_pieces_) spot = CopyMessage(message, region.Slot(*slot), copy);
  if (!spot.has_value()) return std::nullopt;
  loan.reference_.set_offset(spot->offset);
  loan.reference_.set_bytes(spot->bytes);
  region.Lend(*slot);
  return loan;
}

absl::StatusOr<absl::string_view> BlockLoan::Answer(const v1::SharedSlot& answer) const {
  if (answer.region() != reference_.region() || answer.slot() != reference_.slot()) {
    return absl::InvalidArgumentError("the response is in another slot of shared memory than the request");
  }
  return MessageAt({answer.offset(), answer.bytes()}, pool_->region().Slot(reference_.slot()));
}

absl::StatusOr<std::vector<absl::string_view>> BlockLoan::Answer(const SlotResponse& answer) const {
  const absl::Span<char> slot = pool_->region().Slot(reference_.slot());
  const MessageSpot spot = {answer.offset, answer.bytes};
  if (answer.in_pieces) {
    const SharedHeapView* const heap = pool_->heap();
    if (heap != nullptr) return ViewPieces(spot, slot, *heap);
    return absl::InvalidArgumentError("the response is in pieces, which the request did not ask for");
  }
  const absl::StatusOr<absl::string_view> message = MessageAt(spot, slot);
  if (!message.ok()) return message.status();
  return std::vector<absl::string_view>{*message};
}

bool BlockLoan::Begin(SlotRequest call, CallAttempt& attempt, SlotCaller::Done done) {
  const std::shared_ptr<SlotCaller> caller = pool_->caller();
  if (caller == nullptr) return false;
  const uint32_t slot = reference_.slot();
  call.offset = reference_.offset();
  call.bytes = reference_.bytes();
  call.in_pieces = in_pieces_;
  call.takes_pieces = call.takes_pieces && pool_->heap() != nullptr;
  const uint64_t number = caller->Begin(slot, call, absl::FromChrono(attempt.deadline()), std::move(done));
  if (number == 0) return false;
  // From here on the response may have destroyed this.
  attempt.OnCancel([caller, slot, number] { caller->Cancel(slot, number); });
  return true;
}

}  // namespace ballast
