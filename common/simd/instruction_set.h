// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/base/attributes.h"
#include "absl/strings/string_view.h"

// Precedes a loop in which no iteration reads what another one writes.
#if defined(__clang__)
#define BALLAST_INDEPENDENT_ITERATIONS _Pragma("clang loop vectorize(assume_safety)")
#else
#define BALLAST_INDEPENDENT_ITERATIONS _Pragma("GCC ivdep")
#endif

// Compiles a function for an instruction set. Only functions with intrinsics need it; all others use RunLoop.
#define BALLAST_AVX2 gnu::target("avx2,f16c,fma")
#define BALLAST_AVX512 gnu::target("avx512f,avx512vl,avx512dq,avx512bw")

namespace ballast {

// Instruction sets for which a loop may be compiled. All give the same bits: vectors only process several elements at
// once. A library that uses RunLoop has the option -ffp-contract=off, because both vector sets could fuse a
// multiplication with an addition.
enum class InstructionSet { kPortable, kAvx2, kAvx512 };

// Returns the instruction sets of this machine, the fastest last.
std::vector<InstructionSet> AvailableInstructionSets();

// "portable", "avx2" or "avx512".
std::string NameOf(InstructionSet set);
// Returns the set with that name; nothing if this machine lacks it, or if there is no such name.
std::optional<InstructionSet> AvailableInstructionSet(absl::string_view name);

// The environment variable that names the set to use instead of the fastest, to compare machines.
inline constexpr char kInstructionSetVariable[] = "BALLAST_INSTRUCTION_SET";

// Returns the set of the latest ScopedInstructionSet; without one, that of the variable, otherwise the fastest. The
// variable is read once; if this machine lacks its set, a line on standard error says so.
InstructionSet ChosenInstructionSet();

// Chooses `set`, which the machine must have, for this process during its lifetime. For tests and benchmarks.
class ScopedInstructionSet {
 public:
  explicit ScopedInstructionSet(InstructionSet set);
  ~ScopedInstructionSet();
  ScopedInstructionSet(const ScopedInstructionSet&) = delete;
  ScopedInstructionSet& operator=(const ScopedInstructionSet&) = delete;

 private:
  const InstructionSet before_;
};

#if defined(__x86_64__)
template <typename Loop>
[[gnu::noinline, BALLAST_AVX2]] void RunWithAvx2(Loop loop) {
  loop();
}

template <typename Loop>
[[gnu::noinline, BALLAST_AVX512]] void RunWithAvx512(Loop loop) {
  loop();
}
#endif

// Calls loop() compiled for the chosen instruction set. Its operator() and all functions that it calls must be
// ABSL_ATTRIBUTE_ALWAYS_INLINE. It should hold its data by value, as numbers and pointers: a compiler must assume that
// each element written may change data behind a reference, and passes views through memory.
template <typename Loop>
void RunLoop(Loop loop) {
#if defined(__x86_64__)
  const InstructionSet set = ChosenInstructionSet();
  if (set == InstructionSet::kAvx512) return RunWithAvx512(loop);
  if (set == InstructionSet::kAvx2) return RunWithAvx2(loop);
#endif
  loop();
}

}  // namespace ballast
