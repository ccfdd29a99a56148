// SPDX-License-Identifier: Apache-2.0
#include "bench/micro/apply_benchmark.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/simd/instruction_set.h"
#include "common/tensors/tensor_spec.h"
#include "google/protobuf/message.h"
#include "server/memory/value_buffer.h"
#include "server/weights/optimizers/optimizer.h"

namespace ballast {
namespace {

constexpr uint64_t kMaxElements = uint64_t{1} << 30;
constexpr double kMaxSeconds = 3600;
constexpr int kMinRounds = 3;

// Reads the gradient, reads and writes all other arrays, and leaves them unchanged: `zero` is 0, which the compiler
// does not know.
struct LimitLoop {
  size_t n;
  float zero;
  int slots;
  const float* gradient;
  float* weights;
  float* slot0;
  float* slot1;

  ABSL_ATTRIBUTE_ALWAYS_INLINE void operator()() const {
    if (slots == 0) {
      BALLAST_INDEPENDENT_ITERATIONS
      for (size_t i = 0; i < n; ++i) weights[i] = weights[i] + zero * gradient[i];
    } else if (slots == 1) {
      BALLAST_INDEPENDENT_ITERATIONS
      for (size_t i = 0; i < n; ++i) {
        const float g = zero * gradient[i];
        weights[i] = weights[i] + g;
        slot0[i] = slot0[i] + g;
      }
    } else {
      BALLAST_INDEPENDENT_ITERATIONS
      for (size_t i = 0; i < n; ++i) {
        const float g = zero * gradient[i];
        weights[i] = weights[i] + g;
        slot0[i] = slot0[i] + g;
        slot1[i] = slot1[i] + g;
      }
    }
  }
};

// A model's slices as a server holds them, and their gradients.
class Model {
 public:
  Model(uint64_t elements, int slots) {
    for (const v1::SliceRange& range : CutIntoSlices(elements)) {
      Slice& slice = slices_.emplace_back(Slice{{}, ValueBuffer(range.elements()), {}});
      for (int slot = 0; slot < slots; ++slot) {
        slice.slots.emplace_back(range.elements());
        std::fill_n(slice.Slot(slot), range.elements(), 0.0f);
      }
      for (size_t i = 0; i < range.elements(); ++i) {
        slice.gradient.push_back(0.01f * static_cast<float>(i % 201) - 1.0f);
        slice.Weights()[i] = 0.01f * static_cast<float>(i % 199) - 1.0f;
      }
    }
  }

  void Update(const Optimizer& optimizer, uint64_t update) {
    for (Slice& slice : slices_) {
      OptimizerState state{slice.Weights(), slice.Weights(), {}};
      for (int slot = 0; slot < optimizer.slots(); ++slot) state.slots[slot] = slice.Slot(slot);
      optimizer.Apply({update, optimizer.LearningRate(update), 1}, Gradient(slice.gradient), state);
    }
  }

  void ReadAndWrite(float zero) {
    for (Slice& slice : slices_) {
      RunLoop(LimitLoop{slice.gradient.size(), zero, static_cast<int>(slice.slots.size()), slice.gradient.data(),
                        slice.Weights(), slice.Slot(0), slice.Slot(1)});
    }
  }

 private:
  struct Slice {
    std::vector<float> gradient;
    ValueBuffer weights;
    std::vector<ValueBuffer> slots;

    float* Weights() { return weights.mutable_values().data(); }
    float* Slot(size_t slot) { return slot < slots.size() ? slots[slot].mutable_values().data() : nullptr; }
  };

  std::vector<Slice> slices_;
};

double Now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

ApplyResult Measure(const std::string& name, const Optimizer& optimizer, const ApplyBenchmarkOptions& options) {
  Model model(options.elements, optimizer.slots());
  volatile float zero = 0;
  double apply = std::numeric_limits<double>::infinity();
  double limit = apply;
  const double end = Now() + options.seconds;
  for (int round = 1; round <= kMinRounds || Now() < end; ++round) {
    const double start = Now();
    model.ReadAndWrite(zero);
    const double middle = Now();
    model.Update(optimizer, round);
    limit = std::min(limit, middle - start);
    apply = std::min(apply, Now() - middle);
  }
  // Reads gradient, weights and slots; writes weights and slots.
  const double arrays = 3 + 2 * optimizer.slots();
  const double gigabytes = arrays * sizeof(float) * static_cast<double>(options.elements) / 1e9;
  return {name, gigabytes / apply, gigabytes / limit, limit / apply};
}

// An optimizer of that kind, with numbers that are valid for all.
v1::Optimizer Configure(const google::protobuf::FieldDescriptor& kind) {
  v1::Optimizer config;
  google::protobuf::Message& rule = *config.GetReflection()->MutableMessage(&config, &kind);
  for (const auto& [name, value] : {std::pair("learning_rate", 1e-4f), std::pair("momentum", 0.9f)}) {
    const google::protobuf::FieldDescriptor* field = kind.message_type()->FindFieldByName(name);
    if (field != nullptr) rule.GetReflection()->SetFloat(&rule, field, value);
  }
  return config;
}

}  // namespace

absl::StatusOr<std::vector<ApplyResult>> RunApplyBenchmark(const ApplyBenchmarkOptions& options) {
  if (options.elements < 1 || options.elements > kMaxElements) {
    return absl::InvalidArgumentError(absl::StrCat("elements: got ", options.elements, ", want 1 to ", kMaxElements));
  }
  if (!(options.seconds >= 0 && options.seconds <= kMaxSeconds)) {
    return absl::InvalidArgumentError(absl::StrCat("seconds: got ", options.seconds, ", want 0 to ", kMaxSeconds));
  }
  std::vector<ApplyResult> results;
  const google::protobuf::OneofDescriptor& kinds = *v1::Optimizer::descriptor()->FindOneofByName("kind");
  for (int i = 0; i < kinds.field_count(); ++i) {
    const v1::Optimizer config = Configure(*kinds.field(i));
    absl::StatusOr<std::unique_ptr<Optimizer>> optimizer = MakeOptimizer(config);
    if (!optimizer.ok()) return optimizer.status();
    results.push_back(Measure(kinds.field(i)->name(), **optimizer, options));
  }
  return results;
}

}  // namespace ballast
