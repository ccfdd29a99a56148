// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "absl/base/attributes.h"

// Precedes a loop in which no iteration reads what another one writes.
#if defined(__clang__)
#define BALLAST_INDEPENDENT_ITERATIONS _Pragma("clang loop vectorize(assume_safety)")
#else
#define BALLAST_INDEPENDENT_ITERATIONS _Pragma("GCC ivdep")
#endif

namespace ballast {

// Instruction sets for which a loop may be compiled. All give the same bits: vectors only process several elements at
// once, and no multiplication is fused with an addition.
enum class InstructionSet { kPortable, kAvx2, kAvx512 };

// Returns the instruction sets of this machine, the fastest last.
std::vector<InstructionSet> AvailableInstructionSets();

#if defined(__x86_64__)
template <typename Loop>
[[gnu::noinline, gnu::target("avx2")]] void RunWithAvx2(Loop loop) {
  loop();
}

template <typename Loop>
[[gnu::noinline, gnu::target("avx512f,avx512vl,avx512dq,avx512bw")]] void RunWithAvx512(Loop loop) {
  loop();
}
#endif

// Calls loop() compiled for `set`, which the machine must have. Its operator() and all functions that it calls must
// be ABSL_ATTRIBUTE_ALWAYS_INLINE. It should hold its data by value: a compiler must assume that each element written
// may change data behind a reference.
template <typename Loop>
void RunLoop(InstructionSet set, Loop loop) {
#if defined(__x86_64__)
  if (set == InstructionSet::kAvx512) return RunWithAvx512(loop);
  if (set == InstructionSet::kAvx2) return RunWithAvx2(loop);
#endif
  loop();
}

}  // namespace ballast
