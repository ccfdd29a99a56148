// SPDX-License-Identifier: Apache-2.0
// Calls in shared memory, whose other side writes anything beside a slot: a message lies inside its slot, or its pieces
// inside slot and heap, or it is refused, and a response is a message or an error.
#include <memory>
#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_join.h"
#include "common/shared_memory/message_pieces.h"
#include "common/shared_memory/shared_message.h"
#include "common/shared_memory/shared_region.h"
#include "common/wire/buffer_pool.h"
#include "common/wire/direct_call.h"
#include "common/wire/limits.h"
#include "tests/fuzz/fuzz_target.h"

namespace ballast {
namespace {

// The slot's owner and what is beside it; the bells are in other lines.
constexpr size_t kLine = 64, kLineBytes = 64;

SharedRegion& Region() {
  static const auto* const kRegion = new std::shared_ptr<SharedRegion>(*SharedRegion::Create(1));
  return **kRegion;
}

// Returns the bytes that a side writes if it keeps to the rules.
template <typename Write>
std::string Seed(Write write, absl::string_view in_slot) {
  SharedRegion& region = Region();
  write(region);
  return std::string(region.memory().data() + kLine, kLineBytes) + std::string(in_slot);
}

// The heap to which lists of pieces refer: this process's, of which a part was written.
struct Heap {
  std::unique_ptr<SharedHeap> memory = std::make_unique<SharedHeap>(uint64_t{1} << 20);
  std::unique_ptr<SharedHeapReader> reader = *SharedHeapReader::Open(*memory->Describe());
  std::shared_ptr<SharedHeapView> view = *SharedHeapView::Open(*memory->Describe());
};

const Heap& TheHeap() {
  static const auto* const kHeap = new Heap();
  return *kHeap;
}

// Both readers take the same lists of pieces, and read the same.
void ReadBothWays(MessageSpot spot) {
  static auto* const pool = new BufferPool(kMaxMessageBytes, kMaxMessageBytes);
  const auto copy = ReadPieces(spot, Region().Slot(0), *TheHeap().reader, *pool);
  const auto pieces = ViewPieces(spot, Region().Slot(0), *TheHeap().view);
  Require(copy.ok() == pieces.ok(), "a list of pieces is taken or refused, however it is read");
  if (!copy.ok()) return;
  std::string all;
  for (const BufferPool::Buffer& part : *copy) absl::StrAppend(&all, part.bytes());
  Require(all.size() <= kMaxMessageBytes, "a message in pieces is no larger than a message may be");
  Require(all == absl::StrJoin(*pieces, ""), "a message in pieces has the same bytes, however it is read");
}

absl::string_view Inside(uint32_t offset, uint32_t bytes) {
  const absl::Span<char> slot = Region().Slot(0);
  const absl::StatusOr<absl::string_view> message = MessageAt({offset, bytes}, slot);
  if (!message.ok()) return "";
  Require(message->data() >= slot.data() && message->data() + message->size() <= slot.data() + slot.size(),
          "a message lies inside its slot");
  return *message;
}

// A list of two pieces, one in the slot and one in the heap.
std::string InPieces() {
  const uint64_t words[] = {40, 8, 4096, uint64_t{1} << 32 | 9000};
  return std::string(reinterpret_cast<const char*>(words), sizeof(words)) + "--------in the slot";
}

}  // namespace

std::vector<std::string> FuzzSeeds() {
  const std::string error = EncodeDirectError(grpc::Status(grpc::ABORTED, "too late", "details"));
  const auto bytes = static_cast<uint32_t>(error.size());
  return {Seed([](SharedRegion& region) { region.Call(0, {.method = 2, .offset = 64, .bytes = 100}); }, "request"),
          Seed([](SharedRegion& region) { region.Respond(0, {.code = 0, .offset = 64, .bytes = 100}); }, "response"),
          Seed([&](SharedRegion& region) { region.Call(0, {.bytes = 32, .in_pieces = true}); }, InPieces()),
          Seed([&](SharedRegion& region) { region.Respond(0, {.bytes = 32, .in_pieces = true}); }, InPieces()),
          Seed([&](SharedRegion& region) { region.Respond(0, {.code = 10, .offset = 0, .bytes = bytes}); }, error)};
}

void FuzzOne(FuzzInput input) {
  SharedRegion& region = Region();
  const absl::string_view line = input.Take(kLineBytes), in_slot = input.Rest();
  absl::c_copy(line, region.memory().data() + kLine);
  absl::c_copy(in_slot.substr(0, region.Slot(0).size()), region.Slot(0).data());
  region.TakeCancel(0);
  if (const std::optional<SlotRequest> request = region.TakeCall(0); request.has_value()) {
    if (request->in_pieces) {
      ReadBothWays({request->offset, request->bytes});
      region.EndRequestLoan(0);
      Require(!region.EndRequestLoan(0), "a loan ends once");
    } else {
      Inside(request->offset, request->bytes);
    }
    Require(!region.TakeCall(0).has_value(), "a call is taken once");
    region.Respond(0, {.code = 0, .offset = 1, .bytes = 2});
    Require(region.TakeResponse(0).has_value(), "a call gets its response");
  } else if (const std::optional<SlotResponse> response = region.TakeResponse(0); response.has_value()) {
    if (response->in_pieces) return ReadBothWays({response->offset, response->bytes});
    const grpc::Status error = DecodeDirectError(response->code, Inside(response->offset, response->bytes));
    Require(!error.ok() && error.error_code() <= grpc::UNAUTHENTICATED, "an error has one of gRPC's codes");
    Require(error.error_message().size() <= region.Slot(0).size(), "an error is no longer than its slot");
  }
  Require(region.TakeBack(0) || !region.TakeCall(0).has_value(), "a slot has one owner");
}

}  // namespace ballast
