// SPDX-License-Identifier: Apache-2.0
#include "common/simd/instruction_set.h"

namespace ballast {

std::vector<InstructionSet> AvailableInstructionSets() {
  std::vector<InstructionSet> sets = {InstructionSet::kPortable};
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) sets.push_back(InstructionSet::kAvx2);
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512bw")) {
    sets.push_back(InstructionSet::kAvx512);
  }
#endif
  return sets;
}

}  // namespace ballast
