// SPDX-License-Identifier: Apache-2.0
// Encode and decode of each codec on one thread, for a small slice and the largest one, in bytes of fp32 per second,
// with vector code and with portable code, compared with memcpy of the same fp32. "into_blocks" decodes block by
// block into a core's L1 cache, as a shard applies a gradient; "feedback" encodes with error feedback.
#include <benchmark/benchmark.h>

#include <cstring>
#include <functional>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "client/error_feedback.h"
#include "common/codecs/codec.h"
#include "common/simd/instruction_set.h"

namespace ballast {
namespace {

constexpr v1::Encoding kEncodings[] = {v1::ENCODING_FP32, v1::ENCODING_FP16,  v1::ENCODING_BF16,
                                       v1::ENCODING_INT8, v1::ENCODING_TOP_K, v1::ENCODING_SIGN};
constexpr size_t kSizes[] = {65536, 1044480};

std::vector<float> Gradient(size_t elements) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0, 0.01f);
  std::vector<float> values(elements);
  for (float& value : values) value = normal(random);
  return values;
}

void ReportBytes(benchmark::State& state, size_t elements) {
  state.SetBytesProcessed(state.iterations() * elements * sizeof(float));
}

void Memcpy(benchmark::State& state, size_t elements) {
  const std::vector<float> values = Gradient(elements);
  std::vector<float> copy(elements);
  for (auto _ : state) {
    std::memcpy(copy.data(), values.data(), elements * sizeof(float));
    benchmark::ClobberMemory();
  }
  ReportBytes(state, elements);
}

void Encode(benchmark::State& state, const Codec* codec, size_t elements) {
  const std::vector<float> values = Gradient(elements);
  std::string payload(codec->EncodedBytes(elements), '\0');
  uint64_t seed = 0;
  for (auto _ : state) benchmark::DoNotOptimize(codec->Encode(values, ++seed, payload.data()));
  ReportBytes(state, elements);
}

void EncodeWithFeedback(benchmark::State& state, v1::Encoding encoding, size_t elements) {
  v1::Codec config;
  config.set_gradients(encoding);
  ErrorFeedback feedback(*MakeGradientCodec(config));
  const std::vector<float> gradient = Gradient(elements);
  std::string payload(feedback.codec().EncodedBytes(elements), '\0');
  uint64_t seed = 0;
  for (auto _ : state) benchmark::DoNotOptimize(feedback.Encode(1, 0, gradient, ++seed, payload.data()));
  ReportBytes(state, elements);
}

void Decode(benchmark::State& state, const Codec* codec, size_t elements, bool into_blocks) {
  std::string payload(codec->EncodedBytes(elements), '\0');
  codec->Encode(Gradient(elements), 1, payload.data());
  std::vector<float> values(elements);
  const absl::string_view piece = payload;
  for (auto _ : state) {
    const absl::Status status =
        into_blocks ? codec->DecodeBlocks({&piece, 1}, elements, [](size_t, auto) { benchmark::ClobberMemory(); })
                    : codec->Decode({&piece, 1}, absl::MakeSpan(values));
    if (!status.ok()) state.SkipWithError(std::string(status.message()).c_str());
    benchmark::ClobberMemory();
  }
  ReportBytes(state, elements);
}

void Register(const std::string& name, bool portable, std::function<void(benchmark::State&)> run) {
  const std::string full = name + (portable ? "/portable" : "");
  benchmark::RegisterBenchmark(full.c_str(), [portable, run](benchmark::State& state) {
    std::optional<ScopedInstructionSet> only;
    if (portable) only.emplace(InstructionSet::kPortable);
    run(state);
  })->UseRealTime();
}

void RegisterAll() {
  for (size_t elements : kSizes) {
    const std::string size = "/" + std::to_string(elements);
    Register("memcpy" + size, false, [=](auto& state) { Memcpy(state, elements); });
    for (bool portable : {false, true}) {
      for (v1::Encoding encoding : kEncodings) {
        const Codec* codec = *FindCodec(encoding);
        const std::string name = std::string(codec->name()) + size;
        Register(name + "/encode", portable, [=](auto& state) { Encode(state, codec, elements); });
        if (codec->wants_error_feedback()) {
          Register(name + "/feedback", portable, [=](auto& state) { EncodeWithFeedback(state, encoding, elements); });
        }
        Register(name + "/decode", portable, [=](auto& state) { Decode(state, codec, elements, false); });
        Register(name + "/into_blocks", portable, [=](auto& state) { Decode(state, codec, elements, true); });
      }
    }
  }
}

}  // namespace
}  // namespace ballast

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  ballast::RegisterAll();
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
