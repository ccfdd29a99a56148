// SPDX-License-Identifier: Apache-2.0
#include "common/simd/instruction_set.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace ballast {
namespace {

InstructionSet SetAtStart() {
  const InstructionSet fastest = AvailableInstructionSets().back();
  const char* const wanted = getenv(kInstructionSetVariable);
  if (wanted == nullptr || *wanted == '\0') return fastest;
  if (const auto set = AvailableInstructionSet(wanted); set.has_value()) return *set;
  std::string names;
  for (const InstructionSet set : AvailableInstructionSets()) names += (names.empty() ? "" : " or ") + NameOf(set);
  fprintf(stderr, "warning: %s: got \"%s\", want %s; using %s\n", kInstructionSetVariable, wanted, names.c_str(),
          NameOf(fastest).c_str());
  return fastest;
}

std::atomic<InstructionSet>& Chosen() {
  static std::atomic<InstructionSet> chosen{SetAtStart()};
  return chosen;
}

}  // namespace

std::vector<InstructionSet> AvailableInstructionSets() {
  std::vector<InstructionSet> sets = {InstructionSet::kPortable};
#if defined(__x86_64__)
  // Clang 14's __builtin_cpu_supports does not know f16c. Its avx2 check also asks the operating system.
  unsigned int eax = 0, ebx = 0, ecx = 0, edx = 0;
  const bool f16c = __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
  if (!f16c || !__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return sets;
  sets.push_back(InstructionSet::kAvx2);
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512bw")) {
    sets.push_back(InstructionSet::kAvx512);
  }
#endif
  return sets;
}

std::string NameOf(InstructionSet set) {
  switch (set) {
    case InstructionSet::kPortable:
      return "portable";
    case InstructionSet::kAvx2:
      return "avx2";
    case InstructionSet::kAvx512:
      return "avx512";
  }
  return "unknown";
}

std::optional<InstructionSet> AvailableInstructionSet(absl::string_view name) {
  for (const InstructionSet set : AvailableInstructionSets()) {
    if (NameOf(set) == name) return set;
  }
  return std::nullopt;
}

InstructionSet ChosenInstructionSet() { return Chosen().load(std::memory_order_relaxed); }

ScopedInstructionSet::ScopedInstructionSet(InstructionSet set) : before_(Chosen().exchange(set)) {}
ScopedInstructionSet::~ScopedInstructionSet() { Chosen().store(before_); }

}  // namespace ballast
