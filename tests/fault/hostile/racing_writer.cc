// SPDX-License-Identifier: Apache-2.0
#include "tests/fault/hostile/racing_writer.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "ballast/v1/coordinator_service.grpc.pb.h"
#include "common/codecs/codec.h"
#include "common/rpc/channel.h"
#include "common/rpc/credentials.h"
#include "common/rpc/grpc_status.h"
#include "common/shared_memory/shared_message.h"
#include "common/wire/direct_call.h"
#include "tests/fault/hostile/attack.h"

namespace ballast {
namespace {

// A quiet NaN; all bits set: too large an index or length, and all ones for the sign codec; infinity; the lowest int32.
constexpr uint32_t kPatterns[] = {0x7fc00000u, 0xffffffffu, 0x7f800000u, 0x80000000u};

std::string MethodOf(const std::string& method) { return absl::StrCat("/ballast.v1.", method); }

// Changes a few words and restores them.
void ChangeWords(char* memory, size_t bytes, std::mt19937_64& random) {
  constexpr size_t kWords = 16;
  char* at[kWords];
  uint32_t was[kWords];
  const size_t words = std::min(kWords, bytes / sizeof(uint32_t));
  for (size_t i = 0; i < words; ++i) {
    // Half of the words are at the beginning, where scales and indices are.
    const size_t among = random() % 2 == 0 ? std::min<size_t>(bytes, 256) : bytes;
    char* const word = memory + random() % (among / sizeof(uint32_t)) * sizeof(uint32_t);
    at[i] = word;
    std::memcpy(&was[i], word, sizeof(uint32_t));
    std::memcpy(word, &kPatterns[random() % std::size(kPatterns)], sizeof(uint32_t));
  }
  // Keeps the compiler from removing the writes, which only the server reads.
  std::atomic_signal_fence(std::memory_order_seq_cst);
  for (size_t i = words; i-- > 0;) std::memcpy(at[i], &was[i], sizeof(uint32_t));
}

void ChangeBit(char* memory, size_t bytes, std::mt19937_64& random) {
  char* const at = memory + random() % bytes;
  const char bit = static_cast<char>(1 << random() % 8);
  *at ^= bit;
  // Keeps the compiler from removing the writes, which only the server reads.
  std::atomic_signal_fence(std::memory_order_seq_cst);
  *at ^= bit;
}

// One tensor's slice on each server that has one.
absl::StatusOr<std::vector<std::pair<uint32_t, size_t>>> FirstSlices(const std::shared_ptr<grpc::Channel>& channel,
                                                                     size_t servers) {
  grpc::ClientContext context;
  v1::GetShardMapResponse response;
  const grpc::Status status = v1::CoordinatorService::NewStub(channel)->GetShardMap(&context, {}, &response);
  if (!status.ok()) return FromGrpcStatus(status);
  std::vector<std::pair<uint32_t, size_t>> first(servers);
  for (const auto& tensor : response.map().tensors()) {
    for (const auto& slice : tensor.slices()) {
      // A larger slice is in flight for longer.
      if (slice.range().elements() > first[slice.shard()].second && slice.range().index() == 0) {
        first[slice.shard()] = {tensor.spec().id(), slice.range().elements()};
      }
    }
  }
  return first;
}

absl::StatusOr<uint64_t> Run(const HostileTarget& target, absl::Time end) {
  const absl::StatusOr<Credentials> credentials = Credentials::Load(target.worker);
  if (!credentials.ok()) return credentials.status();
  const auto coordinator = OpenChannel(target.addresses[0], *credentials);
  const auto slices = FirstSlices(coordinator, target.addresses.size());
  if (!slices.ok()) return slices.status();
  struct Victim {
    std::unique_ptr<RacingWriter> writer;
    std::vector<RacedPush> pushes;
    std::mt19937_64 random{1};
  };
  std::vector<Victim> victims;
  for (size_t server = 0; server < target.addresses.size(); ++server) {
    const auto [tensor, elements] = (*slices)[server];
    if (elements == 0) continue;
    Victim victim;
    auto writer = RacingWriter::Open(OpenChannel(target.addresses[server], *credentials), target.job);
    if (!writer.ok()) return writer.status();
    victim.writer = *std::move(writer);
    v1::PushHeader header;
    header.set_job(target.job);
    header.set_incarnation(1);
    header.set_sequence(1);
    header.set_examples(1);
    for (const EncodedGradient& gradient : EncodedOnes(elements)) {
      victim.pushes.push_back(MakePush(header, tensor, gradient));
    }
    victims.push_back(std::move(victim));
  }
  if (victims.empty()) return absl::NotFoundError("no server has a slice");
  return AttackUntil(end, static_cast<int>(victims.size()), [&](int thread, uint64_t attempt) {
    Victim& victim = victims[thread];
    const RacedPush& push = victim.pushes[attempt % victim.pushes.size()];
    const auto call = attempt % 2 == 0 ? &RacingWriter::Call : &RacingWriter::CallThere;
    ((*victim.writer).*call)("ParameterService/Push", push.request, push.payload_offset, RacingWriter::Change::kWords,
                             victim.random)
        .ok();
  });
}

}  // namespace

absl::StatusOr<std::unique_ptr<RacingWriter>> RacingWriter::Open(const std::shared_ptr<grpc::Channel>& channel,
                                                                 const std::string& job) {
  std::unique_ptr<RacingWriter> writer(new RacingWriter(channel));
  v1::ShareMemoryRequest request;
  request.set_job(job);
  request.set_machine(MachineId());
  writer->parameters_ = v1::ParameterService::NewStub(channel);
  writer->stream_ = writer->parameters_->ShareMemory(&writer->sharing_, request);
  v1::ShareMemoryResponse response;
  if (!writer->stream_->Read(&response)) {
    const grpc::Status refused = writer->stream_->Finish();
    writer->stream_.reset();
    return FromGrpcStatus(refused);
  }
  absl::StatusOr<std::shared_ptr<SharedRegion>> region = SharedRegion::Open(response.region());
  if (!region.ok()) return region.status();
  writer->region_ = *std::move(region);
  return writer;
}

RacingWriter::~RacingWriter() {
  if (stream_ == nullptr) return;
  sharing_.TryCancel();
  stream_->Finish();
}

grpc::Status RacingWriter::Call(const std::string& method, const std::string& request, size_t first, Change change,
                                std::mt19937_64& random) {
  if (!Fill(request)) return grpc::Status(grpc::StatusCode::INTERNAL, "the request is too large");
  v1::SharedSlot reference;
  reference.set_region(region_->id());
  reference.set_bytes(request.size());
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(60)));
  const grpc::ByteBuffer message = EncodeReference(reference);
  grpc::ByteBuffer response;
  grpc::Status status;
  std::atomic<bool> done = false;
  region_->Lend(0);
  stub_.UnaryCall(&context, MethodOf(method), {}, &message, &response, [&](grpc::Status end) {
    status = std::move(end);
    done.store(true, std::memory_order_release);
  });
  Race(request, first, change, random, [&] { return done.load(std::memory_order_acquire); });
  return status;
}

grpc::Status RacingWriter::CallThere(const std::string& method, const std::string& request, size_t first, Change change,
                                     std::mt19937_64& random) {
  if (!Fill(request)) return grpc::Status(grpc::StatusCode::INTERNAL, "the request is too large");
  const auto number =
      std::find(kDirectMethods.begin(), kDirectMethods.end(), MethodOf(method)) - kDirectMethods.begin();
  region_->Call(0, {.method = static_cast<uint32_t>(number), .bytes = static_cast<uint32_t>(request.size())});
  std::optional<SlotResponse> response;
  const absl::Time give_up = absl::Now() + absl::Seconds(60);
  Race(request, first, change, random, [&] {
    response = region_->TakeResponse(0);
    return response.has_value() || absl::Now() > give_up;
  });
  if (!response.has_value()) return grpc::Status(grpc::StatusCode::DEADLINE_EXCEEDED, "no response in the slot");
  if (response->code == grpc::OK) return grpc::Status::OK;
  const auto error = MessageAt({response->offset, response->bytes}, region_->Slot(0));
  return DecodeDirectError(response->code, error.value_or(""));
}

bool RacingWriter::Fill(const std::string& request) {
  const absl::Span<char> slot = region_->Slot(0);
  if (request.size() > slot.size()) return false;
  std::memcpy(slot.data(), request.data(), request.size());
  return true;
}

void RacingWriter::Race(const std::string& request, size_t first, Change change, std::mt19937_64& random,
                        absl::FunctionRef<bool()> over) {
  char* const from = region_->Slot(0).data() + first;
  const size_t bytes = request.size() - first;
  while (!over()) change == Change::kWords ? ChangeWords(from, bytes, random) : ChangeBit(from, bytes, random);
}

std::vector<EncodedGradient> EncodedOnes(size_t elements) {
  const std::vector<float> ones(elements, 1);
  std::vector<EncodedGradient> encoded;
  for (int encoding = v1::Encoding_MIN; encoding <= v1::Encoding_MAX; ++encoding) {
    const absl::StatusOr<const Codec*> codec = FindCodec(static_cast<v1::Encoding>(encoding));
    if (!codec.ok()) continue;
    std::string payload((*codec)->EncodedBytes(elements), '\0');
    payload.resize((*codec)->Encode(ones, 1, payload.data()));
    encoded.push_back({(*codec)->encoding(), std::move(payload)});
  }
  return encoded;
}

RacedPush MakePush(const v1::PushHeader& header, uint32_t tensor_id, const EncodedGradient& gradient) {
  v1::PushRequest push;
  *push.mutable_header() = header;
  v1::SliceGradient* const slice = push.add_gradients();
  slice->set_tensor_id(tensor_id);
  slice->set_encoding(gradient.encoding);
  slice->set_payload(gradient.payload);
  RacedPush raced{push.SerializeAsString()};
  // The payload is the last field of the last field.
  raced.payload_offset = raced.request.size() - gradient.payload.size();
  return raced;
}

Attack RacingPushes() { return {"racing_shared_memory", Run}; }

}  // namespace ballast
