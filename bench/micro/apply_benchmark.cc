// SPDX-License-Identifier: Apache-2.0
#include "bench/micro/apply_benchmark.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "bench/bench_report.h"
#include "cli/command/command.h"
#include "common/job/kind_names.h"
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
    v1::TensorSpec spec;
    spec.add_shape(elements);
    for (const v1::SliceRange& range : CutIntoSlices(spec)) {
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
    if (!IsKindFor(*kinds.field(i), v1::PARAMETER_KIND_TENSOR)) continue;
    const v1::Optimizer config = Configure(*kinds.field(i));
    absl::StatusOr<std::unique_ptr<Optimizer>> optimizer = MakeOptimizer(config);
    if (!optimizer.ok()) return optimizer.status();
    results.push_back(Measure(kinds.field(i)->name(), **optimizer, options));
  }
  return results;
}

namespace {

constexpr char kUsage[] =
    "usage: ballast bench apply [flags]\n\n"
    "Applies each optimizer to a model in memory with one thread. GB/s counts memory traffic: each array that an\n"
    "update reads, and each that it writes, counts once. The limit is a loop that reads and writes the same arrays\n"
    "without computing, run in turn with the optimizer.\n\n";

constexpr double kWanted = 0.8;
constexpr int kMiElements = 1 << 20;

std::vector<FlagSpec> Flags() {
  return {
      {"mi-elements", "N", "Elements of the model in Mi (1,048,576), 1 to 1024 (32)."},
      {"seconds", "S", "Seconds for each optimizer, 0.01 to 600 (2)."},
  };
}

absl::StatusOr<BenchReport> Run(int mi_elements, double seconds, std::ostream& out) {
  const uint64_t elements = uint64_t{kMiElements} * mi_elements;
  const absl::StatusOr<std::vector<ApplyResult>> results = RunApplyBenchmark({elements, seconds});
  if (!results.ok()) return results.status();
  BenchReport report;
  report.benchmark = "apply";
  report.settings = {{"elements", elements}, {"threads", 1}, {"seconds", seconds}};
  out << absl::StrFormat("%-10s %8s %11s %6s\n", "optimizer", "GB/s", "limit GB/s", "of it");
  double least = results->empty() ? 0 : results->front().ratio;
  for (const ApplyResult& result : *results) {
    report.rows.push_back({{"optimizer", result.optimizer},
                           {"gb_per_second", result.gb_per_second},
                           {"limit_gb_per_second", result.limit_gb_per_second},
                           {"of_limit", result.ratio}});
    out << absl::StrFormat("%-10s %8.2f %11.2f %6.3f\n", result.optimizer, result.gb_per_second,
                           result.limit_gb_per_second, result.ratio);
    report.ratios.push_back({absl::StrCat(result.optimizer, "_of_limit"), result.ratio, kWanted, false,
                             absl::StrCat(result.optimizer, ", relative to a loop over the same arrays")});
    least = std::min(least, result.ratio);
  }
  report.ratios.push_back({"least_of_limit", least, kWanted, false, "slowest optimizer, relative to its loop"});
  return report;
}

}  // namespace

CommandResult ApplyCommand(absl::Span<const std::string> args, std::ostream& out, std::ostream& err) {
  const auto parse = [&](const Arguments& arguments) {
    const auto elements = arguments.GetInt("mi-elements", 32, 1, 1024);
    const auto seconds = arguments.GetNumber("seconds", 2, 0.01, 600);
    return RunUnless({elements.status(), seconds.status()}, [=, &out] { return Run(*elements, *seconds, out); });
  };
  return RunBenchmark(kUsage, Flags(), args, parse, out, err);
}

}  // namespace ballast
